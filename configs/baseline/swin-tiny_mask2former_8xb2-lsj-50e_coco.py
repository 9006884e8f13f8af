# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-swin-tiny_mask2former_8xb2-lsj-50e_coco.py'
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint=pretrained)))
