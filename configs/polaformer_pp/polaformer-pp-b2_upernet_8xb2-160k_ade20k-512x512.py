_base_ = [
    '../_base_/models/upernet_polaformer-pp.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_8xb2-160k_adamw.py',
    '../_base_/runtime_seg.py'
]
model = dict(
    backbone=dict(
        arch='b2',
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='polaformer-pp-b2_in1k.pth')),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256))
