_base_ = './csan-swin-tiny_8xb256-300e_in1k.py'
model = dict(backbone=dict(arch='swin-small', drop_path_rate=0.3))
