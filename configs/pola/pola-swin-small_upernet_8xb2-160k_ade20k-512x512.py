_base_ = './pola-swin-tiny_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='swin-small',
        init_cfg=dict(checkpoint='pola-swin-small_in1k.pth')))
