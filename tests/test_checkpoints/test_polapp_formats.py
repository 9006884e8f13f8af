"""Checkpoints of PolaFormer++: this project's, classifiers, dense ones."""
import json

import pytest
import torch

from mmcsan.backbones import PolaFormerPP
from mmcsan.checkpoints import CheckpointError, load_classification_checkpoint
from mmcsan.checkpoints.convert import convert_checkpoint
from mmcsan.checkpoints.formats import FORMATS

SMALL = dict(
    embed_dims=[8, 16, 24, 32],
    depths=[2, 1, 2, 1],
    num_heads=[1, 2, 3, 4],
    layer_scale=[1, 1, 1, None])


def build(**kwargs):
    return PolaFormerPP(**dict(dict(arch=SMALL, mlp_ratio=2), **kwargs))


def foreign(model, dense):
    """The model's weights under the names of the released code."""
    out = {}
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value = torch.rand(value.shape)
        parts = name.split('.')
        if parts[0] == 'patch_embed':
            index = 3 * int(parts[1]) + (parts[2] == 'norm')
            key = f'patch_embed.proj.{index}.{parts[3]}'
        elif parts[0].startswith('norm'):
            if not dense:
                continue
            key = f'extra_norms.{parts[0][4:]}.norm.{parts[1]}'
        elif parts[2] == 'downsample':
            kind = 'reduction' if parts[3] == 'conv' else 'norm'
            key = f'layers.{int(parts[1]) - 1}.downsample.{kind}.{parts[4]}'
        else:
            key = name.replace('stages', 'layers')
            key = key.replace('norm1', 'norm1.norm').replace(
                'norm2', 'norm2.norm')
            if 'gamma' in key:
                value = value.view(1, -1, 1, 1)
        out[key] = value
    for stage in range(4):
        out[f'layers.{stage}.RoPE.angle'] = torch.rand(4)
        out[f'layers.{stage}.RoPE_linear.angle'] = torch.rand(8)
    if not dense:
        out.update({
            'proj.weight': torch.rand(64, 32, 1, 1),
            'norm.running_mean': torch.rand(64),
            'head.bias': torch.rand(10)
        })
    return out


@pytest.mark.parametrize('dense', [False, True])
@pytest.mark.parametrize('prefix', ['', 'module.', 'backbone.'])
def test_released_names(dense, prefix):
    model = build()
    theirs = foreign(model, dense)
    report = load_classification_checkpoint(
        model, {prefix + key: value for key, value in theirs.items()})
    kind = 'dense backbone' if dense else 'classifier'
    assert report.format == f'PolaFormer++ {kind}'
    assert report.coverage == 1
    norms = {f'norm{i}.{k}' for i in range(4) for k in ('weight', 'bias')}
    assert set(report.new) == (set() if dense else norms)
    assert len(report.dropped) == 8 + (0 if dense else 3)
    ours = model.state_dict()
    assert torch.equal(ours['patch_embed.2.norm.running_var'],
                       theirs['patch_embed.proj.7.running_var'])
    assert torch.equal(ours['stages.1.downsample.norm.weight'],
                       theirs['layers.0.downsample.norm.weight'])
    assert torch.equal(ours['stages.2.blocks.1.gamma_2'],
                       theirs['layers.2.blocks.1.gamma_2'].flatten())
    assert torch.equal(ours['stages.1.blocks.0.attn.s2'],
                       theirs['layers.1.blocks.0.attn.s2'])


def test_shapes_of_released_models(shared):
    path = shared / 'parity' / 'state_dict_shapes.json'
    models = json.loads(path.read_text())['models']
    for arch in ('b0', 'b2'):
        row = models[f'pola_{arch}']
        keys = {key: torch.zeros(shape) for key, shape in
                {**row['parameters'], **row['buffers']}.items()}
        done = convert_checkpoint(keys)
        assert not done.unexpected
        with torch.device('meta'):
            ours = PolaFormerPP(arch, norm_cfg=None)
        shapes = {k: v.shape for k, v in ours.state_dict().items()}
        assert {k: v.shape for k, v in done.weights.items()} == shapes


def test_own_names():
    one, two = build(), build()
    report = load_classification_checkpoint(two, one.state_dict())
    assert report.format == 'mmcsan PolaFormer++'
    assert report.coverage == 1 and not report.new
    for a, b in zip(one.parameters(), two.parameters()):
        assert torch.equal(a, b)


def test_counters_of_batch_norms_may_be_absent():
    source = {k: v for k, v in foreign(build(), True).items()
              if 'num_batches' not in k}
    report = load_classification_checkpoint(build(), source)
    assert len(report.new) == 7
    assert all('num_batches_tracked' in key for key in report.new)


def test_stages_that_are_not_built_are_dropped():
    model = build(out_indices=(0, 2))
    report = load_classification_checkpoint(model, foreign(build(), True))
    assert report.coverage == 1
    assert {'stages.3.blocks.0.pos.weight', 'norm1.weight'} <= set(
        report.dropped)


@pytest.mark.parametrize('lost', ['patch_embed.proj.4.running_mean',
                                  'layers.0.blocks.1.attn.s1',
                                  'layers.2.blocks.0.gamma_1',
                                  'extra_norms.2.norm.weight'])
def test_a_lost_key_is_refused(lost):
    source = foreign(build(), True)
    del source[lost]
    with pytest.raises(CheckpointError):
        load_classification_checkpoint(build(), source)


def test_another_attention_is_refused():
    source = foreign(build(), False)
    with pytest.raises(CheckpointError, match='attention'):
        load_classification_checkpoint(build(attention='PolaPP'), source)


@pytest.mark.parametrize('dense', [False, True])
def test_guessed_arch(dense):
    guess = convert_checkpoint(foreign(build(), dense)).guess_arch()
    for key in ('embed_dims', 'depths', 'layer_scale'):
        assert guess[key] == SMALL[key]
    assert guess['num_heads'] == [1, 2, None, None]
    assert guess['attention'] == ['PolaPP'] * 2 + ['PolaPPSoftmax'] * 2
    assert guess['mlp_ratio'] == [2, 2, 2, 2]


def test_one_format_each():
    for dense in (False, True):
        keys = foreign(build(), dense)
        assert len([f.name for f in FORMATS if f.fits(keys)]) == 1
    assert len([f for f in FORMATS if f.fits(build().state_dict())]) == 1
