"""Every config trains and tests a step, shrunk by --cfg-options alone."""
import json
import os
import subprocess
import sys

import fake_data
import pytest
import torch
from mmengine.config import Config
from test_configs import CONFIGS, ROOT

from mmcsan.backbones import SwinTransformer

TINY_OPTIMIZER = [
    'optim_wrapper._delete_=True', 'optim_wrapper.type=OptimWrapper',
    'optim_wrapper.optimizer.type=SGD', 'optim_wrapper.optimizer.lr=0.001'
]
"""Mixed precision needs a GPU."""


def classifier(path, cfg):
    """A checkpoint such as the config starts from, smaller."""
    settings = cfg.model.backbone
    model = SwinTransformer(
        'swin-min', dict(settings.attention), out_indices=(3, ))
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


def common(data):
    options = ['model.backbone.arch=swin-min']
    for split in ('train', 'val', 'test'):
        options += [
            f'{split}_dataloader.num_workers=0',
            f'{split}_dataloader.persistent_workers=False',
            f'{split}_dataloader.dataset.data_root={data}'
        ]
    return options


def shrink_imagenet(path, data):
    return TINY_OPTIMIZER + [
        'train_dataloader.batch_size=2', 'val_dataloader.batch_size=2',
        'train_dataloader.dataset.ann_file=meta/train.txt',
        'val_dataloader.dataset.ann_file=meta/val.txt',
        'test_dataloader.dataset.ann_file=meta/val.txt',
        'train_cfg.max_epochs=1', 'train_cfg.val_interval=1'
    ]


def shrink_ade20k(path, data):
    return [
        'train_cfg.max_iters=1', 'train_cfg.val_interval=1',
        'default_hooks.checkpoint.interval=1',
        'model.data_preprocessor.size=(64,64)',
        'model.decode_head.channels=16',
        'train_dataloader.dataset.pipeline.2.scale=(80,64)',
        'train_dataloader.dataset.pipeline.3.crop_size=(64,64)',
        'val_dataloader.dataset.pipeline.1.scale=(80,64)',
        'test_dataloader.dataset.pipeline.1.scale=(80,64)'
    ]


def shrink_coco(path, data):
    annotations = f'{data}/annotations/instances_val2017.json'
    retina = 'retinanet' in path.stem
    # Without a threshold there are boxes to score after a step, too.
    threshold = 'score_thr' if retina else 'rcnn.score_thr'
    return [
        f'model.test_cfg.{threshold}=0.0',
        'train_cfg.max_epochs=1', 'train_cfg.val_interval=1',
        'train_dataloader.batch_size=4',
        'train_dataloader.dataset.pipeline.2.scale=(96,64)',
        'val_dataloader.dataset.pipeline.1.scale=(96,64)',
        'test_dataloader.dataset.pipeline.1.scale=(96,64)',
        f'val_evaluator.ann_file={annotations}',
        f'test_evaluator.ann_file={annotations}'
    ]


KINDS = {
    'ImageNet': (fake_data.imagenet, shrink_imagenet, 'accuracy/top1'),
    'ADE20KDataset': (fake_data.ade20k, shrink_ade20k, 'mIoU'),
    'CocoDataset': (fake_data.coco, shrink_coco, 'coco/bbox_mAP'),
}
ZOO = [path for path in CONFIGS if path.parent.name in ('csan', 'baseline')]


def tool(*args, cwd):
    result = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env=dict(os.environ, OMP_NUM_THREADS='2'),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True)
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout


@pytest.mark.parametrize('path', ZOO, ids=[p.stem for p in ZOO])
def test_trains_and_tests_a_step(path, tmp_path):
    cfg = Config.fromfile(path)
    make, shrink, metric = KINDS[cfg.dataset_type]
    data = tmp_path / 'data'
    make(data)
    options = common(data) + shrink(path, data)
    starts = 'init_cfg' in cfg.model.backbone
    if starts:
        weights = classifier(tmp_path / 'classifier.pth', cfg)
        options.append(f'model.backbone.init_cfg.checkpoint={weights}')
    out = tool(
        ROOT / 'tools' / 'train.py',
        path,
        '--work-dir',
        tmp_path / 'run',
        '--cfg-options',
        *options,
        cwd=tmp_path)
    assert ('matched' in out and '(100%)' in out) == starts
    [saved] = (tmp_path / 'run').glob('*_1.pth')
    out = tool(
        ROOT / 'tools' / 'test.py',
        path,
        saved,
        '--out',
        tmp_path / 'metrics.json',
        '--work-dir',
        tmp_path / 'test',
        '--cfg-options',
        *options,
        cwd=tmp_path)
    metrics = json.loads((tmp_path / 'metrics.json').read_text())
    assert 0 <= metrics[metric] <= 100 or metrics[metric] == -1
