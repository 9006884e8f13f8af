# Scenes of handwritten digits, background and ten classes, 128x128
dataset_type = 'BaseSegDataset'
data_root = 'data/digits/'
crop_size = (128, 128)
metainfo = dict(
    classes=('background', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'),
    palette=[[0, 0, 0], [230, 25, 75], [60, 180, 75], [255, 225, 25],
             [0, 130, 200], [245, 130, 48], [145, 30, 180], [70, 240, 240],
             [240, 50, 230], [210, 245, 60], [250, 190, 212]])

# No flips: a mirrored digit is another digit, or none.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]

train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(
            img_path='scenes/train', seg_map_path='semantic/train'),
        img_suffix='.png',
        metainfo=metainfo,
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='scenes/val', seg_map_path='semantic/val'),
        img_suffix='.png',
        metainfo=metainfo,
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
