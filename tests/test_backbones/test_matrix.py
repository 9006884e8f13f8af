"""Every attention in every backbone: it keeps the contract or refuses."""
import re

import pytest
import torch
import torch.nn as nn
from contract import (check_autocast, check_batch, check_checkpointing,
                      check_gradients, check_padding, check_sizes, image,
                      shake)

import mmcsan.attentions  # noqa: F401  fills the registry
import mmcsan.backbones  # noqa: F401
from mmcsan.attentions import BaseAttention
from mmcsan.registry import ATTENTIONS, MODELS

ATTENTION_NAMES = sorted(ATTENTIONS.module_dict)

STAGES = dict(depths=[1, 2, 1, 1])
DIMS = dict(embed_dims=[24, 24, 48, 48], num_heads=[1, 2, 2, 3], **STAGES)
BACKBONES = {
    'SwinTransformer':
    dict(arch=dict(embed_dims=24, num_heads=[1, 2, 2, 3], **STAGES)),
    'SwinTransformer in windows':
    dict(
        arch=dict(embed_dims=24, num_heads=[1, 2, 2, 3], **STAGES),
        window_size=4),
    'VisionTransformer':
    dict(arch=dict(embed_dims=24, depth=3, num_heads=3), patch_size=8,
         img_size=32),
    'VisionTransformer without prefix':
    dict(arch=dict(embed_dims=24, depth=3, num_heads=3), patch_size=8,
         img_size=32, class_token=False),
    'Hiera':
    dict(arch=dict(embed_dims=24, num_heads=1, **STAGES), img_size=64),
    'PyramidVisionTransformer':
    dict(arch=dict(DIMS, mlp_ratios=[2] * 4), img_size=64),
    'PolaFormerPP':
    dict(arch=dict(DIMS, layer_scale=[1, 1, 1, None]), img_size=64),
}
PADS = ('mmcsan.backbones.windows.pad_map', 'mmcsan.backbones.hiera.pad_map')
REFUSED = {
    ('VisionTransformer', 'PolaPP'),
    ('VisionTransformer', 'PolaPPSoftmax'),
    ('Hiera', 'PolaPP'),
    ('Hiera', 'PolaPPSoftmax'),
    ('PyramidVisionTransformer', 'PolaPPSoftmax'),
}
"""Pairs that make no sense; each says why when it is built."""


def build(backbone, attention, **kwargs):
    torch.manual_seed(0)
    return MODELS.build(
        dict(
            type='mmcsan.' + backbone.split()[0],
            attention=attention,
            drop_path_rate=0.,
            **BACKBONES[backbone],
            **kwargs))


PAIRS = [(b, a) for b in BACKBONES for a in ATTENTION_NAMES
         if (b, a) not in REFUSED]
pairs = pytest.mark.parametrize('backbone, attention', PAIRS)


def test_every_backbone_is_here():
    from mmcsan.backbones import BaseBackbone
    registered = {
        name for name, cls in MODELS.module_dict.items()
        if issubclass(cls, BaseBackbone)
    }
    assert {name.split()[0] for name in BACKBONES} == registered
    assert len(ATTENTION_NAMES) >= 5


@pytest.mark.parametrize('backbone, attention', sorted(REFUSED))
def test_refuses_at_build_time_in_one_sentence(backbone, attention):
    with pytest.raises(ValueError) as caught:
        build(backbone, attention)
    message = str(caught.value)
    assert re.match(rf'{attention} cannot .+: .+\.$', message), message
    assert '\n' not in message


@pairs
def test_sizes(backbone, attention):
    model = build(backbone, attention).eval()
    assert all(type(a).__name__ == attention for a in model.attentions())
    if backbone.startswith('Vision'):
        strides = [8] * len(model.out_indices)
    else:
        strides = [4, 8, 16, 32]
    for size in ((1, 1), (3, 70), (53, 85)):
        check_sizes(model, size, strides)


@pairs
def test_batch_independence(backbone, attention):
    check_batch(shake(build(backbone, attention)))


@pairs
def test_padding_is_never_seen(backbone, attention, monkeypatch):
    if backbone.split()[0] not in ('SwinTransformer', 'Hiera'):
        pytest.skip(f'{backbone} pads no groups of tokens by default')
    model = shake(build(backbone, attention)).eval()
    if all(block.window is None for stage in model.stages
           for block in stage.blocks):
        pytest.skip(f'{attention} sees whole maps: nothing is padded')
    check_padding(model, monkeypatch, *PADS)


@pairs
def test_gradients_reach_every_parameter(backbone, attention):
    check_gradients(shake(build(backbone, attention)))


@pairs
def test_checkpointing_changes_nothing(backbone, attention):
    check_checkpointing(lambda **kw: build(backbone, attention, **kw))


@pairs
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_low_precision_is_finite(backbone, attention, dtype):
    check_autocast(build(backbone, attention), dtype)


@pairs
def test_state_dict_is_strict(backbone, attention):
    model = build(backbone, attention)
    model(image())
    build(backbone, attention).load_state_dict(model.state_dict(), strict=True)


@pairs
def test_frozen_stages_and_depths(backbone, attention):
    model = build(backbone, attention, frozen_stages=1)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert trained and frozen and model.train() is model
    depths = {n: model.get_layer_depth(n)[0] for n in trained | frozen}
    count = model.get_layer_depth('patch_embed')[1]
    # The greatest is that of output norms, which PVT has none of.
    assert set(depths.values()) | {count - 1} == set(range(count))
    # What is frozen lies in front of what is trained, output norms aside.
    inner = [d for n, d in depths.items()
             if n in frozen and not re.match(r'norm\d', n)]
    assert max(inner) < count - 1 and min(inner) == 0


@pytest.mark.parametrize('backbone', BACKBONES)
def test_a_third_party_registers_its_own(backbone):
    """One class, one decorator; everything else is inherited."""

    @ATTENTIONS.register_module(name='MeanOfValues')
    class MeanOfValues(BaseAttention):

        def attend(self, q, k, v, x, layout):
            if layout.valid is None:
                mean = v.mean(dim=2, keepdim=True)
            else:
                images = len(v) // len(layout.valid)
                real = layout.valid.repeat(images, 1)[:, None, :, None].to(v)
                mean = (v * real).sum(2, True) / real.sum(2, True).clamp(1)
            return mean + nn.functional.silu(q)

    try:
        model = build(backbone, 'MeanOfValues')
        assert {type(a) for a in model.attentions()} == {MeanOfValues}
        check_batch(shake(model))
    finally:
        ATTENTIONS.module_dict.pop('MeanOfValues')
