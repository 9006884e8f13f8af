# Demo, instance segmentation of scenes: ten digits. Mask R-CNN with fewer
# channels and proposals, and anchors of the digits' sizes.
_base_ = [
    '../_base_/models/mask-rcnn_swin_fpn.py',
    '../_base_/models/swin_mini.py',
    '../_base_/datasets/digits_instance.py',
    '../_base_/schedules/no_decay.py', '../_base_/runtime_det.py'
]
channels = 64
model = dict(
    backbone=dict(
        _base_.swin_mini,
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='work_dirs/demo/classifier/epoch_10.pth')),
    neck=dict(
        in_channels=[32, 64, 128, 256], out_channels=channels, num_outs=4),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[5], strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=2),
            out_channels=channels,
            finest_scale=28),
        bbox_head=dict(
            in_channels=channels, fc_out_channels=256, num_classes=10),
        mask_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=2),
            out_channels=channels,
            finest_scale=28),
        mask_head=dict(
            num_convs=2,
            in_channels=channels,
            conv_out_channels=channels,
            num_classes=10)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=48, pos_fraction=0.33))),
    test_cfg=dict(
        rpn=dict(nms_pre=200, max_per_img=50), rcnn=dict(max_per_img=20)))
epochs = 4
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(
        custom_keys={
            **_base_.no_decay,
            'backbone': dict(lr_mult=0.5)
        }))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=0,
        end=epochs,
        convert_to_iter_based=True)
]
train_cfg = dict(
    type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=epochs)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    logger=dict(interval=25), checkpoint=dict(interval=epochs))
auto_scale_lr = dict(enable=False, base_batch_size=8)
randomness = dict(seed=0)
