# As for Swin; Hiera has positions besides, not decayed either.
_base_ = './coco_8xb2-1x_adamw.py'
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'pos_embed': dict(decay_mult=0.)}))
