# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../pola/pola-pvt-tiny_mask-rcnn_8xb2-1x_coco.py'
pretrained = 'https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth'
model = dict(
    backbone=dict(
        attention='Softmax', init_cfg=dict(checkpoint=pretrained)))
