_base_ = './pola-pvt-tiny_semantic-fpn_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='pvt-medium',
        init_cfg=dict(checkpoint='pola-pvt-medium_in1k.pth')))
