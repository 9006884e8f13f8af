_base_ = [
    '../_base_/models/mask-rcnn_polaformer-pp_fpn.py',
    '../_base_/datasets/coco_instance_ms-crop.py',
    '../_base_/schedules/coco_8xb2-3x_adamw.py',
    '../_base_/runtime_det.py'
]
model = dict(
    backbone=dict(
        arch='b2',
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='polaformer-pp-b2_in1k.pth')),
    neck=dict(in_channels=[64, 128, 256, 512]))
