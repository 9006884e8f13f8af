"""Tiny data sets and configs of the three codebases, for runs of seconds."""
import json
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 32
COMMON = '''
default_scope = {scope!r}
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2, val_interval=2)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
default_hooks = dict(checkpoint=dict(type='CheckpointHook', interval=1))
auto_scale_lr = dict(base_batch_size=4)
randomness = dict(seed=0)
root = {root!r}


def loader(dataset, shuffle=False):
    return dict(
        batch_size=2,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=shuffle),
        dataset=dataset)


'''
MMPRETRAIN = '''
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='ResNet', depth=18, stem_channels=8, base_channels=8),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead', num_classes=2, in_channels=64, topk=(1, ),
        loss=dict(type='CrossEntropyLoss')))
data_preprocessor = dict(num_classes=2, mean=[127.] * 3, std=[60.] * 3)
pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
data = dict(type='CustomDataset', data_root=root + '/cls', pipeline=pipeline)
train_dataloader = loader(data, True)
val_dataloader = test_dataloader = loader(data)
val_evaluator = test_evaluator = dict(type='Accuracy', topk=(1, ))
tta_model = dict(type='AverageClsScoreTTA')
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[[dict(type='RandomFlip', prob=1.),
                     dict(type='RandomFlip', prob=0.)],
                    [dict(type='PackInputs')]])]
'''
MMSEG = '''
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor', mean=[127.] * 3, std=[60.] * 3,
        size=(32, 32), seg_pad_val=255),
    backbone=dict(
        type='ResNet', depth=18, stem_channels=8, base_channels=8,
        norm_cfg=dict(type='SyncBN', requires_grad=True)),
    decode_head=dict(
        type='FCNHead', in_channels=64, in_index=3, channels=8, num_convs=1,
        concat_input=False, num_classes=2,
        norm_cfg=dict(type='SyncBN', requires_grad=True)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
pipeline = [
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')]
data = dict(
    type='BaseSegDataset', data_root=root,
    data_prefix=dict(img_path='images', seg_map_path='masks'),
    img_suffix='.png', metainfo=dict(
        classes=('ground', 'thing'), palette=[[0, 0, 0], [255, 0, 0]]),
    pipeline=pipeline)
train_dataloader = loader(data, True)
val_dataloader = test_dataloader = loader(data)
val_evaluator = test_evaluator = dict(type='IoUMetric')
visualizer = dict(type='SegLocalVisualizer')
tta_model = dict(type='SegTTAModel')
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[[dict(type='RandomFlip', prob=0.),
                     dict(type='RandomFlip', prob=1.)],
                    [dict(type='LoadAnnotations')],
                    [dict(type='PackSegInputs')]])]
'''
MMDET = '''
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(
        type='DetDataPreprocessor', mean=[127.] * 3, std=[60.] * 3,
        pad_size_divisor=32),
    backbone=dict(
        type='ResNet', depth=18, stem_channels=8, base_channels=8,
        norm_eval=False),
    neck=dict(
        type='FPN', in_channels=[8, 16, 32, 64], out_channels=8, num_outs=5),
    bbox_head=dict(
        type='RetinaHead', num_classes=1, in_channels=8, stacked_convs=1,
        feat_channels=8,
        anchor_generator=dict(
            type='AnchorGenerator', octave_base_scale=4,
            scales_per_octave=3, ratios=[1.0], strides=[4, 8, 16, 32, 64]),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, loss_weight=1.0),
        loss_bbox=dict(type='L1Loss', loss_weight=1.0)),
    train_cfg=dict(
        assigner=dict(
            type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4,
            min_pos_iou=0, ignore_iof_thr=-1),
        sampler=dict(type='PseudoSampler'),
        allowed_border=-1, pos_weight=-1, debug=False),
    test_cfg=dict(
        nms_pre=100, min_bbox_size=0, score_thr=0.0,
        nms=dict(type='nms', iou_threshold=0.5), max_per_img=10))
pack = dict(
    type='PackDetInputs',
    meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
               'scale_factor', 'flip', 'flip_direction'))
load = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(32, 32), keep_ratio=True)]
pipeline = load + [dict(type='RandomFlip', prob=0.), pack]
data = dict(
    type='CocoDataset', data_root=root, ann_file='boxes.json',
    data_prefix=dict(img='images/'), metainfo=dict(classes=('thing', )),
    pipeline=pipeline)
train_dataloader = loader(data, True)
test_data = dict(data, test_mode=True)
val_dataloader = test_dataloader = loader(test_data)
val_evaluator = test_evaluator = dict(
    type='CocoMetric', ann_file=root + '/boxes.json', metric='bbox')
visualizer = dict(type='DetLocalVisualizer')
tta_model = dict(
    type='DetTTAModel',
    tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=10))
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[[dict(type='Resize', scale=(32, 32), keep_ratio=True)],
                    [dict(type='RandomFlip', prob=1.),
                     dict(type='RandomFlip', prob=0.)],
                    [dict(type='LoadAnnotations', with_bbox=True)],
                    [pack]])]
'''
CODEBASES = dict(mmpretrain=MMPRETRAIN, mmseg=MMSEG, mmdet=MMDET)


def write_images(root):
    """Four noise images with one bright square, labelled for each task.

    Args:
        root (str | Path): The folder to fill.
    """
    root = Path(root)
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for i in range(4):
        image = rng.integers(0, 100, (SIZE, SIZE, 3), dtype=np.uint8)
        x, y, side = (int(n) for n in rng.integers(4, 12, 3))
        image[y:y + side, x:x + side] = 255
        mask = np.zeros((SIZE, SIZE), np.uint8)
        mask[y:y + side, x:x + side] = 1
        kind = ('even', 'odd')[i % 2]
        for path, pixels in ((f'images/{i}.png', image),
                             (f'masks/{i}.png', mask),
                             (f'cls/{kind}/{i}.png', image)):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / path)
        images.append(
            dict(id=i, file_name=f'{i}.png', width=SIZE, height=SIZE))
        boxes.append(
            dict(id=i, image_id=i, category_id=1, iscrowd=0,
                 bbox=[x, y, side, side], area=side * side))
    (root / 'boxes.json').write_text(
        json.dumps(
            dict(images=images, annotations=boxes,
                 categories=[dict(id=1, name='thing')])))


def write_config(path, root, scope):
    """Write the tiny config of one codebase.

    Args:
        path (str | Path): The file to write.
        root (str | Path): The folder of :func:`write_images`.
        scope (str): 'mmpretrain', 'mmseg' or 'mmdet'.

    Returns:
        Path: The file.
    """
    path = Path(path)
    path.write_text(
        COMMON.format(scope=scope, root=str(root)) + CODEBASES[scope])
    return path
