_base_ = [
    '../_base_/models/semantic-fpn_pvt.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_8xb4-40k_adamw.py',
    '../_base_/runtime_seg.py'
]
model = dict(
    backbone=dict(
        arch='pvt-tiny',
        attention='Pola',
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='pola-pvt-tiny_in1k.pth')))
train_dataloader = dict(batch_size=4)
default_hooks = dict(checkpoint=dict(interval=4000))
