_base_ = [
    '../_base_/models/upernet_vit.py', '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_8xb2-160k_adamw_vit.py',
    '../_base_/runtime_seg.py'
]
model = dict(
    backbone=dict(
        arch='vit-base-slim',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-vit-base-slim_in1k.pth')),
    neck=dict(in_channels=[512] * 4, out_channels=512),
    decode_head=dict(in_channels=[512] * 4),
    auxiliary_head=dict(in_channels=512))
