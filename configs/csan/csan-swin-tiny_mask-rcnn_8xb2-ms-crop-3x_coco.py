_base_ = [
    '../_base_/models/mask-rcnn_swin_fpn.py',
    '../_base_/datasets/coco_instance_ms-crop.py',
    '../_base_/schedules/coco_8xb2-3x_adamw.py',
    '../_base_/runtime_det.py'
]
model = dict(
    backbone=dict(
        arch='swin-tiny',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-swin-tiny_in1k.pth')))
