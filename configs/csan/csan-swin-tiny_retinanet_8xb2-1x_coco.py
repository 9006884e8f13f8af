# The paper's COCO experiment: both arms start from plain Swin weights, CSaN's
# own parameters at random. Its schedule is not published; this is mmdet's.
_base_ = [
    '../_base_/models/retinanet_swin_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/coco_8xb2-1x_sgd.py', '../_base_/runtime_det.py'
]
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='swin-tiny',
        attention=dict(type='CSaN'),
        init_cfg=dict(
            type='mmcsan.PretrainedClassifier', checkpoint=pretrained)))
