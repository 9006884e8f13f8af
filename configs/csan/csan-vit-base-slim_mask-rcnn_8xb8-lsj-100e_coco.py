_base_ = [
    '../_base_/models/mask-rcnn_vit_sfp.py',
    '../_base_/datasets/coco_instance_lsj.py',
    '../_base_/schedules/coco_8xb8-100e_adamw_vit.py',
    '../_base_/runtime_det_by-iteration.py'
]
model = dict(
    backbone=dict(
        arch='vit-base-slim',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-vit-base-slim_in1k.pth')),
    neck=dict(in_channels=512))
