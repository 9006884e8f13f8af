_base_ = [
    '../_base_/models/pvt_classifier.py',
    '../_base_/datasets/imagenet_swin.py',
    '../_base_/schedules/imagenet_8xb128-300e_adamw.py',
    '../_base_/runtime_cls.py'
]
model = dict(
    backbone=dict(
        arch='pvt-tiny',
        attention='Pola'))
