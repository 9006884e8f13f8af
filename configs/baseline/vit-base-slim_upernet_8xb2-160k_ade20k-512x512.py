# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-vit-base-slim_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint='vit-base-slim_in1k.pth')))
