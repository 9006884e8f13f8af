# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-hiera-tiny-plus_mask-rcnn_8xb2-1x_coco.py'
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint='hiera-tiny-plus_in1k.pth')))
