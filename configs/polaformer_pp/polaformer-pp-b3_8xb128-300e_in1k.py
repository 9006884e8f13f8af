_base_ = './polaformer-pp-b2_8xb128-300e_in1k.py'
model = dict(
    backbone=dict(
        arch='b3',
        drop_path_rate=0.15))
