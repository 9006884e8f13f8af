# Semantic segmentation of one's own images: edit down to the line.
# Masks are PNG files named like their images. A pixel holds the number of its
# class, 0 to len(classes) - 1 in this order, or 255 where it is not judged.
_base_ = [
    '../_base_/models/upernet_swin.py', '../_base_/schedules/no_decay.py',
    '../_base_/runtime_seg.py'
]
data_root = 'data/my_dataset/'
classes = ('background', 'thing')
train_images, train_masks = 'train', 'train_masks'
val_images, val_masks = 'val', 'val_masks'
image_suffix, mask_suffix = '.jpg', '.png'
crop_size = (512, 512)  # height and width; the short side is resized to it
max_iters = 4000
arch = 'swin-tiny'
channels = [96, 192, 384, 768]  # of its stages
attention = dict(type='CSaN', init='identity')
checkpoint = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
window_size = 7
# ---- what follows from the lines above -------------------------------------
if isinstance(classes, str):
    raise TypeError(f'classes is the text {classes!r}: write it as a tuple')
palette = [[(67 * i) % 256, (131 * i) % 256, (197 * i) % 256]
           for i in range(len(classes))]
model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(
        arch=arch,
        attention=attention,
        window_size=window_size,
        drop_path_rate=0.1,
        init_cfg=checkpoint and dict(
            type='mmcsan.PretrainedClassifier', checkpoint=checkpoint)),
    decode_head=dict(
        in_channels=channels, channels=256, num_classes=len(classes)),
    auxiliary_head=dict(
        in_channels=channels[2], channels=128, num_classes=len(classes)))
scale = (4 * max(crop_size), min(crop_size))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        type='RandomResize',
        scale=scale,
        ratio_range=(0.5, 2.0),
        keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.95),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    img_suffix=image_suffix,
    seg_map_suffix=mask_suffix,
    metainfo=dict(classes=classes, palette=palette))
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        data_prefix=dict(img_path=train_images, seg_map_path=train_masks),
        pipeline=train_pipeline,
        **dataset))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        data_prefix=dict(img_path=val_images, seg_map_path=val_masks),
        pipeline=test_pipeline,
        **dataset))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.01),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(custom_keys=_base_.no_decay))
warmup = min(200, max_iters // 10)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=False,
        begin=0,
        end=warmup),
    dict(
        type='PolyLR',
        eta_min=0.0,
        power=1.0,
        begin=warmup,
        end=max_iters,
        by_epoch=False)
]
interval = max(max_iters // 10, 1)
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=max_iters, val_interval=interval)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    checkpoint=dict(interval=interval, save_best='mIoU', rule='greater'))
auto_scale_lr = dict(enable=False, base_batch_size=4)
