# Two-stage Swin detectors, 36 epochs (mmdet); otherwise as 12.
_base_ = './coco_8xb2-1x_adamw.py'
param_scheduler = [
    dict(
        type='LinearLR', start_factor=0.001, by_epoch=False, begin=0,
        end=1000),
    dict(
        type='MultiStepLR',
        begin=0,
        end=36,
        by_epoch=True,
        milestones=[27, 33],
        gamma=0.1)
]
train_cfg = dict(max_epochs=36)
