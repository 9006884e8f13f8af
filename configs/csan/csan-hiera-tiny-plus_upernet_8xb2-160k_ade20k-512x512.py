_base_ = [
    '../_base_/models/upernet_hiera.py', '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_8xb2-160k_adamw_hiera.py',
    '../_base_/runtime_seg.py'
]
model = dict(
    backbone=dict(
        arch='hiera-tiny-plus',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-hiera-tiny-plus_in1k.pth')))
