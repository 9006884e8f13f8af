# The plain arm: nothing differs but the attention and the weights it starts
# from.
_base_ = '../csan/csan-hiera-tiny-plus_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        attention=dict(type='Softmax'),
        init_cfg=dict(checkpoint='hiera-tiny-plus_in1k.pth')))
