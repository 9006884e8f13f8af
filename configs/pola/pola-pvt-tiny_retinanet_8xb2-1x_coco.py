_base_ = [
    '../_base_/models/retinanet_pvt_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/coco_8xb2-1x_adamw_pvt.py',
    '../_base_/runtime_det.py'
]
model = dict(
    backbone=dict(
        arch='pvt-tiny',
        attention='Pola',
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='pola-pvt-tiny_in1k.pth')))
