# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../pola/pola-pvt-medium_semantic-fpn_8xb4-40k_ade20k-512x512.py'
pretrained = 'https://github.com/whai362/PVT/releases/download/v2/pvt_medium.pth'  # noqa: E501
model = dict(
    backbone=dict(
        attention='Softmax', init_cfg=dict(checkpoint=pretrained)))
