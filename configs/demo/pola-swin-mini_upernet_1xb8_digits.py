# The same with Pola in the first two stages and plain attention behind.
_base_ = './csan-swin-mini_upernet_1xb8_digits.py'
model = dict(
    backbone=dict(
        attention=['Pola', 'Pola', 'Softmax', 'Softmax'],
        # Of the pictures that the classifier sees: Pola learns positions.
        img_size=48,
        window_size=[None, None, 4, 4],
        init_cfg=dict(
            checkpoint='work_dirs/demo-pola/classifier/epoch_10.pth')))
# As all of the backbone: a longer key wins over 'backbone'.
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={
            'attn.positional_encoding': dict(lr_mult=0.1),
            'attn.scale': dict(lr_mult=0.1),
            'attn.power': dict(lr_mult=0.1)
        }))
