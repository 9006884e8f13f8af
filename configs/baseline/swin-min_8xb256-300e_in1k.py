# The plain arm of CSaN's recipe.
_base_ = '../csan/csan-swin-min_8xb256-300e_in1k.py'
model = dict(backbone=dict(attention=dict(type='Softmax')))
