_base_ = './pola-pvt-tiny_8xb128-300e_in1k.py'
model = dict(
    backbone=dict(
        arch='pvt-small'))
