# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-vit-base_upernet_8xb2-160k_ade20k-512x512.py'
pretrained = 'https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth'  # noqa: E501
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint=pretrained)))
