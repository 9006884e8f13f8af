# PVT's RetinaNet, 12 epochs: AdamW 1e-4, weight decay 1e-4 (PVT's code,
# mmdet), but for what no_decay.py names.
_base_ = ['./coco_8xb2-1x.py', './no_decay.py']
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    paramwise_cfg=dict(custom_keys=_base_.no_decay))
param_scheduler = [
    dict(
        type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(
        type='MultiStepLR',
        begin=0,
        end=12,
        by_epoch=True,
        milestones=[8, 11],
        gamma=0.1)
]
