# The same as a stack of attention alone: each FFN gives way to an attention.
_base_ = './softmax-swin-mini_1xb64_digits-cls.py'
model = dict(backbone=dict(ffn='attention'))
