"""Every parameter's learning rate and weight decay, in every kind of model."""
import copy
import logging
import re

import pytest
import torch
import torch.nn as nn
from mmengine.config import ConfigDict
from mmengine.logging import MMLogger
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from mmcsan.engine import LayerDecayOptimWrapperConstructor, find_backbones

LR, DECAY, RATE = 1e-2, 0.05, 0.5
ARCH = dict(embed_dims=16, depths=[1, 2, 1, 1], num_heads=[1, 1, 2, 4])
LAST = 6  # five blocks between the stem and all that follows
SWIN = dict(type='mmcsan.SwinTransformer', arch=ARCH, window_size=2)
FOREIGN = dict(
    type='mmdet.SwinTransformer',
    embed_dims=16,
    depths=[1, 2, 1, 1],
    num_heads=[1, 1, 2, 4],
    window_size=2)
PLUGGED = dict(
    type='mmcsan.PluggedBackbone',
    backbone=FOREIGN,
    attention=dict(type='CSaN', init='identity'))
WIDTHS = [16, 32, 64, 128]
FPN = dict(type='mmdet.FPN', in_channels=WIDTHS, out_channels=8, num_outs=5)
RPN = dict(
    type='mmdet.RPNHead',
    in_channels=8,
    feat_channels=8,
    anchor_generator=dict(
        type='mmdet.AnchorGenerator',
        scales=[8],
        ratios=[1.],
        strides=[4, 8, 16, 32, 64]))


def last_stage(backbone):
    if 'backbone' in backbone:
        return dict(backbone, backbone=last_stage(backbone['backbone']))
    return dict(backbone, out_indices=(3, ))


def classifier(backbone):
    return dict(
        type='mmpretrain.ImageClassifier',
        backbone=last_stage(backbone),
        neck=dict(type='mmpretrain.GlobalAveragePooling'),
        head=dict(
            type='mmpretrain.LinearClsHead', num_classes=3, in_channels=128))


def segmentor(backbone):
    return dict(
        type='mmseg.EncoderDecoder',
        backbone=backbone,
        decode_head=dict(
            type='mmseg.FCNHead',
            in_channels=128,
            in_index=3,
            channels=8,
            num_classes=2,
            norm_cfg=dict(type='BN')),
        train_cfg=dict(),
        test_cfg=dict(mode='whole'))


def retinanet(backbone):
    return dict(
        type='mmdet.RetinaNet',
        backbone=backbone,
        neck=FPN,
        bbox_head=dict(
            type='mmdet.RetinaHead',
            num_classes=2,
            in_channels=8,
            feat_channels=8,
            stacked_convs=1))


def mask_rcnn(backbone):
    roi = dict(
        type='mmdet.SingleRoIExtractor',
        roi_layer=dict(type='RoIAlign', output_size=7),
        out_channels=8,
        featmap_strides=[4, 8, 16, 32])
    return dict(
        type='mmdet.MaskRCNN',
        backbone=backbone,
        neck=FPN,
        rpn_head=RPN,
        roi_head=dict(
            type='mmdet.StandardRoIHead',
            bbox_roi_extractor=roi,
            bbox_head=dict(
                type='mmdet.Shared2FCBBoxHead',
                in_channels=8,
                fc_out_channels=8,
                num_classes=2),
            mask_roi_extractor=roi,
            mask_head=dict(
                type='mmdet.FCNMaskHead',
                num_convs=1,
                in_channels=8,
                conv_out_channels=8,
                num_classes=2)),
        train_cfg=None,
        test_cfg=dict(rpn=dict(), rcnn=dict()))


BUILDERS = dict(
    ImageClassifier=classifier,
    EncoderDecoder=segmentor,
    RetinaNet=retinanet,
    MaskRCNN=mask_rcnn)


def build(kind, backbone=SWIN):
    import mmcsan  # noqa: F401  mmdet needs mmcv's operators
    cfg = ConfigDict(copy.deepcopy(BUILDERS[kind](backbone)))
    scope = cfg.type.split('.')[0]
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg)


def optimizer(model, scope=None, optimizer_cfg=None, **paramwise):
    paramwise.setdefault('layer_decay_rate', RATE)
    cfg = dict(
        type='OptimWrapper',
        optimizer=optimizer_cfg or dict(
            type='AdamW', lr=LR, weight_decay=DECAY),
        constructor='mmcsan.LayerDecayOptimWrapperConstructor',
        paramwise_cfg=paramwise)
    with DefaultScope.overwrite_default_scope(scope):
        return build_optim_wrapper(model, cfg).optimizer


def settings(model, optim):
    """(lr, weight decay) by the name of each parameter in the optimizer."""
    found = {}
    for group in optim.param_groups:
        for param in group['params']:
            assert id(param) not in found
            found[id(param)] = group['lr'], group['weight_decay']
    result = {
        name: found.pop(id(param))
        for name, param in model.named_parameters() if id(param) in found
    }
    assert not found
    return result


def depth_of(name, foreign=False):
    """By hand, from the names alone."""
    name = name.removeprefix('module.').replace('backbone.module', 'backbone')
    if not name.startswith('backbone.'):
        return LAST
    name = name.removeprefix('backbone.')
    first = [0, 1, 3, 4]
    match = re.match(r'stages\.(\d)\.(blocks\.(\d)|downsample)', name)
    if match is None:
        return LAST if name.startswith('norm') else 0
    stage = int(match[1])
    if match[3] is not None:
        return first[stage] + int(match[3]) + 1
    # A map is halved in front of our stages, behind mmdet's.
    return first[stage + 1] if foreign else first[stage]


def check(model, optim, expect_decay=lambda name: DECAY, foreign=False,
          lr_mult=lambda name: 1.):
    found = settings(model, optim)
    assert set(found) == {
        n for n, p in model.named_parameters() if p.requires_grad
    }
    for name, (lr, decay) in found.items():
        depth = depth_of(name, foreign)
        expect = LR * lr_mult(name) * RATE**(LAST - depth)
        assert lr == pytest.approx(expect, rel=1e-9), name
        assert decay == pytest.approx(expect_decay(name), rel=1e-9), name
    return found


@pytest.mark.parametrize('foreign', [False, True])
@pytest.mark.parametrize('kind', BUILDERS)
def test_every_parameter_in_every_kind_of_model(kind, foreign):
    model = build(kind, PLUGGED if foreign else SWIN)
    scope = type(model).__module__.split('.')[0]
    optim = optimizer(model, scope)
    found = check(model, optim, foreign=foreign)
    assert {depth_of(n, foreign) for n in found} == set(range(LAST + 1))
    # one weight decay for all: a group for each depth
    assert len(optim.param_groups) == LAST + 1


class Wrapper(nn.Module):
    """What a wrapper for distributed training looks like."""

    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.mark.parametrize('foreign', [False, True])
@pytest.mark.parametrize('wrap', ['model', 'backbone', 'both'])
def test_wrappers(wrap, foreign):
    model = build('RetinaNet', PLUGGED if foreign else SWIN)
    if wrap != 'model':
        model.backbone = Wrapper(model.backbone)
    if wrap != 'backbone':
        model = Wrapper(model)
    check(model, optimizer(model), foreign=foreign)


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group(
        'gloo', f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        model = MMDistributedDataParallel(build('RetinaNet'))
        check(model, optimizer(model))
    finally:
        torch.distributed.destroy_process_group()


RULES = dict(
    norm_decay_mult=0.,
    bias_decay_mult=0.5,
    flat_decay_mult=0.25,
    dwconv_decay_mult=0.1,
    custom_keys={
        'relative_position_bias_table': dict(decay_mult=0.),
        'bbox_head': dict(lr_mult=10., decay_mult=2.),
        'bbox_head.retina_cls': dict(lr_mult=3.),
        'stages.1.blocks.0.attn': dict(lr_mult=0.1),
    })


@pytest.mark.parametrize('foreign', [False, True])
def test_rules_and_custom_keys_come_on_top(foreign):
    model = build('RetinaNet', PLUGGED if foreign else SWIN)
    norms = {
        f'{name}.{leaf}'
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm) for leaf in ('weight', 'bias')
    }
    assert len(norms) > 20

    def key_of(name):
        keys = [k for k in RULES['custom_keys'] if k in name]
        return RULES['custom_keys'][max(keys, key=len)] if keys else None

    def decay(name):
        if key_of(name) is not None:
            return DECAY * key_of(name).get('decay_mult', 1.)
        if name in norms:
            return 0.
        return DECAY * (0.5 if name.endswith('.bias') else 1.)

    def lr_mult(name):
        return (key_of(name) or {}).get('lr_mult', 1.)

    optim = optimizer(model, **copy.deepcopy(RULES))
    found = check(model, optim, decay, foreign, lr_mult)
    assert len(optim.param_groups) == len(set(found.values()))
    for group in optim.param_groups:
        assert not {'lr_mult', 'decay_mult'} & set(group)


def test_flat_and_depthwise_rules():
    model = nn.Module()
    model.backbone = Staircase()
    optim = optimizer(model, flat_decay_mult=0., dwconv_decay_mult=0.5)
    found = settings(model, optim)
    assert found['backbone.stem.weight'] == (LR * RATE**2, DECAY / 2)
    assert found['backbone.gain'] == (LR * RATE, 0.)
    assert found['backbone.top.weight'] == (LR, DECAY)


class Staircase(nn.Module):
    """Three depths."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, 4, 3, groups=4)
        self.gain = nn.Parameter(torch.ones(4))
        self.top = nn.Linear(4, 4)

    def get_layer_depth(self, param_name, prefix=''):
        if not param_name.startswith(prefix):
            return 2, 3
        part = param_name[len(prefix):].split('.')[0]
        return dict(stem=0, gain=1, top=2)[part], 3


def test_frozen_parameters_stay_out_before_train_is_called():
    for backbone in (SWIN, PLUGGED):
        if 'backbone' in backbone:
            backbone = dict(
                backbone, backbone=dict(FOREIGN, frozen_stages=2))
        else:
            backbone = dict(backbone, frozen_stages=2)
        model = build('RetinaNet', backbone)
        names = set(settings(model, optimizer(model)))
        frozen = {n for n, p in model.named_parameters() if n not in names}
        assert frozen == {
            n
            for n, _ in model.named_parameters() if re.match(
                r'backbone\.(patch_embed|stages\.[01]\.|norm[01])', n)
        }


def test_shared_parameters_enter_once():
    model = nn.Module()
    model.backbone = Staircase()
    model.head = nn.Linear(4, 4)
    model.head.weight = model.backbone.top.weight
    found = settings(model, optimizer(model))
    assert found['backbone.top.weight'] == (LR, DECAY)


def test_several_backbones_each_by_its_own_depth():
    model = nn.Module()
    model.student = nn.Module()
    model.student.backbone = Staircase()
    model.encoder = Staircase()
    assert list(find_backbones(model)) == ['student.backbone.', 'encoder.']
    found = settings(model, optimizer(model))
    for prefix in ('student.backbone', 'encoder'):
        assert found[f'{prefix}.stem.bias'][0] == LR * RATE**2
        assert found[f'{prefix}.gain'][0] == LR * RATE


def test_a_backbone_as_the_model():
    model = Staircase()
    assert settings(model, optimizer(model))['stem.bias'][0] == LR * RATE**2


def test_without_weight_decay():
    model = Staircase()
    optim = optimizer(model, optimizer_cfg=dict(type='SGD', lr=LR))
    assert [len(g['params']) for g in optim.param_groups] == [1, 2, 2]


class Recorder(logging.Handler):
    """What reaches a log."""

    def __enter__(self):
        self.lines = []
        MMLogger.get_current_instance().addHandler(self)
        return self.lines

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __exit__(self, *_):
        MMLogger.get_current_instance().removeHandler(self)


def test_the_table_is_logged_once():
    model = build(
        'RetinaNet', dict(SWIN, frozen_stages=1))
    with Recorder() as lines:
        optimizer(model, **copy.deepcopy(RULES))
    tables = [line for line in lines if 'ayer-wise decay' in line]
    assert len(tables) == 1
    assert not any('paramwise_options' in line or 'is skipped' in line
                   for line in lines)
    rows = tables[0].splitlines()[2:]
    depths = [int(row.split()[0]) for row in rows]
    assert depths == sorted(depths) and set(depths) == {1, 2, 3, 4, 5, 6}
    total = sum(int(row.split()[3]) for row in rows)
    assert total == sum(p.requires_grad for p in model.parameters())
    assert len(rows) == len(set(rows))


def test_it_trains_and_resumes():
    model = build('ImageClassifier')
    optim = optimizer(model, norm_decay_mult=0.)
    for _ in range(2):
        optim.zero_grad()
        model(torch.rand(1, 3, 32, 32))[-1].square().mean().backward()
        optim.step()
    again = optimizer(model, norm_decay_mult=0.)
    again.load_state_dict(optim.state_dict())
    assert settings(model, again) == settings(model, optim)


@pytest.mark.parametrize('kind', ['EncoderDecoder', 'RetinaNet'])
def test_a_backbone_without_the_method_is_named(kind):
    model = build(kind, FOREIGN)
    with pytest.raises(TypeError) as caught:
        optimizer(model)
    message = str(caught.value)
    assert 'mmdet.models.backbones.swin.SwinTransformer' in message
    assert 'get_layer_depth' in message


def test_a_model_without_any_backbone_is_named():
    with pytest.raises(TypeError, match='Linear has none'):
        optimizer(Wrapper(nn.Linear(2, 2)))


BAD = [
    (dict(layer_decay_rate=None), ValueError, 'layer_decay_rate'),
    (dict(layer_decay_rate=0.), ValueError, 'layer_decay_rate'),
    (dict(layer_decay_rate=1.5), ValueError, 'layer_decay_rate'),
    (dict(decay_rate=.9), TypeError, 'layer_decay_rate'),
    (dict(norm_decay=0.), TypeError, 'norm_decay_mult'),
]


@pytest.mark.parametrize('paramwise, error, word', BAD)
def test_bad_options(paramwise, error, word):
    with pytest.raises(error, match=word):
        optimizer(Staircase(), **paramwise)


def test_an_optimizer_without_lr():
    with pytest.raises(ValueError, match='lr'):
        LayerDecayOptimWrapperConstructor(
            dict(optimizer=dict(type='AdamW')), dict(layer_decay_rate=.5))
