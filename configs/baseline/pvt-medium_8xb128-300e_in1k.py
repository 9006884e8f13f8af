# The plain arm: nothing differs but the attention.
_base_ = '../pola/pola-pvt-medium_8xb128-300e_in1k.py'
model = dict(backbone=dict(attention='Softmax'))
