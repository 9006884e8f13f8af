# ViTDet: 100 epochs at 64 images, AdamW 1e-4, decayed by 0.7 from layer to
# layer; values of mmdet's.
_base_ = './no_decay.py'
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=184375, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='mmcsan.LayerDecayOptimWrapperConstructor',
    optimizer=dict(
        type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1),
    paramwise_cfg=dict(
        layer_decay_rate=0.7,
        custom_keys=dict(
            _base_.no_decay,
            pos_embed=dict(decay_mult=0.),
            cls_token=dict(decay_mult=0.))))
param_scheduler = [
    dict(
        type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=250),
    dict(
        type='MultiStepLR',
        begin=0,
        end=184375,
        by_epoch=False,
        milestones=[163889, 177546],
        gamma=0.1)
]
auto_scale_lr = dict(enable=False, base_batch_size=64)
