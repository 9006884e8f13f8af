# A stack of CSaN alone. Without V2's convolution, which would help it where
# plain attention has no such help.
_base_ = './softmax-swin-mini-pure_1xb64_digits-cls.py'
model = dict(backbone=dict(attention=dict(type='CSaN')))
