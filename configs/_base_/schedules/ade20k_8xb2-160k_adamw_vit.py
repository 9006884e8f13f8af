# As for Swin; ViT has positions and a class token besides, not
# decayed either (mmseg).
_base_ = './ade20k_8xb2-160k_adamw.py'
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={
            'pos_embed': dict(decay_mult=0.),
            'cls_token': dict(decay_mult=0.)
        }))
