# Demo, semantic segmentation of scenes: background and ten digits.
_base_ = [
    '../_base_/models/upernet_swin.py', '../_base_/models/swin_mini.py',
    '../_base_/datasets/digits_semseg.py',
    '../_base_/schedules/no_decay.py', '../_base_/runtime_seg.py'
]
norm_cfg = dict(type='BN', requires_grad=True)
# Nine pixels in ten are background: without weights it is all that is learnt
# in so short a time.
class_weight = [0.2] + [1.] * 10
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        _base_.swin_mini,
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='work_dirs/demo/classifier/epoch_10.pth')),
    decode_head=dict(
        in_channels=[32, 64, 128, 256],
        pool_scales=(1, 2),
        channels=64,
        num_classes=11,
        norm_cfg=norm_cfg,
        loss_decode=dict(class_weight=class_weight)),
    auxiliary_head=dict(
        in_channels=128,
        channels=32,
        num_classes=11,
        norm_cfg=norm_cfg,
        loss_decode=dict(class_weight=class_weight)))
iters = 1000
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-2, weight_decay=0.01),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(
        custom_keys={
            **_base_.no_decay,
            'backbone': dict(lr_mult=0.1)
        }))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=False,
        begin=0,
        end=iters)
]
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=iters, val_interval=iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(checkpoint=dict(interval=iters))
auto_scale_lr = dict(enable=False, base_batch_size=8)
randomness = dict(seed=0)
