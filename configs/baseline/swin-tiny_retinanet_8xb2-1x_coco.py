# The plain arm: nothing differs but the attention.
_base_ = '../csan/csan-swin-tiny_retinanet_8xb2-1x_coco.py'
model = dict(backbone=dict(attention=dict(type='Softmax')))
