_base_ = [
    '../_base_/models/dino-4scale_swin.py',
    '../_base_/datasets/coco_detection_ms-crop.py',
    '../_base_/schedules/coco_8xb2-12e_dino.py',
    '../_base_/runtime_det.py'
]
model = dict(
    backbone=dict(
        arch='swin-tiny',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-swin-tiny_in1k.pth')))
