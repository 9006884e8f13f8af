"""What holds for every shipped config."""
import re
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted(
    path for path in (ROOT / 'configs').rglob('*.py')
    if '_base_' not in path.parts)



def models(scope):
    if scope == 'mmdet':
        from mmdet.registry import MODELS
    elif scope == 'mmseg':
        from mmseg.registry import MODELS
    else:
        from mmpretrain.registry import MODELS
    return MODELS


def build(cfg):
    registry = models(cfg.default_scope)
    # Without values: nothing here looks at them.
    with registry.switch_scope_and_registry(
            cfg.default_scope) as registry, torch.device('meta'):
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


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_builds_and_uses_an_attention(path):
    cfg = Config.fromfile(path)
    model = build(cfg)
    backbone = model.backbone
    assert type(backbone).__module__.startswith('mmcsan.')
    assert len(backbone.attentions()) == sum(backbone.depths)
    plain = not path.stem.startswith('csan')
    assert {type(a).__name__ for a in backbone.attentions()} == {
        'Softmax' if plain else 'CSaN'}
    outputs = getattr(model, 'neck', None)
    if hasattr(outputs, 'in_channels'):
        assert outputs.in_channels == backbone.out_channels


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_downstream_starts_from_a_classifier(path):
    cfg = Config.fromfile(path)
    if cfg.default_scope == 'mmpretrain':
        return
    init = cfg.model.backbone.init_cfg
    assert init.type == 'mmcsan.PretrainedClassifier' and init.checkpoint


def plain_twins():
    for path in CONFIGS:
        twin = ROOT / 'configs' / 'baseline' / path.name.replace('csan-', '')
        if path.parent.name == 'csan':
            yield pytest.param(path, twin, id=path.stem)


@pytest.mark.parametrize('path, twin', list(plain_twins()))
def test_plain_arm_differs_in_attention_and_weights_alone(path, twin):
    ours, plain = (Config.fromfile(p).to_dict() for p in (path, twin))
    for cfg in (ours, plain):
        cfg['model']['backbone'].pop('attention')
        cfg['model']['backbone'].pop('init_cfg', None)
        cfg.pop('pretrained', None)
    assert ours == plain


# (config, key, value): the recipes, from the sources that docs name.
RECIPES = [
    ('csan-swin-tiny_8xb256-300e_in1k', 'optim_wrapper.optimizer.lr', 2e-3),
    ('csan-swin-tiny_8xb256-300e_in1k', 'optim_wrapper.optimizer.type',
     'AdamW'),
    ('csan-swin-tiny_8xb256-300e_in1k',
     'optim_wrapper.optimizer.weight_decay', 0.05),
    ('csan-swin-tiny_8xb256-300e_in1k', 'optim_wrapper.dtype', 'bfloat16'),
    ('csan-swin-tiny_8xb256-300e_in1k', 'train_cfg.max_epochs', 310),
    ('csan-swin-tiny_8xb256-300e_in1k', 'model.backbone.drop_path_rate', 0.2),
    ('csan-swin-tiny_8xb256-300e_in1k',
     'train_dataloader.sampler.num_repeats', 3),
    ('csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512',
     'optim_wrapper.optimizer.lr', 6e-5),
    ('csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512',
     'optim_wrapper.optimizer.weight_decay', 0.01),
    ('csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512',
     'train_cfg.max_iters', 160000),
    ('csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512',
     'model.backbone.drop_path_rate', 0.3),
    ('csan-swin-tiny_upernet_8xb2-160k_ade20k-512x512', 'crop_size',
     (512, 512)),
    ('csan-swin-tiny_mask-rcnn_8xb2-1x_coco', 'optim_wrapper.optimizer.lr',
     1e-4),
    ('csan-swin-tiny_mask-rcnn_8xb2-1x_coco',
     'optim_wrapper.optimizer.weight_decay', 0.05),
    ('csan-swin-tiny_mask-rcnn_8xb2-1x_coco', 'train_cfg.max_epochs', 12),
    ('csan-swin-tiny_mask-rcnn_8xb2-1x_coco',
     'model.backbone.drop_path_rate', 0.2),
    ('csan-swin-tiny_retinanet_8xb2-1x_coco', 'optim_wrapper.optimizer.lr',
     0.01),
    ('csan-swin-tiny_retinanet_8xb2-1x_coco', 'optim_wrapper.optimizer.type',
     'SGD'),
    ('csan-swin-tiny_retinanet_8xb2-1x_coco', 'model.backbone.out_indices',
     (1, 2, 3)),
    ('csan-swin-tiny_retinanet_8xb2-1x_coco', 'model.neck.start_level', 0),
]


@pytest.mark.parametrize('name, key, value', RECIPES)
def test_recipe(name, key, value):
    cfg = Config.fromfile(ROOT / 'configs' / 'csan' / f'{name}.py')
    for part in key.split('.'):
        cfg = cfg[part]
    assert cfg == value


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_no_decay_keys_hit_what_they_mean(path):
    """Keys match by substring: 'norm' must hit norms and nothing else."""
    cfg = Config.fromfile(path)
    keys = cfg.optim_wrapper.get('paramwise_cfg', {}).get('custom_keys', {})
    names = [name for name, _ in build(cfg).backbone.named_parameters()]
    for key, value in keys.items():
        if 'decay_mult' not in value:
            continue
        hit = [n for n in names if key in n]
        assert hit, f'{key} hits nothing'
        for name in hit:
            assert re.search(r'(^|\.)(norm\d?|relative_position_bias_table)'
                             r'(\.|$)', name), (key, name)


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
    zoo = {
        p.stem for p in CONFIGS if p.parent.name in ('csan', 'baseline')
    }
    assert set(listed) == zoo


def test_metafiles_count_parameters():
    for path in metafiles():
        for model in yaml.safe_load(path.read_text())['Models']:
            net = build(Config.fromfile(ROOT / model['Config']))
            params = sum(p.numel() for p in net.parameters())
            assert model['Metadata']['Parameters'] == params, model['Name']
            for result in model.get('Results') or []:
                assert result['Source'], 'a score names where it comes from'
