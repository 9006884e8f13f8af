# CSaN's ImageNet recipe: AdamW 2e-3 at batch 2048, 20 epochs of warm-up,
# cosine to epoch 300, 10 epochs of cool-down at the smallest rate, bfloat16.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    dtype='bfloat16',
    optimizer=dict(
        type='AdamW',
        lr=2e-3,
        weight_decay=0.05,
        eps=1e-8,
        betas=(0.9, 0.999)),
    paramwise_cfg=dict(
        custom_keys={'relative_position_bias_table': dict(decay_mult=0.)}))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-6 / 2e-3,
        by_epoch=True,
        begin=0,
        end=20,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=20,
        end=300,
        convert_to_iter_based=True)
]
train_cfg = dict(by_epoch=True, max_epochs=310, val_interval=5)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=False, base_batch_size=2048)
