_base_ = [
    '../_base_/models/upernet_swin.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_8xb2-160k_adamw.py',
    '../_base_/runtime_seg.py'
]
model = dict(
    backbone=dict(
        arch='swin-tiny',
        attention=['Pola', 'Pola', 'Softmax', 'Softmax'],
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='pola-swin-tiny_in1k.pth')))
