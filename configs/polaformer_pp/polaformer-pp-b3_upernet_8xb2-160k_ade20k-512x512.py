_base_ = './polaformer-pp-b2_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='b3',
        init_cfg=dict(checkpoint='polaformer-pp-b3_in1k.pth')),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320))
