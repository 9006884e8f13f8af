"""Checkpoints of PVT: this project's, PolaFormer's, the original's."""
import json

import pytest
import torch
import torch.nn.functional as F

from mmcsan.backbones import PyramidVisionTransformer
from mmcsan.checkpoints import CheckpointError, load_classification_checkpoint
from mmcsan.checkpoints.convert import convert_checkpoint
from mmcsan.checkpoints.formats import FORMATS

SMALL = dict(
    embed_dims=[8, 16, 24, 32],
    depths=[2, 1, 2, 1],
    num_heads=[1, 2, 3, 4],
    mlp_ratios=[4, 4, 2, 2])
LLSS = ['Pola', 'Pola', 'Softmax', 'Softmax']


def build(attention='Softmax', **kwargs):
    kwargs = dict(dict(arch=SMALL, img_size=64), **kwargs)
    return PyramidVisionTransformer(attention=attention, **kwargs)


def foreign(model, class_token=False):
    """The model's weights under the names of the original."""
    out = {}
    for name, value in model.state_dict().items():
        value = torch.randn(value.shape)
        parts = name.split('.')
        if parts[0].startswith('norm'):
            continue  # of a map that a classifier does not return
        stage = 1 if parts[0] == 'patch_embed' else int(parts[1]) + 1
        rest = parts[1:] if parts[0] == 'patch_embed' else parts[3:]
        if parts[0] == 'stages' and parts[2] == 'blocks':
            rest = '.'.join(parts[4:]).replace('ffn.layers.0.0', 'mlp.fc1')
            key = (f'block{stage}.{parts[3]}.'
                   + rest.replace('ffn.layers.1', 'mlp.fc2'))
        elif rest == ['pos_embed']:
            key = f'pos_embed{stage}'
        else:
            key = f'patch_embed{stage}.' + '.'.join(rest).replace(
                'projection', 'proj')
        out[key] = value
    if class_token:
        out['cls_token'] = torch.randn(1, 1, 32)
        table = out['pos_embed4']
        out['pos_embed4'] = torch.cat([torch.full((1, 1, 32), 7.), table], 1)
    out.update({
        'norm.weight': torch.randn(32),
        'norm.bias': torch.randn(32),
        'head.weight': torch.randn(10, 32),
        'head.bias': torch.randn(10)
    })
    return out


CASES = [
    ('PolaFormer PVT', 'Pola', False, dict()),
    ('PolaFormer PVT', 'Pola', False, dict(linear_sr_ratios=[8, 4, 2, 1])),
    ('PolaFormer PVT', LLSS, False, dict()),
    ('plain PVT', 'Softmax', False, dict()),
    ('plain PVT', 'Softmax', False, dict(sr_ratios=1, qkv_bias=False)),
    ('plain PVT with a class token', 'Softmax', True, dict()),
]


@pytest.mark.parametrize('name, attention, token, kwargs', CASES)
@pytest.mark.parametrize('prefix', ['', 'module.', 'model.'])
def test_original_names(name, attention, token, kwargs, prefix):
    model = build(attention, **kwargs)
    theirs = foreign(model, token)
    report = load_classification_checkpoint(
        model, {prefix + key: value for key, value in theirs.items()})
    assert report.format == name
    assert report.coverage == 1 and not report.new and not report.resized
    heads = {'norm.weight', 'norm.bias', 'head.weight', 'head.bias'}
    assert {key.replace(prefix, '') for key in report.dropped} == (
        heads | ({'cls_token'} if token else set()))
    ours = model.state_dict()
    assert torch.equal(ours['stages.2.blocks.1.ffn.layers.1.weight'],
                       theirs['block3.1.mlp.fc2.weight'])
    assert torch.equal(ours['stages.0.blocks.1.attn.kv.weight'],
                       theirs['block1.1.attn.kv.weight'])
    assert torch.equal(ours['patch_embed.pos_embed'], theirs['pos_embed1'])
    last = ours['stages.3.downsample.pos_embed']
    assert torch.equal(last, theirs['pos_embed4'][:, -4:])
    assert not (last == 7).any()


def test_shapes_of_released_models(shared):
    path = shared / 'parity' / 'state_dict_shapes.json'
    models = json.loads(path.read_text())['models']
    seen = 0
    for name, row in models.items():
        if not name.startswith('pola_pvt'):
            continue
        seen += 1
        keys = {key: torch.zeros(shape)
                for key, shape in row['parameters'].items()}
        done = convert_checkpoint(keys)
        assert not done.unexpected
        with torch.device('meta'):
            ours = PyramidVisionTransformer(
                'pvt-tiny',
                linear_sr_ratios=[8, 4, 2, 1] if 'sr8421' in name else 1)
        shapes = {k: v.shape for k, v in ours.state_dict().items()}
        assert {k: v.shape for k, v in done.weights.items()} == shapes
    assert seen == 2


@pytest.mark.parametrize('attention', ['Pola', 'Softmax', LLSS, 'PolaPP'])
def test_own_names(attention):
    one, two = build(attention), build(attention)
    report = load_classification_checkpoint(two, one.state_dict())
    assert report.format == 'mmcsan PVT' and report.coverage == 1
    for a, b in zip(one.parameters(), two.parameters()):
        assert torch.equal(a, b)


def test_attentions_without_reduction_are_no_swin():
    one = build('CSaN', sr_ratios=1)
    two = build('CSaN', sr_ratios=1)
    report = load_classification_checkpoint(two, one.state_dict())
    assert report.format == 'mmcsan PVT'


def test_norms_on_request_are_new():
    source = foreign(build())
    model = build(norm_cfg=dict(type='LN'))
    report = load_classification_checkpoint(model, source)
    assert set(report.new) == {
        f'norm{i}.{k}' for i in range(4) for k in ('weight', 'bias')
    }


@pytest.mark.parametrize('token', [False, True])
def test_positions_of_another_size_are_resized(token):
    source = foreign(build(), token)
    model = build(img_size=(96, 128))
    report = load_classification_checkpoint(model, source)
    assert {key: new for key, (_, new) in report.resized.items()} == {
        'patch_embed.pos_embed': (1, 24 * 32, 8),
        'stages.1.downsample.pos_embed': (1, 12 * 16, 16),
        'stages.2.downsample.pos_embed': (1, 6 * 8, 24),
        'stages.3.downsample.pos_embed': (1, 3 * 4, 32),
    }
    table = source['pos_embed2'].view(1, 8, 8, 16).permute(0, 3, 1, 2)
    table = F.interpolate(table, (12, 16), mode='bicubic')
    ours = model.stages[1].downsample.pos_embed
    assert torch.allclose(ours, table.flatten(2).transpose(1, 2), atol=1e-5)


def test_stages_that_are_not_built_are_dropped():
    model = build(out_indices=(1, ))
    report = load_classification_checkpoint(model, foreign(build()))
    assert report.coverage == 1
    assert any(key.startswith('stages.3.') for key in report.dropped)


@pytest.mark.parametrize('source, target', [('Pola', 'Softmax'),
                                            ('Softmax', 'Pola'),
                                            ('Softmax', LLSS)])
def test_another_attention_is_refused(source, target):
    with pytest.raises(CheckpointError, match='attention'):
        load_classification_checkpoint(build(target), foreign(build(source)))


@pytest.mark.parametrize('lost', ['block1.0.attn.q.weight',
                                  'block2.0.attn.sr.weight',
                                  'block2.0.attn.norm.bias', 'pos_embed2',
                                  'patch_embed1.norm.weight'])
def test_a_lost_key_is_refused(lost):
    source = foreign(build())
    del source[lost]
    with pytest.raises(CheckpointError):
        load_classification_checkpoint(build(), source)


@pytest.mark.parametrize('attention', ['Pola', 'Softmax', LLSS])
def test_guessed_arch(attention):
    guess = convert_checkpoint(foreign(build(attention))).guess_arch()
    assert guess['attention'] == attention
    for key in ('embed_dims', 'depths', 'mlp_ratios'):
        assert guess[key] == SMALL[key]
    linear = [a == 'Pola' for a in (
        attention if isinstance(attention, list) else [attention] * 4)]
    assert guess['num_heads'] == [
        h if known else None for h, known in zip(SMALL['num_heads'], linear)
    ]


def test_one_format_each():
    for name, attention, token, kwargs in CASES:
        keys = foreign(build(attention, **kwargs), token)
        assert [f.name for f in FORMATS if f.fits(keys)] == [name]


@pytest.mark.parametrize('sr_ratios', [1, (4, 2, 2, 1)])
def test_plain_becomes_csan(sr_ratios):
    """With the identity start, CSaN gives the plain network's features."""
    weights = foreign(build(sr_ratios=sr_ratios))
    plain, csan = (
        build(attention, sr_ratios=sr_ratios)
        for attention in ('Softmax', dict(type='CSaN', init='identity')))
    load_classification_checkpoint(plain, weights)
    report = load_classification_checkpoint(csan, weights)
    assert report.coverage == 1 and report.new and not report.unexpected
    assert all('.attn.' in key for key in report.new)
    assert not any('key_value' in key for key in report.new)
    x = torch.randn(1, 3, 53, 75, dtype=torch.float64)
    for a, b in zip(plain.double().eval()(x), csan.double().eval()(x)):
        assert (a - b).abs().max() < 1e-10 * a.abs().max()
