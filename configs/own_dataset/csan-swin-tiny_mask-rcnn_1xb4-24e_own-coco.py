# Instance segmentation, or detection, of one's own images: edit down to the
# line. The page docs/own_dataset.md leads through it. Annotations are COCO
# files with boxes and, for segmentation, masks; classes are the names of
# their categories.
from importlib.util import find_spec

_base_ = [
    '../_base_/models/mask-rcnn_swin_fpn.py',
    '../_base_/schedules/no_decay.py', '../_base_/runtime_det.py'
]
data_root = 'data/my_dataset/'
classes = ('thing', )
masks = True  # False: boxes alone
train_images, train_annotations = 'train/', 'instances_train.json'
val_images, val_annotations = 'val/', 'instances_val.json'
image_scale = (1333, 800)  # longest and shortest side, in pixels
smallest_anchor = 32  # side of the smallest boxes looked for, in pixels
max_epochs = 24
batch_size, lr = 4, 1e-4  # lr is for 4; --auto-scale-lr fits it to the batch
# ---- the network ------------------------------------------------------------
arch = 'swin-tiny'
channels = [96, 192, 384, 768]  # of its stages
attention = dict(type='CSaN', init='identity')
checkpoint = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
window_size = 7
width = 256  # channels of neck and heads
regions = 512  # of an image, that the heads are trained on
# ---- what follows from the lines above -------------------------------------
if isinstance(classes, str):
    raise TypeError(f'classes is the text {classes!r}: write it as a tuple')
model = dict(
    data_preprocessor=dict(pad_mask=masks),
    backbone=dict(
        arch=arch,
        attention=attention,
        window_size=window_size,
        init_cfg=checkpoint and dict(
            type='mmcsan.PretrainedClassifier', checkpoint=checkpoint)),
    neck=dict(in_channels=channels, out_channels=width),
    rpn_head=dict(
        in_channels=width,
        feat_channels=width,
        anchor_generator=dict(scales=[smallest_anchor / 4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=width),
        bbox_head=dict(
            in_channels=width,
            fc_out_channels=4 * width,
            num_classes=len(classes)),
        mask_roi_extractor=dict(out_channels=width),
        mask_head=dict(
            in_channels=width,
            conv_out_channels=width,
            num_classes=len(classes))),
    train_cfg=dict(rcnn=dict(sampler=dict(num=regions))))
if not masks:
    model['roi_head'].update(mask_head=None, mask_roi_extractor=None)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=masks),
    dict(
        type='RandomResize',
        scale=image_scale,
        ratio_range=(0.8, 1.25),
        keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=masks),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                   'scale_factor'))
]
dataset = dict(
    type='mmcsan.CocoDataset',
    data_root=data_root,
    metainfo=dict(classes=classes))
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        ann_file=train_annotations,
        data_prefix=dict(img=train_images),
        filter_cfg=dict(filter_empty_gt=True, min_size=1),
        pipeline=train_pipeline,
        **dataset))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        ann_file=val_annotations,
        data_prefix=dict(img=val_images),
        test_mode=True,
        pipeline=test_pipeline,
        **dataset))
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric',
    ann_file=data_root + val_annotations,
    metric=['bbox', 'segm'] if masks else ['bbox'])
test_evaluator = val_evaluator
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=lr, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(custom_keys=_base_.no_decay))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='MultiStepLR',
        begin=0,
        end=max_epochs,
        by_epoch=True,
        milestones=[max(round(max_epochs * 2 / 3), 1),
                    max(round(max_epochs * 11 / 12), 1)],
        gamma=0.1)
]
train_cfg = dict(
    type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    checkpoint=dict(
        save_best='coco/segm_mAP' if masks else 'coco/bbox_mAP',
        rule='greater'),
    visualization=dict(draw=True, interval=25))
vis_backends = [dict(type='LocalVisBackend')]
if find_spec('tensorboard'):
    vis_backends.append(dict(type='TensorboardVisBackend'))
visualizer = dict(vis_backends=vis_backends)
auto_scale_lr = dict(enable=False, base_batch_size=4)
