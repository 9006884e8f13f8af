# ImageNet-1k as Swin's authors train on it: every image once an epoch, tested
# at 256; augmentation as in imagenet.py.
_base_ = './imagenet.py'
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='ResizeEdge',
        scale=256,
        edge='short',
        backend='pillow',
        interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=128,
    sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
