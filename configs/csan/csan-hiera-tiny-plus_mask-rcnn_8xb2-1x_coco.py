_base_ = [
    '../_base_/models/mask-rcnn_hiera_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/coco_8xb2-1x_adamw_hiera.py',
    '../_base_/runtime_det.py'
]
model = dict(
    backbone=dict(
        arch='hiera-tiny-plus',
        attention=dict(type='CSaN'),
        global_blocks=(5, 7, 9),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-hiera-tiny-plus_in1k.pth')))
