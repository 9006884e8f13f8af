_base_ = './csan-swin-tiny_8xb256-300e_in1k.py'
model = dict(
    backbone=dict(arch='swin-base', drop_path_rate=0.5),
    head=dict(in_channels=1024))
