# The classifier of single digits with plain attention, for comparison.
_base_ = './csan-swin-mini_1xb64_digits-cls.py'
model = dict(
    backbone=dict(attention=dict(_delete_=True, type='Softmax')))
