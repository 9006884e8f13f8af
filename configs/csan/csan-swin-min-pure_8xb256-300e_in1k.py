# A stack of attention alone: each FFN gives way to one more attention.
_base_ = './csan-swin-min_8xb256-300e_in1k.py'
model = dict(backbone=dict(ffn='attention'))
