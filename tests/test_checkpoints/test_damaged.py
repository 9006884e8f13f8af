"""A file that lacks one tensor, whichever it is, is never taken for whole."""
import re

import pytest
import test_hiera_formats as hiera
import test_loader as swin
import test_polapp_formats as polapp
import test_pvt_formats as pvt
import test_vit_formats as vit
import torch
from mmengine.model import BaseModule

from mmcsan.attentions import Softmax
from mmcsan.checkpoints import (CheckpointError, convert_checkpoint,
                                load_classification_checkpoint)
from mmcsan.registry import ATTENTIONS, MODELS

LN = dict(type='LN')
MIXED = ['CSaN', 'Softmax']
SWIN = dict(
    type='SwinTransformer', window_size=4, img_size=32,
    arch=dict(embed_dims=24, depths=[1, 1], num_heads=[1, 2]))
VIT = dict(
    type='VisionTransformer', img_size=32, patch_size=8, out_indices=(0, 1),
    arch=dict(embed_dims=24, depth=2, num_heads=3))
HIERA = dict(
    type='Hiera', img_size=32, q_pool=1, window_size=(8, 4),
    arch=dict(embed_dims=24, depths=[1, 1], num_heads=1))
PVT = dict(
    type='PyramidVisionTransformer', img_size=32, norm_cfg=LN,
    arch=dict(embed_dims=[16, 16], depths=[1, 1], num_heads=[1, 2],
              mlp_ratios=[2, 2]))
POLAPP = dict(
    type='PolaFormerPP', img_size=32, mlp_ratio=2,
    arch=dict(embed_dims=[16, 16], depths=[1, 1], num_heads=[1, 2],
              layer_scale=[1, None]))
OWN = [
    dict(backbone, attention=attention) for backbone, attentions in (
        (SWIN, ('CSaN', 'Pola', 'Softmax', 'Scaled', MIXED,
                dict(type='CSaN', posinfo=True))),
        (VIT, ('CSaN', 'Pola', 'Softmax', 'Scaled', MIXED)),
        (HIERA, ('CSaN', 'Pola', 'Softmax', 'Scaled', MIXED)),
        (PVT, ('CSaN', 'Pola', 'Softmax', 'PolaPP', MIXED)),
        (POLAPP, ('PolaPP', 'CSaN', 'Softmax',
                  ['PolaPP', 'PolaPPSoftmax'])),
    ) for attention in attentions
] + [
    dict(SWIN, attention='CSaN', ffn='attention'),
    dict(SWIN, attention='Pola', ffn='attention'),
    dict(SWIN, attention='Softmax', ffn='attention', out_indices=(1, )),
    dict(VIT, attention='Softmax', qk_norm=True, reg_tokens=2,
         init_values=.1, out_indices=(1, )),
    dict(HIERA, attention='Softmax', abs_win_pos_embed=True, abs_pos_size=3,
         init_values=.1, out_indices=(1, )),
    dict(PVT, attention='Softmax', sr_ratios=[2, 1], out_indices=(1, )),
    dict(POLAPP, attention='PolaPP', norm_cfg=None),
]


@pytest.fixture(autouse=True)
def scaled():
    """An attention of others, with a parameter that plain ones lack."""

    @ATTENTIONS.register_module(name='Scaled')
    class Scaled(Softmax):

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.gain = torch.nn.Parameter(torch.ones(self.head_dim))

        def attend(self, q, k, v, x, layout):
            return super().attend(q, k, v, x, layout) * self.gain

    yield
    ATTENTIONS.module_dict.pop('Scaled')


def own(cfg):
    return MODELS.build(dict(cfg, type=f'mmcsan.{cfg["type"]}'))


@pytest.mark.parametrize('cfg', OWN)
def test_own_files_are_whole_or_refused(cfg):
    source, target = own(cfg), own(cfg)
    weights = source.state_dict()
    report = load_classification_checkpoint(target, dict(weights))
    assert report.format.startswith('mmcsan')
    assert report.num_loaded == len(weights)
    assert not report.new and not report.dropped
    for a, b in zip(source.state_dict().values(),
                    target.state_dict().values()):
        assert torch.equal(a, b)
    check_every_loss(target, weights, weights)


def check_every_loss(target, weights, keys):
    for lost in keys:
        rest = {key: value for key, value in weights.items() if key != lost}
        try:
            report = load_classification_checkpoint(target, rest)
        except CheckpointError:
            continue
        pytest.fail(f'{lost} is lost: {report.summary()}')


def test_pure_attention_is_told_from_ffns():
    pure, mlp = (dict(SWIN, attention='CSaN', ffn=ffn)
                 for ffn in ('attention', 'mlp'))
    guess = convert_checkpoint(own(pure).state_dict()).guess_arch()
    assert guess['ffn'] == 'attention'
    assert 'ffn' not in convert_checkpoint(own(mlp).state_dict()).guess_arch()
    for one, other in ((pure, mlp), (mlp, pure)):
        with pytest.raises(CheckpointError, match="set 'ffn'"):
            load_classification_checkpoint(own(one), own(other).state_dict())


FOREIGN = {
    'CSaN Swin': (lambda: swin.build('CSaN'), swin.to_authors),
    'plain Swin': (swin.build, swin.to_authors),
    'ViT of timm': (vit.build, vit.timm),
    'ViT of timm, pooled': (vit.build, lambda w: vit.timm(w, 'fc_norm.')),
    'ViT of mmpretrain': (vit.build, vit.mmpretrain),
    'Hiera of timm': (hiera.build, hiera.timm),
    'PVT, plain': (lambda: pvt.build(norm_cfg=LN), pvt.foreign),
    'PVT of PolaFormer': (lambda: pvt.build('Pola'), pvt.foreign),
    'PolaFormer++, dense': (polapp.build, lambda m: polapp.foreign(m, True)),
    'PolaFormer++': (polapp.build, lambda m: polapp.foreign(m, False)),
}


def foreign(name):
    build, rename = FOREIGN[name]
    model = build()
    by_weights = build.__module__ in (vit.__name__, hiera.__name__)
    return model, rename(model.state_dict() if by_weights else model)


@pytest.mark.parametrize('name', FOREIGN)
def test_files_of_others_are_whole_or_refused(name):
    target, weights = foreign(name)
    report = load_classification_checkpoint(target, dict(weights))
    assert report.coverage == 1 and report.num_loaded
    # One of each kind, whatever its numbers are.
    kinds = {re.sub(r'\d+', 'N', key): key for key in weights
             if key not in report.dropped}
    check_every_loss(target, weights, kinds.values())


@pytest.mark.parametrize('name', FOREIGN)
def test_what_is_converted_loads_as_the_original_does(name):
    target, weights = foreign(name)
    first = load_classification_checkpoint(target, dict(weights))
    converted = convert_checkpoint(dict(weights)).weights
    again = load_classification_checkpoint(target, dict(converted))
    assert again.format.startswith('mmcsan')
    assert sorted(again.matched) == sorted(first.matched)
    assert sorted(again.new) == sorted(first.new)


@pytest.mark.parametrize('name', ['PVT, plain', 'PolaFormer++',
                                  'Hiera of timm', 'ViT of timm, pooled'])
@pytest.mark.parametrize('part', ['weight', 'bias'])
def test_half_a_norm_beside_none_is_damage(name, part):
    target, weights = foreign(name)
    converted = convert_checkpoint(dict(weights)).weights
    last = max(key for key in target.state_dict() if key.startswith('norm'))
    norm = last.partition('.')[0]
    converted[f'{norm}.{part}'] = target.state_dict()[f'{norm}.{part}']
    with pytest.raises(CheckpointError, match=norm):
        load_classification_checkpoint(target, converted)


class Tables(BaseModule):
    """Positions as a table and as a map."""

    def __init__(self, side):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(1, side * side, 24))
        self.map = torch.nn.Parameter(torch.zeros(1, 24, side, side))
        self.position_grids = dict(table=(side, side), map=(side, side))


@pytest.mark.parametrize('name, shape', [
    ('table', (2, 16, 24)),
    ('table', (4, 4, 24)),
    ('table', (2, 8, 24)),
    ('map', (2, 24, 4, 4)),
    ('map', (1, 12, 4, 4)),
    ('map', (24, 1, 4, 4)),
])
@pytest.mark.parametrize('side', [4, 5])
def test_several_tables_are_not_one(name, shape, side):
    target = own(dict(SWIN, attention='Softmax'))
    target.stages[0].extra = Tables(side)
    weights = target.state_dict()
    key = f'stages.0.extra.{name}'
    weights[key] = torch.rand(shape)
    with pytest.raises(CheckpointError, match=key):
        load_classification_checkpoint(target, weights)
    weights[key] = torch.rand((1, 16, 24) if name == 'table' else
                              (1, 24, 4, 4))
    assert load_classification_checkpoint(target, weights).coverage == 1
