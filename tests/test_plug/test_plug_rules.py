"""Where attentions are plugged in, what is refused, what passes through."""
import copy

import pytest
import torch
import torch.nn as nn
from foreign_networks import (HOSTS, IDENTITY, VIT, image, outputs, own_names,
                              plugged_cfg, provide_timm, same, shake,
                              stand_ins, trained)

import mmcsan
from mmcsan.attentions import BaseAttention, CSaN, Softmax
from mmcsan.plugging import PluggedNetwork
from mmcsan.plugging.hosts import StandIn
from mmcsan.registry import ATTENTIONS, MODELS

kinds = pytest.mark.parametrize(
    'name', ['mmdet Swin', 'mmpretrain ViT', 'mmseg ViT', 'timm Swin'])


@pytest.fixture(autouse=True)
def timm(monkeypatch):
    provide_timm(monkeypatch)


@pytest.mark.parametrize('name', ['mmdet Swin', 'timm Swin'])
@pytest.mark.parametrize('where, count', [
    (None, 'all'), (0, 2), ([0], 2), ([1], 2), ([-1], 'last'),
    (r'blocks\.1\.', 'odd'), (lambda n: '0.blocks.0' in n, 1)])
def test_where(name, where, count):
    model = trained(name)
    total = 4 if 'timm' in name else 6
    count = dict(all=total, last=2 if 'timm' in name else 1,
                 odd=2).get(count, count)
    x = image(name)
    before = outputs(model, x)
    mmcsan.plug_attention(model, IDENTITY, where)
    assert len(stand_ins(model)) == count
    same(before, outputs(model, x))


def test_where_counts_the_blocks_of_a_vit():
    model = MODELS.build(plugged_cfg('mmpretrain ViT', where=[0, -1]))
    names = [n for n, m in model.named_modules() if isinstance(m, StandIn)]
    assert names == ['layers.0.attn', 'layers.2.attn']


def test_plug_one_after_the_other():
    model = trained('mmdet Swin')
    x = image('mmdet Swin')
    before = outputs(model, x)
    mmcsan.plug_attention(model, 'Softmax', [0])
    mmcsan.plug_attention(model, dict(IDENTITY, granularity='head'), [1])
    mmcsan.plug_attention(model, IDENTITY)
    kinds = [type(a).made_of[1] for a in stand_ins(model)]
    assert kinds == [Softmax] * 2 + [CSaN] * 4
    assert type(model).__mro__.count(PluggedNetwork) == 1
    for a, b in zip(before, outputs(model, x)):
        assert torch.allclose(a, b, atol=1e-5)
    assert model.get_layer_depth('norm0.weight') == (7, 8)
    with pytest.raises(ValueError, match='plugged in before'):
        mmcsan.plug_attention(model, IDENTITY)


DEPTHS = {
    'mmdet Swin': ({
        'patch_embed.projection.weight': 0,
        'stages.0.blocks.0.attn.w_msa.temp.weight': 1,
        'stages.0.blocks.1.ffn.layers.1.bias': 2,
        'stages.0.downsample.reduction.weight': 2,
        'stages.1.blocks.0.norm1.weight': 3,
        'stages.3.blocks.0.attn.w_msa.qkv.weight': 6,
        'norm0.weight': 7,
        'norm3.bias': 7,
    }, 8),
    'mmpretrain ViT': ({
        'cls_token': 0,
        'pos_embed': 0,
        'layers.0.attn.temp.weight': 1,
        'layers.2.ffn.layers.1.bias': 3,
        'ln1.weight': 4,
    }, 5),
    'mmseg ViT': ({
        'cls_token': 0,
        'pos_embed': 0,
        'layers.0.attn.attn.qkv.weight': 1,
        'layers.2.attn.attn.u.weight': 3,
        'ln1.weight': 4,
    }, 5),
    'timm ViT': ({
        'timm_model.cls_token': 0,
        'timm_model.patch_embed.proj.weight': 0,
        'timm_model.blocks.1.attn.qkv.weight': 2,
        'timm_model.norm.weight': 4,
    }, 5),
    'timm Swin': ({
        'timm_model.patch_embed.proj.weight': 0,
        'timm_model.layers.0.blocks.1.mlp.fc1.bias': 2,
        'timm_model.layers.1.downsample.reduction.weight': 2,
        'timm_model.layers.1.blocks.0.attn.u.weight': 3,
        'timm_model.norm.weight': 5,
    }, 6),
}
DEPTHS['mmseg Swin'] = DEPTHS['mmpretrain Swin'] = DEPTHS['mmdet Swin']


@pytest.mark.parametrize('where', [None, [1]])
@pytest.mark.parametrize('name', DEPTHS)
def test_layer_depths(name, where):
    model = MODELS.build(plugged_cfg(name, where=where))
    expect, total = DEPTHS[name]
    names = {n for n, _ in model.named_parameters()}
    for key, depth in expect.items():
        # blocks that are left out have names of their own
        assert where or key in names
        if key in names:
            found = model.get_layer_depth('backbone.' + key, 'backbone.')
            assert found == (depth, total), key
    assert model.get_layer_depth('head.weight',
                                 'backbone.') == (total - 1, total)
    depths = {model.get_layer_depth(n)[0] for n in names}
    assert depths == set(range(total))


@pytest.mark.parametrize('name', ['mmdet Swin', 'mmseg Swin',
                                  'mmpretrain Swin', 'mmpretrain ViT'])
def test_frozen_stages_from_the_start(name):
    plain = MODELS.build(dict(copy.deepcopy(HOSTS[name]), frozen_stages=1))
    plain.train()
    model = MODELS.build(plugged_cfg(name, frozen_stages=1))
    frozen = {n for n, p in plain.named_parameters() if not p.requires_grad}
    assert frozen

    def check():
        now = {n for n, p in model.named_parameters() if not p.requires_grad}
        assert frozen <= now
        first = {'mmpretrain ViT': 'layers.0.', 'mmpretrain Swin': None}.get(
            name, 'stages.0.')
        new = now - frozen
        assert new and new <= own_names(model)
        if first:
            assert new == {n for n in own_names(model) if n.startswith(first)}

    check()
    model.train()
    check()


def test_old_checkpoints_are_upgraded_as_before():
    """mmpretrain does so for its own class alone."""
    model = trained('mmpretrain Swin')
    state = model.state_dict()
    state = {k.replace('norm3.', 'norm.', 1) if k.startswith('norm3.') else k:
             v for k, v in state.items()}
    state['stages.0.blocks.1.attn.attn_mask'] = torch.zeros(1)
    plugged = MODELS.build(plugged_cfg('mmpretrain Swin'))
    report = plugged.load_state_dict(state, strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) == own_names(plugged)
    assert isinstance(plugged, PluggedNetwork)


class NothingButValues(BaseAttention):
    """A stranger's attention; each token returns its value."""

    def attend(self, q, k, v, x, layout):
        assert layout.num_tokens == x.shape[1]
        self.seen = layout
        return v


@pytest.mark.parametrize('name, grid, prefix', [
    ('mmdet Swin', (3, 3), 0),
    ('mmpretrain ViT', (4, 6), 1),
    ('mmseg ViT', (4, 6), 1),
    ('mmseg ViT without class token', (4, 6), 0),
    ('timm ViT', (8, 8), 1),
    ('timm ViT of any size', (7, 11), 1),
])
def test_a_stranger_is_told_how_tokens_lie(name, grid, prefix, monkeypatch):
    monkeypatch.setitem(ATTENTIONS.module_dict, 'NothingButValues',
                        NothingButValues)
    model = trained(name)
    mmcsan.plug_attention(model, 'NothingButValues')
    outputs(model, image(name))
    for attention in stand_ins(model):
        assert attention.seen.grid == grid
        assert attention.seen.prefix == prefix
        assert attention.seen.valid is None


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
def test_precision_follows_the_network(dtype):
    model = trained('mmdet Swin').to(dtype)
    mmcsan.plug_attention(model, IDENTITY)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert outputs(model, image('').to(dtype))[0].dtype == dtype


def test_checkpointing_equals_plain():
    results = []
    for with_cp in (False, True):
        torch.manual_seed(3)
        model = MODELS.build(plugged_cfg('mmdet Swin', with_cp=with_cp))
        shake(model).train()
        x = image('').requires_grad_()
        sum(out.square().sum() for out in outputs(model, x)).backward()
        results.append([p.grad for p in model.parameters()])
    for a, b in zip(*results):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_import_is_lazy():
    assert mmcsan.plug_attention.__module__ == 'mmcsan.plugging.plug'
    with pytest.raises(AttributeError, match='plug_atention'):
        _ = mmcsan.plug_atention


@pytest.mark.parametrize('attention', ['Pola', 'PolaPP'])
@kinds
def test_refuses_what_cannot_take_over(name, attention):
    model = trained(name)
    before = {k: id(v) for k, v in model.named_parameters()}
    kind = type(model)
    with pytest.raises(ValueError) as caught:
        mmcsan.plug_attention(model, attention)
    message = str(caught.value)
    assert message.startswith(f'{attention} projects tokens to')
    assert '\n' not in message
    with pytest.raises(ValueError, match='take over'):
        MODELS.build(plugged_cfg(name, attention))
    assert type(model) is kind
    assert before == {k: id(v) for k, v in model.named_parameters()}


def test_an_error_leaves_the_network_as_it_was():
    """Heads of the second stage do not divide CSaN's template."""
    model = MODELS.build(
        dict(
            type='mmdet.SwinTransformer',
            embed_dims=24,
            depths=[1, 1],
            num_heads=[1, 16],
            strides=(4, 2),
            out_indices=(0, 1)))
    kinds = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match='num_heads=16'):
        mmcsan.plug_attention(model, 'CSaN')
    assert kinds == [type(m) for m in model.modules()]


def rescaled_swin():
    return MODELS.build(dict(HOSTS['mmdet Swin'], qk_scale=1.))


def rescaled_vit():
    cfg = copy.deepcopy(HOSTS['mmpretrain ViT'])
    model = MODELS.build(cfg)
    from mmpretrain.models.utils import MultiheadAttention
    model.layers[0].attn = MultiheadAttention(32, 2, qk_scale=1.)
    return model


def shortcut_vit():
    model = MODELS.build(copy.deepcopy(HOSTS['mmpretrain ViT']))
    model.layers[1].attn.v_shortcut = True
    return model


@pytest.mark.parametrize('make', [rescaled_swin, rescaled_vit, shortcut_vit])
def test_refuses_unusual_hosts(make):
    with pytest.raises(ValueError, match='no plain attention'):
        mmcsan.plug_attention(make(), IDENTITY)


UNKNOWN = [
    dict(type='mmdet.ResNet', depth=18),
    dict(type='mmpretrain.SwinTransformerV2', arch='tiny'),
    dict(
        type='mmpretrain.BEiTViT',
        img_size=32,
        arch=dict(VIT, feedforward_channels=32)),
    dict(
        type='mmseg.MixVisionTransformer',
        embed_dims=8,
        num_layers=[1, 1, 1, 1],
        num_heads=[1, 1, 1, 1]),
    dict(type='mmseg.BEiT', img_size=32, embed_dims=8, num_heads=1),
    dict(
        type='mmdet.PyramidVisionTransformer',
        embed_dims=8,
        num_layers=[1, 1, 1, 1]),
]


@pytest.mark.parametrize('cfg', UNKNOWN, ids=lambda c: c['type'])
def test_refuses_unknown_networks_and_names_the_known(cfg):
    model = MODELS.build(dict(cfg))
    with pytest.raises(ValueError) as caught:
        mmcsan.plug_attention(model, IDENTITY)
    message = str(caught.value)
    assert message.startswith(type(model).__name__)
    for known in ('Swin of mmdet, mmseg and mmpretrain', 'Swin of timm',
                  'ViT of mmpretrain', 'ViT of mmseg', 'ViT of timm'):
        assert known in message


BAD = [
    (dict(where=[4]), ValueError, r'where=\[4\]'),
    (dict(where=[-9]), ValueError, 'where'),
    (dict(where='blocks.7'), ValueError, 'selects none of stages.0.blocks.0'),
    (dict(where=[]), ValueError, 'selects none'),
    (dict(attention='Csan'), KeyError, 'CSaN'),
    (dict(attention=dict(type='CSaN', heads=1)), TypeError, 'heads'),
    (dict(attention=dict(type='CSaN', dim=1)), TypeError, 'dim'),
    (dict(model=3), TypeError, 'network'),
]


@pytest.mark.parametrize('change, error, word', BAD)
def test_bad_arguments(change, error, word):
    arguments = dict(attention=IDENTITY)
    if 'model' not in change:
        arguments['model'] = trained('mmdet Swin')
    with pytest.raises(error, match=word):
        mmcsan.plug_attention(**dict(arguments, **change))


def test_refuses_wrapped_models_and_our_own():
    wrapped = nn.Module()
    wrapped.module = trained('mmdet Swin')
    with pytest.raises(TypeError, match='then wrap'):
        mmcsan.plug_attention(wrapped, IDENTITY)
    ours = MODELS.build(
        dict(type='mmcsan.SwinTransformer', arch='swin-min'))
    with pytest.raises(ValueError, match='argument attention'):
        mmcsan.plug_attention(ours, IDENTITY)
    with pytest.raises(TypeError, match='unknown'):
        MODELS.build(dict(plugged_cfg('mmdet Swin'), unknown=1))


@pytest.mark.parametrize('name', ['mmdet Swin', 'mmpretrain ViT'])
def test_without_memory_for_weights(name):
    model = trained(name).to('meta')
    mmcsan.plug_attention(model, IDENTITY)
    assert all(p.is_meta for p in model.parameters())
    assert len(stand_ins(model)) > 2
