# Swin's ImageNet recipe, which PolaFormer's authors follow: AdamW 5e-4 for
# each 512 images of a batch, here 1e-3 for 1024, 20 epochs of warm-up,
# cosine, gradients clipped at 5; in bfloat16. Norms, biases, layer scales and
# tables of relative positions are not decayed; the positional encodings,
# scales and powers of Pola and the weights s1 and s2 of PolaFormer++ are.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    dtype='bfloat16',
    optimizer=dict(
        type='AdamW',
        lr=1e-3,
        weight_decay=0.05,
        eps=1e-8,
        betas=(0.9, 0.999)),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        flat_decay_mult=0.,
        custom_keys={'relative_position_bias_table': dict(decay_mult=0.)}))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
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
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=5)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=False, base_batch_size=1024)
