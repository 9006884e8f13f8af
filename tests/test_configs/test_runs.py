"""A config of each task and family, shrunk, trains and validates."""
import json
import os
import subprocess
import sys

import fake_data
import pytest
import torch
import yaml
from mmengine.config import Config
from test_configs import ROOT, find, load_generator, metafiles

from mmcsan import backbones

SMALL = {
    'mmcsan.SwinTransformer': 'swin-min',
    'mmcsan.VisionTransformer': 'vit-tiny',
    'mmcsan.Hiera': 'hiera-tiny',
    'mmcsan.PyramidVisionTransformer': 'pvt-tiny',
    'mmcsan.PolaFormerPP': 'b2',
}
"""A small arch of each backbone."""


def small_backbone(cfg):
    """Options for a small arch, and for what follows from it."""
    backbone = cfg.model.backbone
    options = {'model.backbone.arch': SMALL[backbone.type]}
    if backbone.type == 'mmcsan.Hiera' and 'global_blocks' in backbone:
        options['model.backbone.global_blocks'] = (5, )
    if backbone.type == 'mmcsan.VisionTransformer':
        if cfg.model.neck.type.endswith('SimpleFeaturePyramid'):
            options['model.neck.in_channels'] = 192
        else:
            options.update({
                'model.neck.in_channels': [192] * 4,
                'model.neck.out_channels': 192,
                'model.decode_head.in_channels': [192] * 4,
                'model.auxiliary_head.in_channels': 192
            })
    return options


def classifier(path, cfg):
    """A checkpoint such as the config starts from, smaller."""
    settings = cfg.model.backbone.to_dict()
    cls = getattr(backbones, settings['type'].split('.')[1])
    options = {k: settings[k] for k in ('attention', ) if k in settings}
    model = cls(SMALL[settings['type']], out_indices=(-1, ), **options)
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


def common(data, cfg):
    options = small_backbone(cfg)
    for split in ('train', 'val', 'test'):
        options.update({
            f'{split}_dataloader.num_workers': 0,
            f'{split}_dataloader.persistent_workers': False,
            f'{split}_dataloader.dataset.data_root': str(data)
        })
    return options


def shrink_imagenet(cfg, data):
    return {
        'train_dataloader.batch_size': 2,
        'val_dataloader.batch_size': 2,
        'train_dataloader.dataset.ann_file': 'meta/train.txt',
        'val_dataloader.dataset.ann_file': 'meta/val.txt',
        'test_dataloader.dataset.ann_file': 'meta/val.txt',
        'train_cfg.max_epochs': 1,
        'train_cfg.val_interval': 1
    }


BY_ITERATION = {
    'train_cfg.max_iters': 2,
    'train_cfg.val_interval': 2,
    'train_dataloader.batch_size': 2,
    'default_hooks.checkpoint.interval': 2,
}


def shrink_ade20k(cfg, data):
    pipeline = cfg.train_dataloader.dataset.pipeline
    options = {
        **BY_ITERATION,
        **small_scales(pipeline, 'train_dataloader.dataset.pipeline',
                       (64, 64)),
        'model.data_preprocessor.size': (64, 64),
        'val_dataloader.dataset.pipeline.1.scale': (80, 64),
        'test_dataloader.dataset.pipeline.1.scale': (80, 64)
    }
    if cfg.model.decode_head.type == 'Mask2FormerHead':
        return {
            **small_decoders('model.decode_head'),
            'model.decode_head.train_cfg.num_points': 64,
            **options
        }
    return {'model.decode_head.channels': 16, **options}


def small_decoders(key):
    """Options for the decoders of Mask2Former."""
    return {
        f'{key}.pixel_decoder.encoder.num_layers': 1,
        f'{key}.transformer_decoder.num_layers': 1,
        f'{key}.num_queries': 8
    }


def shrink_coco(cfg, data):
    annotations = f'{data}/annotations/instances_val2017.json'
    options = BY_ITERATION if 'max_iters' in cfg.train_cfg else {
        'train_cfg.max_epochs': 1,
        'train_cfg.val_interval': 1
    }
    options = {
        **options,
        'val_dataloader.dataset.pipeline.1.scale': (96, 64),
        'test_dataloader.dataset.pipeline.1.scale': (96, 64),
        'val_evaluator.ann_file': annotations,
        'test_evaluator.ann_file': annotations
    }
    options.update(small_scales(
        cfg.train_dataloader.dataset.pipeline,
        'train_dataloader.dataset.pipeline'))
    if 'batch_augments' in cfg.model.data_preprocessor:
        options['model.data_preprocessor.batch_augments.0.size'] = (96, 96)
    # Without a threshold there are boxes to score after a step, too.
    if cfg.model.type == 'RetinaNet':
        return {'model.test_cfg.score_thr': 0.0, **options}
    if cfg.model.type == 'Mask2Former':
        return {
            **small_decoders('model.panoptic_head'),
            'model.train_cfg.num_points': 64,
            **options
        }
    if cfg.model.type == 'DINO':
        return {
            'model.num_queries': 16,
            'model.encoder.num_layers': 1,
            'model.decoder.num_layers': 1,
            'model.dn_cfg.group_cfg.num_dn_queries': 4,
            **options
        }
    samplers = cfg.model.train_cfg.rcnn
    places = [f'.{i}' for i in range(len(samplers))] if isinstance(
        samplers, list) else ['']
    return {
        'model.test_cfg.rcnn.score_thr': 0.0,
        'model.test_cfg.rcnn.max_per_img': 8,
        'model.test_cfg.rpn.max_per_img': 16,
        'model.train_cfg.rpn_proposal.max_per_img': 32,
        **{f'model.train_cfg.rcnn{i}.sampler.num': 16 for i in places},
        **{f'model.roi_head.bbox_head{i}.fc_out_channels': 16 for i in places},
        **options
    }


def small_scales(pipeline, key, crop=(32, 48)):
    """Options for every transform that resizes or crops."""
    options = {}
    for index, step in enumerate(pipeline):
        here = f'{key}.{index}'
        if isinstance(step, (list, tuple)):
            options.update(small_scales(step, here, crop))
        elif 'transforms' in step:
            options.update(
                small_scales(step.transforms, f'{here}.transforms', crop))
        elif 'scales' in step:
            options[f'{here}.scales'] = (
                [48, 64] if step.get('resize_type') == 'ResizeShortestEdge'
                else [(48, 96), (64, 96)])
        elif 'scale' in step:
            options[f'{here}.scale'] = (96, 64)
        elif 'crop_size' in step:
            options[f'{here}.crop_size'] = crop
    return options


KINDS = {
    'ImageNet': (fake_data.imagenet, shrink_imagenet, 'accuracy/top1'),
    'ADE20KDataset': (fake_data.ade20k, shrink_ade20k, 'mIoU'),
    'CocoDataset': (fake_data.coco, shrink_coco, 'coco/bbox_mAP'),
}


def by_size():
    """The configs that metafiles list, from few parameters to many."""
    sizes = {
        ROOT / model['Config']: model['Metadata']['Parameters']
        for path in metafiles()
        for model in yaml.safe_load(path.read_text())['Models']
    }
    return sorted(sizes, key=sizes.get)


def one_of_each():
    """The smallest config of each task, schedule, backbone and attention.

    The plain arms share all but the attention with another config, so that
    one of each backbone does.
    """
    found, stem = {}, load_generator().STEM
    for path in by_size():
        name = stem.fullmatch(path.stem)
        backbone = Config.fromfile(path).model.backbone.type
        task = name['method'], name['schedule'], name['data']
        family = path.parent.name, backbone
        key = family if family[0] == 'baseline' else (*family, *task)
        found.setdefault(key, path)
    return list(found.values())


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


def shrunk(path, folder):
    """Options that make a config small, and where its data is written."""
    cfg = Config.fromfile(path)
    make, shrink, metric = KINDS[cfg.dataset_type]
    data = folder / 'data'
    make(data)
    options = {**common(data, cfg), **shrink(cfg, data)}
    if 'init_cfg' in cfg.model.backbone:
        options['model.backbone.init_cfg.checkpoint'] = str(
            classifier(folder / 'classifier.pth', cfg))
    return cfg, options, metric


@pytest.mark.parametrize('path', one_of_each(), ids=lambda p: p.stem)
def test_trains_and_validates(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    from _common import build_runner
    cfg, options, metric = shrunk(path, tmp_path)
    cfg.merge_from_dict(options)
    if cfg.optim_wrapper.type == 'AmpOptimWrapper':  # needs a GPU
        cfg.optim_wrapper.type = 'OptimWrapper'
        cfg.optim_wrapper.pop('dtype')
    cfg.launcher, cfg.work_dir = 'none', str(tmp_path / 'run')
    runner = build_runner(cfg)
    runner.train()
    assert runner.iter >= 2
    score = runner.message_hub.get_scalar(f'val/{metric}').current()
    assert 0 <= score <= 100 or score == -1
    [log] = (tmp_path / 'run').glob('*/*.log')
    starts = 'model.backbone.init_cfg.checkpoint' in options
    assert ('matched' in log.read_text()
            and '(100%)' in log.read_text()) == starts
    for name, param in runner.model.named_parameters():
        assert param.isfinite().all(), name
        # The optimizer has seen a gradient of it.
        assert param in runner.optim_wrapper.optimizer.state, name


def test_tools_train_and_test_shrunk_by_options_alone(tmp_path):
    path = find('pola-pvt-tiny_semantic-fpn_8xb4-40k_ade20k-512x512')
    _, options, metric = shrunk(path, tmp_path)
    options = [
        f'{key}={value}'.replace(' ', '') for key, value in options.items()
    ]
    out = tool(
        ROOT / 'tools' / 'train.py',
        path,
        '--work-dir',
        tmp_path / 'run',
        '--cfg-options',
        *options,
        cwd=tmp_path)
    assert 'matched' in out and '(100%)' in out
    [saved] = (tmp_path / 'run').glob('*_2.pth')
    tool(
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
    assert 0 <= metrics[metric] <= 100
