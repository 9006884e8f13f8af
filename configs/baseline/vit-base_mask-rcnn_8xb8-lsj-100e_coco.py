# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-vit-base_mask-rcnn_8xb8-lsj-100e_coco.py'
pretrained = 'https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth'  # noqa: E501
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint=pretrained)))
