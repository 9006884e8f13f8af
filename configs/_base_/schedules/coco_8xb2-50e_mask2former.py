# Mask2Former on COCO: 50 epochs, counted in iterations (mmdet).
_base_ = './mask2former_adamw.py'
max_iters = 368750
param_scheduler = [
    dict(
        type='MultiStepLR',
        begin=0,
        end=max_iters,
        by_epoch=False,
        milestones=[327778, 355092],
        gamma=0.1)
]
train_cfg = dict(
    type='IterBasedTrainLoop',
    max_iters=max_iters,
    val_interval=5000,
    # The last score is that of the end.
    dynamic_intervals=[(365001, max_iters)])
