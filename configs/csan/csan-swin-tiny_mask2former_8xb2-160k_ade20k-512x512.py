_base_ = [
    '../_base_/models/mask2former_swin.py',
    '../_base_/datasets/ade20k_shortest-edge.py',
    '../_base_/schedules/ade20k_8xb2-160k_mask2former.py',
    '../_base_/runtime_seg.py'
]
model = dict(
    backbone=dict(
        arch='swin-tiny',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-swin-tiny_in1k.pth')))
