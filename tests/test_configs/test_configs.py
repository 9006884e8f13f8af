"""What holds for every shipped config."""
import re
from functools import lru_cache
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config
from torch.overrides import TorchFunctionMode

import mmcsan  # noqa: F401  # before mmdet: it may lack mmcv's operators

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted(
    path for path in (ROOT / 'configs').rglob('*.py')
    if '_base_' not in path.parts)
FOLDERS = ('csan', 'pola', 'polaformer_pp', 'baseline')
ZOO = [path for path in CONFIGS if path.parent.name in FOLDERS]
"""Those that a metafile lists."""


def find(stem):
    [path] = [p for p in CONFIGS if p.stem == stem]
    return path


def models(scope):
    if scope == 'mmdet':
        from mmdet.registry import MODELS
    elif scope == 'mmseg':
        from mmseg.registry import MODELS
    else:
        from mmpretrain.registry import MODELS
    return MODELS


class _NoInitialization(TorchFunctionMode):
    """Without values there is nothing to draw; drawing it takes half of a
    build."""

    FILLS = {
        'uniform_', 'normal_', 'erfinv_', 'mul_', 'add_', 'clamp_', 'fill_',
        'zero_', 'copy_'
    }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, '__name__', '') in self.FILLS:
            return args[0] if args else kwargs['tensor']
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=None)
def build(path):
    """The model of a config; without values: nothing here looks at them."""
    cfg = Config.fromfile(path)
    registry = models(cfg.default_scope)
    with registry.switch_scope_and_registry(
            cfg.default_scope) as registry, torch.device(
                'meta'), _NoInitialization():
        return registry.build(cfg.model)


def test_names_are_unique():
    names = [p.name for p in (ROOT / 'configs').rglob('*.py')]
    assert len(names) == len(set(names)) > 10


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_parses_and_says_its_batch_size(path):
    cfg = Config.fromfile(path)
    assert 'custom_imports' not in cfg
    match = re.search(r'_(\d+)xb(\d+)[-_]', path.stem)
    assert match, f'{path.name} does not tell GPUs x batch'
    gpus, samples = map(int, match.groups())
    assert cfg.train_dataloader.batch_size == samples
    assert cfg.auto_scale_lr.base_batch_size == gpus * samples
    assert cfg.auto_scale_lr.enable is False


def expected_attentions(stem):
    """The classes of the attentions of each stage."""
    if stem.startswith('csan'):
        return ['CSaN'] * 4
    if stem.startswith('pola-swin'):
        return ['Pola', 'Pola', 'Softmax', 'Softmax']
    if stem.startswith('pola-pvt'):
        return ['Pola'] * 4
    if stem.startswith('polaformer-pp'):
        return ['PolaPP', 'PolaPP', 'PolaPPSoftmax', 'PolaPPSoftmax']
    return ['Softmax'] * 4


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_builds_and_uses_an_attention(path):
    model = build(path)
    backbone = model.backbone
    assert type(backbone).__module__.startswith('mmcsan.')
    found = [type(a).__name__ for a in backbone.attentions()]
    stages = expected_attentions(path.stem)
    backbone_cfg = Config.fromfile(path).model.backbone
    if len(backbone.depths) == len(stages):
        each = 2 if backbone_cfg.get('ffn') == 'attention' else 1
        assert found == [
            name for name, depth in zip(stages, backbone.depths)
            for _ in range(each * depth)
        ]
    else:  # a plain backbone is a stage
        assert found == stages[:1] * sum(backbone.depths)
    reader = first_reader(Config.fromfile(path).model)
    if isinstance(reader.get('in_channels'), list):
        assert reader.in_channels == backbone.out_channels


def first_reader(cfg):
    """The config of what takes the maps of the backbone."""
    for name in ('neck', 'decode_head', 'panoptic_head', 'head'):
        if name in cfg:
            return cfg[name]


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_nothing_is_built_that_nothing_reads(path):
    """Else several GPUs need find_unused_parameters."""
    backbone = Config.fromfile(path).model.backbone
    neck = Config.fromfile(path).model.get('neck') or {}
    if 'start_level' in neck:
        assert neck.start_level == 0
        assert len(backbone.out_indices) == len(neck.in_channels)


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_downstream_starts_from_a_classifier(path):
    cfg = Config.fromfile(path)
    if cfg.default_scope == 'mmpretrain':
        return
    init = cfg.model.backbone.init_cfg
    assert init.type == 'mmcsan.PretrainedClassifier' and init.checkpoint


def plain_twins():
    for path in CONFIGS:
        folder = path.parent.name
        twin = ROOT / 'configs' / 'baseline' / path.name.replace(
            f'{folder}-', '', 1)
        if folder in ('csan', 'pola'):
            yield pytest.param(path, twin, id=path.stem)


@pytest.mark.parametrize('path, twin', list(plain_twins()))
def test_plain_arm_differs_in_attention_and_weights_alone(path, twin):
    ours, plain = (Config.fromfile(p).to_dict() for p in (path, twin))
    attentions = []
    for cfg in (ours, plain):
        attentions.append(cfg['model']['backbone'].pop('attention'))
        cfg['model']['backbone'].pop('init_cfg', None)
        cfg.pop('pretrained', None)
    assert attentions[0] != attentions[1]
    assert attentions[1] in ('Softmax', dict(type='Softmax'))
    assert ours == plain


# (config, key, value): the recipes, from the sources that the READMEs name.
ADE20K = 'upernet_8xb2-160k_ade20k-512x512'
MASK2FORMER = 'mask2former_8xb2-160k_ade20k-512x512'
RECIPES = {
    'csan-swin-tiny_8xb256-300e_in1k': {
        'optim_wrapper.optimizer.lr': 2e-3,
        'optim_wrapper.optimizer.type': 'AdamW',
        'optim_wrapper.optimizer.weight_decay': 0.05,
        'optim_wrapper.dtype': 'bfloat16',
        'train_cfg.max_epochs': 310,
        'model.backbone.drop_path_rate': 0.2,
        'train_dataloader.sampler.num_repeats': 3,
    },
    f'csan-swin-tiny_{ADE20K}': {
        'optim_wrapper.optimizer.lr': 6e-5,
        'optim_wrapper.optimizer.weight_decay': 0.01,
        'train_cfg.max_iters': 160000,
        'model.backbone.drop_path_rate': 0.3,
        'crop_size': (512, 512),
    },
    'csan-swin-tiny_mask-rcnn_8xb2-1x_coco': {
        'optim_wrapper.optimizer.lr': 1e-4,
        'optim_wrapper.optimizer.weight_decay': 0.05,
        'train_cfg.max_epochs': 12,
        'model.backbone.drop_path_rate': 0.2,
    },
    'csan-swin-small_8xb256-300e_in1k': {
        'model.backbone.drop_path_rate': 0.3
    },
    'csan-swin-base_cascade-mask-rcnn_8xb2-ms-crop-3x_coco': {
        'model.type': 'CascadeRCNN',
        'model.backbone.drop_path_rate': 0.3,
        'train_cfg.max_epochs': 36,
    },
    f'csan-swin-small_{MASK2FORMER}': {
        'optim_wrapper.optimizer.lr': 1e-4,
        'optim_wrapper.optimizer.weight_decay': 0.05,
        'optim_wrapper.clip_grad.max_norm': 0.01,
        'param_scheduler.0.power': 0.9,
        'train_cfg.max_iters': 160000,
        'model.backbone.drop_path_rate': 0.3,
        'train_dataloader.dataset.pipeline.2.scales':
        [int(51.2 * x) for x in range(5, 21)],
    },
    'csan-swin-tiny_mask2former_8xb2-lsj-50e_coco': {
        'optim_wrapper.optimizer.lr': 1e-4,
        'optim_wrapper.optimizer.weight_decay': 0.05,
        'train_cfg.max_iters': 368750,
        'param_scheduler.0.milestones': [327778, 355092],
        'default_hooks.checkpoint.by_epoch': False,
        'image_size': (1024, 1024),
    },
    'csan-swin-tiny_dino-4scale_8xb2-12e_coco': {
        'optim_wrapper.optimizer.lr': 1e-4,
        'optim_wrapper.optimizer.weight_decay': 1e-4,
        'optim_wrapper.clip_grad.max_norm': 0.1,
        'optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult': 0.1,
        'param_scheduler.0.milestones': [11],
        'train_cfg.max_epochs': 12,
        'model.backbone.out_indices': (1, 2, 3),
    },
    'csan-vit-base_mask-rcnn_8xb8-lsj-100e_coco': {
        'optim_wrapper.optimizer.lr': 1e-4,
        'optim_wrapper.optimizer.weight_decay': 0.1,
        'optim_wrapper.paramwise_cfg.layer_decay_rate': 0.7,
        'train_cfg.max_iters': 184375,
        'param_scheduler.0.end': 250,
        'param_scheduler.1.milestones': [163889, 177546],
        'model.backbone.window_size': 14,
        'model.backbone.global_blocks': (2, 5, 8, 11),
        'model.backbone.drop_path_rate': 0.1,
        'model.rpn_head.num_convs': 2,
        'image_size': (1024, 1024),
    },
    'csan-swin-tiny_retinanet_8xb2-1x_coco': {
        'optim_wrapper.optimizer.lr': 0.01,
        'optim_wrapper.optimizer.type': 'SGD',
        'model.backbone.out_indices': (1, 2, 3),
        'model.neck.start_level': 0,
    },
    'pola-swin-small_8xb128-300e_in1k': {
        # 5e-4 for each 512 images
        'optim_wrapper.optimizer.lr': 5e-4 * 8 * 128 / 512,
        'optim_wrapper.optimizer.weight_decay': 0.05,
        'optim_wrapper.clip_grad.max_norm': 5.0,
        'optim_wrapper.dtype': 'bfloat16',
        'train_cfg.max_epochs': 300,
        'param_scheduler.0.end': 20,
        'model.backbone.drop_path_rate': 0.3,
        'model.head.in_channels': 768,
    },
    'pola-swin-tiny_8xb128-300e_in1k': {
        'model.backbone.drop_path_rate': 0.2
    },
    'pola-swin-base_8xb128-300e_in1k': {
        'model.backbone.drop_path_rate': 0.5,
        'model.head.in_channels': 1024,
    },
    'pola-pvt-small_8xb128-300e_in1k': {
        'model.backbone.drop_path_rate': 0.1
    },
    'pola-pvt-medium_8xb128-300e_in1k': {
        'model.backbone.drop_path_rate': 0.3
    },
    'polaformer-pp-b2_8xb128-300e_in1k': {
        'model.backbone.drop_path_rate': 0.1
    },
    'polaformer-pp-b3_8xb128-300e_in1k': {
        'model.backbone.drop_path_rate': 0.15
    },
    'pola-swin-tiny_mask-rcnn_8xb2-ms-crop-3x_coco': {
        'optim_wrapper.optimizer.lr': 1e-4,
        'optim_wrapper.optimizer.weight_decay': 0.05,
        'train_cfg.max_epochs': 36,
        'param_scheduler.0.end': 1000,
        'param_scheduler.1.end': 36,
        'param_scheduler.1.milestones': [27, 33],
        'model.backbone.drop_path_rate': 0.2,
        'train_dataloader.dataset.pipeline.3.type': 'RandomChoice',
    },
    'pola-swin-base_cascade-mask-rcnn_8xb2-ms-crop-3x_coco': {
        'model.type': 'CascadeRCNN',
        'model.backbone.drop_path_rate': 0.3,
        'model.roi_head.bbox_head.2.num_shared_convs': 4,
        'model.roi_head.bbox_head.2.num_shared_fcs': 1,
        'model.roi_head.bbox_head.2.reg_decoded_bbox': True,
        'model.roi_head.bbox_head.2.norm_cfg.type': 'SyncBN',
        'model.roi_head.bbox_head.2.loss_bbox.type': 'GIoULoss',
        'model.roi_head.bbox_head.2.loss_bbox.loss_weight': 10.,
        'model.train_cfg.rcnn.2.assigner.pos_iou_thr': 0.7,
    },
    f'pola-swin-base_{ADE20K}': {
        'optim_wrapper.optimizer.lr': 6e-5,
        'param_scheduler.0.end': 1500,
        'model.backbone.drop_path_rate': 0.3,
    },
    'pola-pvt-small_retinanet_8xb2-1x_coco': {
        'optim_wrapper.optimizer.type': 'AdamW',
        'optim_wrapper.optimizer.lr': 1e-4,
        'optim_wrapper.optimizer.weight_decay': 1e-4,
        'param_scheduler.1.milestones': [8, 11],
        'model.neck.add_extra_convs': 'on_input',
    },
    'pola-pvt-small_mask-rcnn_8xb2-1x_coco': {
        'optim_wrapper.optimizer.lr': 2e-4,
        'optim_wrapper.optimizer.weight_decay': 1e-4,
    },
    'pola-pvt-small_semantic-fpn_8xb4-40k_ade20k-512x512': {
        'optim_wrapper.optimizer.lr': 2e-4,
        'optim_wrapper.optimizer.weight_decay': 1e-4,
        'train_cfg.max_iters': 40000,
        'param_scheduler.0.power': 0.9,
        'param_scheduler.0.begin': 0,
        'param_scheduler.0.eta_min': 0.,
    },
}


@pytest.mark.parametrize('name', RECIPES)
def test_recipe(name):
    for key, value in RECIPES[name].items():
        cfg = Config.fromfile(find(name))
        for part in key.split('.'):
            cfg = cfg[int(part) if part.isdigit() else part]
        assert cfg == value, key


def load_generator():
    import importlib.util
    path = ROOT / 'tools' / 'dev' / 'make_metafiles.py'
    spec = importlib.util.spec_from_file_location('make_metafiles', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metafiles():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    return [ROOT / name for name in index['Import']]


def test_every_config_is_in_a_metafile():
    listed = {}
    for path in metafiles():
        meta = yaml.safe_load(path.read_text())
        collections = {c['Name'] for c in meta['Collections']}
        for model in meta['Models']:
            assert model['In Collection'] in collections
            assert Path(model['Config']).stem == model['Name']
            assert (ROOT / model['Config']).is_file()
            assert model['Name'] not in listed
            listed[model['Name']] = model
    assert set(listed) == {p.stem for p in ZOO}


def test_metafiles_count_parameters():
    for path in metafiles():
        for model in yaml.safe_load(path.read_text())['Models']:
            net = build(ROOT / model['Config'])
            params = sum(p.numel() for p in net.parameters())
            assert model['Metadata']['Parameters'] == params, model['Name']
            for result in model.get('Results') or []:
                assert result['Source'], 'a score names where it comes from'


def test_metafiles_and_tables_are_fresh():
    """If not: python tools/dev/make_metafiles.py"""
    stale = load_generator().update(
        write=False,
        count=lambda path: sum(p.numel() for p in build(path).parameters()))
    assert not stale, (f'{", ".join(map(str, stale))}: run python '
                       'tools/dev/make_metafiles.py')


def test_no_score_of_pola_downstream_is_claimed_as_the_papers():
    for folder in ('pola', 'polaformer_pp'):
        path = ROOT / 'configs' / folder / 'metafile.yml'
        for model in yaml.safe_load(path.read_text())['Models']:
            for result in model['Results']:
                if result['Dataset'] != 'ImageNet-1k':
                    assert 'secondary source' in result['Source']
