# The smallest Swin, with which the paper looks at stacks of attention alone.
_base_ = './csan-swin-tiny_8xb256-300e_in1k.py'
model = dict(backbone=dict(arch='swin-min'))
