_base_ = './csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='swin-base',
        init_cfg=dict(checkpoint='csan-swin-base_in1k.pth')),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
