_base_ = './csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='swin-small',
        init_cfg=dict(checkpoint='csan-swin-small_in1k.pth')))
