# Demo, the classifier of single digits.
_base_ = [
    '../_base_/models/swin_mini.py', '../_base_/datasets/digits_cls.py',
    '../_base_/runtime_cls.py'
]
model = dict(
    type='ImageClassifier',
    backbone=dict(out_indices=(3, ), **_base_.swin_mini),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=256,
        topk=(1, ),
        loss=dict(
            type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')))
epochs = 10
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=8e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(
        custom_keys={'relative_position_bias_table': dict(decay_mult=0.)}))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=60),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=0,
        end=epochs,
        convert_to_iter_based=True)
]
train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=5)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(
    logger=dict(interval=50), checkpoint=dict(interval=epochs))
auto_scale_lr = dict(enable=False, base_batch_size=64)
randomness = dict(seed=0)
