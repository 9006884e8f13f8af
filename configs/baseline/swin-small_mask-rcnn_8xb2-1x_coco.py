# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../pola/pola-swin-small_mask-rcnn_8xb2-1x_coco.py'
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth'  # noqa: E501
model = dict(
    backbone=dict(
        attention='Softmax', init_cfg=dict(checkpoint=pretrained)))
