# DINO, 12 epochs: AdamW 1e-4, the backbone at a tenth (mmdet); position
# tables are not decayed.
_base_ = './coco_8xb2-1x.py'
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    clip_grad=dict(max_norm=0.1, norm_type=2),
    paramwise_cfg=dict(
        custom_keys={
            'backbone': dict(lr_mult=0.1),
            'relative_position_bias_table': dict(lr_mult=0.1, decay_mult=0.)
        }))
param_scheduler = [
    dict(
        type='MultiStepLR',
        begin=0,
        end=12,
        by_epoch=True,
        milestones=[11],
        gamma=0.1)
]
