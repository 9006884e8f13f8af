# Semantic segmentation of one's own images: edit down to the line. The page
# docs/own_dataset.md leads through it. Masks are PNG files named like their
# images. A pixel holds the number of its class, 0 to len(classes) - 1 in this
# order. What is void is not judged, and skipped in the count of the classes:
# with void = 0 they are 1 to len(classes).
from importlib.util import find_spec

_base_ = [
    '../_base_/models/upernet_swin.py', '../_base_/schedules/no_decay.py',
    '../_base_/runtime_seg.py'
]
data_root = 'data/my_dataset/'
classes = ('background', 'thing')
void = 255  # or several: (11, 255)
train_images, train_masks = 'train', 'train_masks'
val_images, val_masks = 'val', 'val_masks'
image_suffix, mask_suffix = '.jpg', '.png'
train_list, val_list = '', ''  # files of names without suffix; '': all there
crop_size = (512, 512)  # height and width; the short side is resized to it
max_iters = 4000
batch_size, lr = 4, 1e-4  # lr is for 4; --auto-scale-lr fits it to the batch
# ---- the network ------------------------------------------------------------
arch = 'swin-tiny'
channels = [96, 192, 384, 768]  # of its stages
attention = dict(type='CSaN', init='identity')
checkpoint = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
window_size = 7
width = 256  # channels of the head
# ---- what follows from the lines above -------------------------------------
if isinstance(classes, str):
    raise TypeError(f'classes is the text {classes!r}: write it as a tuple')
if len(classes) < 2:
    raise ValueError('classes needs two names at least: what is no object is '
                     "a class too, such as 'background'")
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
        in_channels=channels, channels=width, num_classes=len(classes)),
    auxiliary_head=dict(
        in_channels=channels[2],
        channels=width // 2,
        num_classes=len(classes)))
load_masks = [
    dict(type='LoadAnnotations'),
    dict(
        type='mmcsan.MaskValuesToClasses',
        num_classes=len(classes),
        void=void)
]
scale = (4 * max(crop_size), min(crop_size))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    *load_masks,
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
    *load_masks,
    dict(type='PackSegInputs')
]
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    img_suffix=image_suffix,
    seg_map_suffix=mask_suffix,
    metainfo=dict(classes=classes, palette=palette))
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        ann_file=train_list,
        data_prefix=dict(img_path=train_images, seg_map_path=train_masks),
        pipeline=train_pipeline,
        **dataset))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        ann_file=val_list,
        data_prefix=dict(img_path=val_images, seg_map_path=val_masks),
        pipeline=test_pipeline,
        **dataset))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=lr, weight_decay=0.01),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(custom_keys=_base_.no_decay))
warmup = min(200, max(max_iters // 10, 1))
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
interval = max(max_iters // 5, 1)
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=max_iters, val_interval=interval)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    checkpoint=dict(interval=interval, save_best='mIoU', rule='greater'),
    visualization=dict(draw=True, interval=25))
vis_backends = [dict(type='LocalVisBackend')]
if find_spec('tensorboard'):
    vis_backends.append(dict(type='TensorboardVisBackend'))
visualizer = dict(vis_backends=vis_backends)
auto_scale_lr = dict(enable=False, base_batch_size=4)
