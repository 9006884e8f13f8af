_base_ = [
    '../_base_/models/swin_classifier.py', '../_base_/datasets/imagenet.py',
    '../_base_/schedules/imagenet_8xb256-300e_adamw.py',
    '../_base_/runtime_cls.py'
]
model = dict(
    backbone=dict(arch='swin-tiny', attention=dict(type='CSaN')))
