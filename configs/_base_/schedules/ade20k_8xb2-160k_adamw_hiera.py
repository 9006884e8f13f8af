# As for Swin; Hiera has positions besides, not decayed either.
_base_ = './ade20k_8xb2-160k_adamw.py'
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(decay_mult=0.)}))
