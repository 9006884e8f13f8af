"""Checkpoints of Hiera, by every name, into every attention."""
import json
import re

import pytest
import torch

from mmcsan.backbones import Hiera
from mmcsan.checkpoints import (CheckpointError, convert_checkpoint,
                                load_classification_checkpoint)

ARCH = dict(embed_dims=16, depths=[1, 2, 2, 1], num_heads=2)
STARTS = (0, 1, 3, 5)
NORMS = {f'norm{i}.{k}' for i in range(4) for k in ('weight', 'bias')}
TO_TIMM = (('patch_embed.projection', 'patch_embed.proj'),
           ('ffn.layers.0.0', 'mlp.fc1'), ('ffn.layers.1', 'mlp.fc2'),
           ('ls1.weight', 'ls1.gamma'), ('ffn.gamma2.weight', 'ls2.gamma'))


def build(attention='Softmax', **kwargs):
    kwargs = dict(dict(arch=ARCH, img_size=64), **kwargs)
    model = Hiera(attention=attention, **kwargs)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if not name.startswith('norm'):
                param.add_(torch.randn(param.shape, generator=generator) * .2)
    return model.eval()


def timm(weights, norm='head.norm', head='head.fc'):
    out = {}
    for key, value in weights.items():
        if re.match(r'norm\d', key):
            continue
        key = re.sub(
            r'^stages\.(\d)\.blocks\.(\d)',
            lambda match: f'blocks.{STARTS[int(match[1])] + int(match[2])}',
            key)
        for ours, theirs in TO_TIMM:
            key = key.replace(ours, theirs)
        out[key] = value
    for name, shape in ((norm, (128, )), (head, (10, 128))):
        out[f'{name}.weight'] = torch.zeros(shape)
        out[f'{name}.bias'] = torch.zeros(shape[:1])
    return out


def original(weights):
    """The file of the original project, as saved."""
    return dict(model_state=timm(weights, 'norm', 'head.projection'))


def image():
    return torch.randn(
        1, 3, 53, 70, generator=torch.Generator().manual_seed(3))


FORMS = [
    dict(), dict(init_values=.1),
    dict(abs_win_pos_embed=True, abs_pos_size=5),
    dict(abs_win_pos_embed=True, abs_pos_size=5, use_expand_proj=False)
]


@pytest.mark.parametrize('make', [timm, original])
@pytest.mark.parametrize('form', FORMS)
def test_plain(make, form):
    theirs, ours = build(**form), build(**form)
    with torch.no_grad():
        for name, param in ours.named_parameters():
            if not name.startswith('norm'):
                param.add_(1)
    report = load_classification_checkpoint(ours, make(theirs.state_dict()))
    assert report.coverage == 1 and set(report.new) == NORMS
    assert len(report.dropped) == 4 and not report.unexpected
    for a, b in zip(ours(image()), theirs(image())):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize('form', FORMS)
def test_plain_becomes_csan(form):
    """With the identity start, features are those of the plain network."""
    theirs = build(**form)
    ours = build(dict(type='CSaN', init='identity'), **form)
    for attention in ours.attentions():
        attention.reset_parameters()
    report = load_classification_checkpoint(ours, timm(theirs.state_dict()))
    assert report.coverage == 1
    assert len([key for key in report.new if '.attn.' in key]) == 6 * 14
    ours.double(), theirs.double()
    for a, b in zip(ours(image().double()), theirs(image().double())):
        assert (a - b).abs().max() < 1e-10


@pytest.mark.parametrize('form', FORMS)
def test_csan_by_its_own_names(form):
    theirs, ours = build('CSaN', **form), build('CSaN', **form)
    for source in (timm(theirs.state_dict()), theirs.state_dict()):
        report = load_classification_checkpoint(ours, source)
        assert report.coverage == 1
    assert not report.new
    for a, b in zip(ours(image()), theirs(image())):
        assert torch.equal(a, b)


def test_positions_of_another_size():
    source = timm(build().state_dict())
    larger = build(img_size=(96, 64))
    report = load_classification_checkpoint(larger, source)
    assert report.resized == {'pos_embed': ((1, 256, 16), (1, 384, 16))}
    source = timm(build(**FORMS[2]).state_dict())
    larger = build(abs_win_pos_embed=True, abs_pos_size=(7, 3))
    report = load_classification_checkpoint(larger, source)
    assert report.resized == {'pos_embed': ((1, 16, 5, 5), (1, 16, 7, 3))}


def test_stages_not_built_are_dropped():
    short = build(out_indices=(1, ))
    report = load_classification_checkpoint(short, timm(build().state_dict()))
    assert report.coverage == 1 and not report.unexpected
    assert any(key.startswith('stages.3.') for key in report.dropped)


def test_masked_autoencoders():
    weights = timm(build().state_dict(), 'encoder_norm', 'decoder_pred')
    weights['mask_token'] = torch.zeros(1, 1, 8)
    weights['decoder_blocks.0.attn.qkv.weight'] = torch.zeros(24, 8)
    weights['multi_scale_fusion_heads.0.weight'] = torch.zeros(8, 8, 2, 2)
    report = load_classification_checkpoint(build(), weights)
    assert report.coverage == 1 and len(report.dropped) == 7


def test_damage_is_noticed():
    weights = timm(build().state_dict())
    del weights['blocks.3.proj.weight']
    with pytest.raises(CheckpointError, match='stages.2.blocks.0.proj'):
        load_classification_checkpoint(build(), weights)
    other = build(arch=dict(ARCH, depths=[1, 1, 3, 1]))
    with pytest.raises(CheckpointError, match='arch'):
        load_classification_checkpoint(other, timm(build().state_dict()))
    with pytest.raises(CheckpointError, match="attention='CSaN'"):
        load_classification_checkpoint(build(),
                                       timm(build('CSaN').state_dict()))


def test_guess():
    weights = timm(build('CSaN').state_dict())
    assert convert_checkpoint(weights).guess_arch() == dict(
        embed_dims=16,
        depths=[1, 2, 2, 1],
        num_heads=2,
        attention=dict(
            type='CSaN',
            variant='unbounded',
            granularity='unit',
            posinfo=False))


def test_shapes_of_full_size_models(shared):
    path = shared / 'parity' / 'state_dict_shapes.json'
    models = json.loads(path.read_text())['models']
    seen = set()
    for name, model in models.items():
        if not name.startswith('hiera_'):
            continue
        weights = {
            key: torch.zeros(shape)
            for key, shape in model['parameters'].items()
        }
        options = dict(img_size=int(name.split(':')[0].rpartition('_')[2]))
        if 'abswin' in name:
            options.update(
                abs_win_pos_embed=True,
                abs_pos_size=weights['pos_embed'].shape[2:],
                use_expand_proj='blocks.1.proj.weight' in weights,
                init_values=1e-5)
        arch = re.sub(r'(_abswin)?_\d+:.*', '', name).replace('_', '-')
        report = load_classification_checkpoint(
            Hiera(arch, 'CSaN', **options), weights)
        assert report.coverage == 1 and not report.resized, name
        assert set(report.dropped) == {
            f'head.{part}.{kind}'
            for part in ('norm', 'fc') for kind in ('weight', 'bias')}
        seen.add('abswin' in name)
    assert seen == {True, False}
