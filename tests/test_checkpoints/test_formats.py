"""Formats: what tells them apart, how keys are renamed, what is peeled."""
import json
import random

import pytest
import torch
from safetensors.torch import load_file
from test_loader import ARCH, NEW_NORMS, build, same, to_authors

from mmcsan.backbones import SwinTransformer
from mmcsan.checkpoints import (FORMATS, CheckpointError, convert_checkpoint,
                                load_classification_checkpoint, recognize)
from mmcsan.checkpoints.formats import (Format, Rule, conv_to_linear, cut,
                                        linear_to_conv)
from mmcsan.checkpoints.recognition import peel
from mmcsan.checkpoints.resize import ambiguity, resize_positions

POLA = ['Pola', 'Pola', 'Softmax', 'Softmax']


def test_every_reference_model_is_of_one_format(shared):
    """And of the one that its kind says, where the family is here."""
    kinds = dict(
        csan_swin='CSaN Swin', pola_swin='PolaFormer Swin')
    seen = set()
    for path in sorted((shared / 'parity').glob('*.json')):
        meta = json.loads(path.read_text())
        name = kinds.get(meta.get('kind'))
        if name and meta.get('level') == 'model':
            tensors = load_file(path.with_suffix('.safetensors'))
            keys = [k[8:] for k in tensors if k.startswith('weights/')]
            assert recognize(keys).name == name
            seen.add(name)
    assert seen == set(kinds.values())


def test_full_size_models_are_of_one_format(shared):
    models = json.loads(
        (shared / 'parity' / 'state_dict_shapes.json').read_text())['models']
    for name, entry in models.items():
        shapes = entry['parameters']
        fitting = [f.name for f in FORMATS if f.fits(shapes)]
        assert len(fitting) == 1, (name, fitting)


WRAPS = [
    'module.', '_orig_mod.', 'model.', 'net.', 'backbone.', 'encoder.',
    'module.model.backbone.', 'model.module._orig_mod.encoder.',
    'net.model.0.', 'visual.trunk.'
]


@pytest.mark.parametrize('wrap', WRAPS)
@pytest.mark.parametrize('kind', ['own', 'authors', 'original'])
def test_wraps_are_peeled(wrap, kind):
    source, target = build(), build(seed=1)
    state = source.state_dict() if kind == 'own' else to_authors(
        source, kind == 'original')
    state = {wrap + key: value for key, value in state.items()}
    if wrap != '_orig_mod.':  # then nothing is told to be beside it
        state['head_of_all.weight'] = torch.zeros(3)
    items = list(state.items())
    random.shuffle(items)
    report = load_classification_checkpoint(target, dict(items))
    assert wrap == '_orig_mod.' or 'head_of_all.weight' in report.dropped
    same(source, target, () if kind == 'own' else ('norm0', 'norm1', 'norm2'))


def test_wraps_in_the_middle():
    source, target = build(), build(seed=1)
    state = {
        key.replace('blocks.0.', 'blocks.0._orig_mod.').replace(
            'stages.1.', 'stages.1._checkpoint_wrapped_module.'): value
        for key, value in source.state_dict().items()
    }
    load_classification_checkpoint(target, state)
    same(source, target)
    state['stages.0.blocks.0.norm1.bias'] = torch.zeros(24)
    with pytest.raises(CheckpointError, match='are one key'):
        load_classification_checkpoint(target, state)


def test_two_networks_have_to_be_told_apart():
    one, two, target = build(), build(seed=5), build(seed=1)
    state = {f'a.{k}': v for k, v in one.state_dict().items()}
    state.update({f'b.net.{k}': v for k, v in two.state_dict().items()})
    with pytest.raises(CheckpointError, match="'a.' and 'b.net.'"):
        load_classification_checkpoint(target, state)
    load_classification_checkpoint(target, state, prefix='b')
    same(two, target)


@pytest.mark.parametrize('nested', [False, True])
def test_students_and_teachers_are_asked_for(nested):
    one, two, target = build(), build(seed=5), build(seed=1)
    if nested:
        state = dict(student=one.state_dict(), teacher=two.state_dict())
        word = "'student', 'teacher'"
    else:
        state = {f'student.{k}': v for k, v in one.state_dict().items()}
        state.update({f'teacher.backbone.{k}': v
                      for k, v in two.state_dict().items()})
        word = 'several networks'
    with pytest.raises(CheckpointError, match=word):
        load_classification_checkpoint(target, state)
    load_classification_checkpoint(target, state, prefix='teacher')
    same(two, target)
    if not nested:
        state = {k: v for k, v in state.items() if k.startswith('teacher')}
        with pytest.raises(CheckpointError, match='on request only'):
            load_classification_checkpoint(target, state)


def test_an_average_beside_the_weights_is_not_taken():
    one, two, target = build(), build(seed=5), build(seed=1)
    state = {f'backbone.{k}': v for k, v in one.state_dict().items()}
    state.update({f'ema_model.{k}': v for k, v in two.state_dict().items()})
    load_classification_checkpoint(target, state)
    same(one, target)


def test_two_keys_of_one_place():
    state = to_authors(build('CSaN'))
    state['norm3.weight'] = state['norm.weight'].clone()
    with pytest.raises(CheckpointError, match=r'norm\.weight and norm3\.weig'):
        load_classification_checkpoint(build('CSaN'), state)


def table(*rules, **kwargs):
    return Format('x', 'X', ('a', ), rules, **kwargs)


def test_rules():
    fmt = table(
        Rule(r'qkv\.(.*)', (r'q.\1', r'kv.\1'), cut(1, 2)),
        Rule(r'qk\.(.*)', (r'q2.\1', r'k2.\1')),
        Rule(r'([qkv])3\.w', lambda match, weights: f'{match[1]}-'
             f'{len(weights)}'),
        Rule(r'a\.b', 'ab', part=(1, 2)),
        Rule(r'a\.a', 'ab', part=(0, 2)),
        Rule(r'c\.w', 'c', linear_to_conv),
        Rule(r'd\.w', 'd', conv_to_linear),
        Rule(r'block(?P<stage>\d)\.w', r's.{prev}.{next}.{last}'),
        Rule(r'e\.0', 'e', part=(0, 2)),
        heads=('head', ),
        stages=r'block(\d)\.',
        first_stage=1)
    x = torch.arange(12.).view(6, 2)
    done = fmt.rename({
        'qkv.w': x, 'qk.b': x[:, 0], 'v3.w': x, 'a.b': x[3:], 'a.a': x[:3],
        'c.w': x, 'd.w': x[..., None, None], 'block2.w': x, 'e.0': x,
        'head': x, 'zzz': x})
    got = done.weights
    assert torch.equal(got['q.w'], x[:2]) and torch.equal(got['kv.w'], x[2:])
    assert torch.equal(got['q2.b'], x[:3, 0])
    assert torch.equal(got['k2.b'], x[3:, 0])
    assert torch.equal(got['ab'], x)
    assert got['c'].shape == (6, 2, 1, 1) and got['d'].shape == (6, 2)
    assert 'v-11' in got and 's.1.3.1' in got
    assert done.dropped == ['head']
    assert sorted(done.unexpected) == ['e.0', 'zzz']
    with pytest.raises(CheckpointError, match=r'qkv\.w of shape \(5, 2\)'):
        fmt.rename({'qkv.w': x[:5]})
    with pytest.raises(CheckpointError, match=r'c\.x and c\.y'):
        table(Rule(r'c\..', 'c')).rename({'c.x': x, 'c.y': x})
    with pytest.raises(CheckpointError, match=r'a\.a and a\.b'):
        table(Rule(r'a\..', 'a', part=(0, 2))).rename({'a.a': x, 'a.b': x})
    with pytest.raises(CheckpointError, match='all are a here'):
        table(Rule('b', 'a'), Rule('c', 'a', part=(0, 1))).rename(
            {'b': x, 'c': x})


def ramp(height, width):
    rows = torch.arange(height)[:, None].expand(height, width)
    cols = torch.arange(width)[None].expand(height, width)
    return torch.stack([rows, cols], -1).flatten(0, 1).float()


@pytest.mark.parametrize('prefix', [0, 1, 5])
def test_positions_are_resized_in_2d(prefix):
    head = torch.full((prefix, 2), 9.)
    old = torch.cat([head, ramp(6, 6)])[None]
    new = resize_positions(old, (1, prefix + 96, 2), (8, 12))
    assert torch.equal(new[0, :prefix], head)
    grid = new[0, prefix:].view(8, 12, 2)
    assert torch.allclose(grid[..., 0], grid[:, :1, 0], atol=1e-5)
    assert torch.allclose(grid[..., 1], grid[:1, :, 1], atol=1e-5)
    assert (grid[..., 0].diff(dim=0) > 0).all()
    assert (grid[..., 1].diff(dim=1) > 0).all()


def test_prefix_tokens_of_positions():
    old = torch.cat([torch.full((1, 2), 9.), ramp(4, 4)])[None]
    assert torch.equal(resize_positions(old, (1, 16, 2), (4, 4))[0],
                       ramp(4, 4))
    new = resize_positions(old[:, 1:], (1, 17, 2), (4, 4))
    assert torch.equal(new[0, :1], torch.zeros(1, 2))
    with pytest.raises(CheckpointError, match='1 prefix tokens, not 3'):
        resize_positions(old, (1, 19, 2), (4, 4))
    # A rectangle: of the proportions of the new one.
    new = resize_positions(ramp(2, 6)[None], (1, 48, 2), (4, 12))
    assert torch.allclose(new[0].view(4, 12, 2)[..., 0],
                          new[0].view(4, 12, 2)[:, :1, 0], atol=1e-5)
    # Maps know their grid.
    assert resize_positions(torch.zeros(1, 5, 3, 4), (1, 5, 6, 2),
                            (6, 2)).shape == (1, 5, 6, 2)


@pytest.mark.parametrize('length, grid, other', [
    (27, (5, 2), '2x5'), (27, (2, 5), '5x2'), (169, (7, 7), None),
    (49, (7, 7), None), (169, (3, 7), None), (27, (7, 7), '1x14'),
])
def test_what_a_length_leaves_open(length, grid, other):
    note = ambiguity('relative_position_bias_table', length, grid)
    assert (note is None) == (other is None)
    if length == 27 and grid != (7, 7):
        assert other in note and f'{grid[0]}x{grid[1]}' in note


def test_turned_windows_are_noted():
    source = build(window_size=[(2, 5)] * 4)
    target = build(seed=1, window_size=[(5, 2)] * 4)
    report = load_classification_checkpoint(target, source.state_dict())
    assert len(report.notes) == 1 and '2x5' in report.notes[0]
    assert 'note' in str(report)
    report = load_classification_checkpoint(build(), build().state_dict())
    assert not report.notes


class Owner(torch.nn.Module):

    def __init__(self, height, width):
        super().__init__()
        self.pos_embed = torch.nn.Parameter(
            torch.zeros(1, height * width + 1, 24))
        self.position_grids = {'pos_embed': (height, width)}


def test_a_backbone_tells_the_grid_of_its_positions():
    source, target = build(), build(seed=1)
    source.stages[0].extra, target.stages[0].extra = Owner(4, 4), Owner(6, 3)
    with torch.no_grad():
        source.stages[0].extra.pos_embed.normal_()
    report = load_classification_checkpoint(target, source.state_dict())
    assert report.resized == {
        'stages.0.extra.pos_embed': ((1, 17, 24), (1, 19, 24))}
    new = target.stages[0].extra.pos_embed
    assert torch.equal(new[:, 0], source.stages[0].extra.pos_embed[:, 0])
    assert (new[:, 1:] != 0).all()


def pola(**kwargs):
    return build(POLA, **dict(
        dict(img_size=64, window_size=[None, None, 4, 4]), **kwargs))


def to_polaformer(model):
    return to_authors(model, end_merge=True)


def test_polaformer_swin():
    source, target = pola(), pola(seed=1)
    report = load_classification_checkpoint(target, to_polaformer(source))
    assert report.format == 'PolaFormer Swin'
    assert set(report.new) == NEW_NORMS and report.coverage == 1
    same(source, target, ('norm0', 'norm1', 'norm2'))
    found = convert_checkpoint(source.state_dict()).guess_arch()
    assert found == dict(ARCH, attention=POLA)


def test_encodings_of_another_size_are_resized():
    source, target = pola(), pola(seed=1, img_size=96)
    report = load_classification_checkpoint(target, to_polaformer(source))
    assert report.resized['stages.0.blocks.0.attn.positional_encoding'] == (
        (1, 256, 24), (1, 576, 24))
    assert report.coverage == 1


def test_plain_attention_in_pola_on_request():
    plain, ours = build(), pola(seed=1)
    state = to_authors(plain)
    before = {k: v.clone() for k, v in ours.state_dict().items()}
    for coverage in (1, 0.99):
        with pytest.raises(CheckpointError, match="partial='qkv'"):
            load_classification_checkpoint(ours, state, min_coverage=coverage)
    report = load_classification_checkpoint(ours, state, partial='qkv')
    assert report.coverage == 1
    assert len(report.partial) == 2 * 3  # weight and bias of three blocks
    assert 'partial' in str(report)
    name = 'stages.0.blocks.1.attn.qkvg.weight'
    assert report.partial[name] == ((72, 24), (96, 24))
    fused, after = plain.stages[0].blocks[1].attn.qkv, ours.state_dict()
    assert torch.equal(after[name][:72], fused.weight)
    assert torch.equal(after[name][72:], before[name][72:])
    tables = [k for k in report.dropped if k.endswith('bias_table')]
    assert len(tables) == 3
    theirs = plain.state_dict()
    for key in after:
        if '.proj.' in key or key.startswith(
            ('stages.2', 'stages.3')) and key not in report.resized:
            assert torch.equal(after[key], theirs[key])
    own = {k.rpartition('.')[2] for k in report.new} - {'weight', 'bias'}
    assert own == {'power', 'scale', 'positional_encoding'}


def test_partial_by_init_cfg(tmp_path):
    torch.save(build().state_dict(), tmp_path / 'a.pth')
    cfg = dict(
        type='mmcsan.PretrainedClassifier', checkpoint=str(tmp_path / 'a.pth'))
    with pytest.raises(CheckpointError, match='partial'):
        pola(init_cfg=cfg).init_weights()
    pola(init_cfg=dict(cfg, partial='qkv')).init_weights()
    with pytest.raises(ValueError, match='partial'):
        load_classification_checkpoint(build(), {}, partial='all')


def test_pola_weights_in_another_attention():
    with pytest.raises(CheckpointError, match='set attention='):
        load_classification_checkpoint(build(), to_polaformer(pola()))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_casts_are_reported(dtype):
    source = build().to(dtype)
    report = load_classification_checkpoint(build(), source.state_dict())
    name = str(dtype).rpartition('.')[2]
    assert set(report.cast.values()) == {(name, 'float32')}
    assert len(report.cast) == report.num_loaded
    assert 'cast' in str(report)


def test_integers_are_no_weights():
    state = {k: v.mul(9).to(torch.int8) for k, v in build().state_dict()
             .items()}
    with pytest.raises(CheckpointError, match='integers'):
        load_classification_checkpoint(build(), state)


def test_other_widths_load_with_subsets():
    deep = SwinTransformer(
        dict(ARCH, depths=[2, 1, 2, 2]), 'Softmax', window_size=4)
    with pytest.raises(CheckpointError, match='blocks or stages'):
        load_classification_checkpoint(build(), to_authors(deep))


def test_peel_leaves_what_it_does_not_know():
    inside, outside = peel({'a.b': torch.zeros(1)})
    assert list(inside) == ['a.b'] and not outside
