_base_ = [
    '../_base_/models/mask2former_swin_instance.py',
    '../_base_/datasets/coco_instance_lsj_mask2former.py',
    '../_base_/schedules/coco_8xb2-50e_mask2former.py',
    '../_base_/runtime_det_by-iteration.py'
]
model = dict(
    backbone=dict(
        arch='swin-tiny',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier',
            checkpoint='csan-swin-tiny_in1k.pth')))
