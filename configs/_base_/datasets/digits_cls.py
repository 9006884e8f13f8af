# Handwritten digits on textured backgrounds, one a picture, 48x48
dataset_type = 'CustomDataset'
data_root = 'data/digits/'
classes = ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
data_preprocessor = dict(
    num_classes=10,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True)

# No flips anywhere: a mirrored digit is another digit, or none.
pad_val = 72  # about as bright as the backgrounds
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=48, padding=4, padding_mode='reflect'),
    dict(
        type='Rotate',
        angle=18.,
        prob=0.5,
        random_negative_prob=0.5,
        pad_val=pad_val,
        interpolation='bilinear'),
    dict(
        type='Shear',
        magnitude=0.25,
        prob=0.5,
        random_negative_prob=0.5,
        pad_val=pad_val,
        interpolation='bilinear'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix='classification/train',
        metainfo=dict(classes=classes),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=100,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix='classification/val',
        metainfo=dict(classes=classes),
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator
