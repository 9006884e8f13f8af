# The same with Pola in the first two stages and plain attention behind.
_base_ = './csan-swin-mini_1xb64_digits-cls.py'
model = dict(
    backbone=dict(
        attention=['Pola', 'Pola', 'Softmax', 'Softmax'],
        # Of the pictures that the classifier sees: Pola learns positions.
        img_size=48,
        window_size=[None, None, 4, 4]))
