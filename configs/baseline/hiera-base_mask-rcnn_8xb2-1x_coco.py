# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-hiera-base_mask-rcnn_8xb2-1x_coco.py'
pretrained = 'https://dl.fbaipublicfiles.com/hiera/hiera_base_224.pth'
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint=pretrained)))
