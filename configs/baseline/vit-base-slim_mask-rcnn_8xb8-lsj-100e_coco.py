# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-vit-base-slim_mask-rcnn_8xb8-lsj-100e_coco.py'
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint='vit-base-slim_in1k.pth')))
