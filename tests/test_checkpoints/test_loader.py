import argparse
import json
import logging
import os

import numpy as np
import pytest
import torch

from mmcsan.backbones import SwinTransformer
from mmcsan.checkpoints import (CheckpointError, find_checkpoint,
                                load_classification_checkpoint)
from mmcsan.checkpoints.formats import unfold_to_slices

ARCH = dict(embed_dims=24, depths=[2, 1, 2, 1], num_heads=[1, 2, 3, 6])


def build(attention='Softmax', seed=0, **kwargs):
    torch.manual_seed(seed)
    return SwinTransformer(
        ARCH, attention, **dict(dict(window_size=4), **kwargs))


def to_authors(model, end_merge=False):
    """A state dict of ours in timm's (or the original) names, with a head."""
    out = {}
    for key, value in model.state_dict().items():
        key = key.replace('projection', 'proj').replace('stages', 'layers')
        key = key.replace('ffn.layers.0.0', 'mlp.fc1').replace(
            'ffn.layers.1', 'mlp.fc2').replace('attn.posinfo', 'posinfo')
        if key.startswith('norm'):
            if not key.startswith('norm3'):
                continue
            key = key.replace('norm3', 'norm')
        if end_merge and 'downsample' in key:
            stage = int(key.split('.')[1])
            key = key.replace(f'layers.{stage}.', f'layers.{stage - 1}.')
        out[key] = value.clone()
    name = 'head' if end_merge else 'head.fc'
    out[f'{name}.weight'] = torch.zeros(10, 192)
    out[f'{name}.bias'] = torch.zeros(10)
    out['layers.0.blocks.1.attn_mask'] = torch.zeros(4, 16, 16)
    out['layers.0.blocks.0.attn.relative_position_index'] = torch.zeros(16, 16)
    return out


def same(a, b, but=()):
    other = b.state_dict()
    for key, value in a.state_dict().items():
        if not key.startswith(but):
            assert torch.equal(value, other[key]), key


NEW_NORMS = {f'norm{i}.{k}' for i in range(3) for k in ('weight', 'bias')}


@pytest.mark.parametrize('attention', [
    'CSaN', dict(type='CSaN', variant='bounded'),
    dict(type='CSaN', posinfo=True)
])
@pytest.mark.parametrize('prefix', ['', 'module.', '_orig_mod.module.'])
def test_csan_swin(attention, prefix):
    source, target = build(attention), build(attention, seed=1)
    state = {prefix + k: v for k, v in to_authors(source).items()}
    report = load_classification_checkpoint(target, {'state_dict': state})
    assert report.format == 'CSaN Swin'
    assert set(report.new) == NEW_NORMS
    assert not report.missing and not report.unexpected
    assert set(report.dropped) == {
        'head.fc.weight', 'head.fc.bias', 'layers.0.blocks.1.attn_mask',
        'layers.0.blocks.0.attn.relative_position_index'
    }
    assert report.coverage == 1
    same(source, target, ('norm0', 'norm1', 'norm2'))


@pytest.mark.parametrize('end_merge', [False, True])
def test_plain_swin(end_merge):
    source, target = build(), build(seed=1)
    state = {'model': to_authors(source, end_merge)}
    report = load_classification_checkpoint(target, state)
    assert ('original' in report.format) == end_merge
    assert set(report.new) == NEW_NORMS
    same(source, target, ('norm0', 'norm1', 'norm2'))


@pytest.mark.parametrize('package', ['mmpretrain', 'mmdet', 'mmseg'])
def test_plain_swin_of_openmmlab(package):
    kwargs = dict(embed_dims=24, depths=[2, 2, 2, 2], num_heads=[1, 2, 3, 6])
    if package == 'mmpretrain':
        from mmpretrain.models.backbones import SwinTransformer as Plain
        theirs = Plain(kwargs, out_indices=(0, 1, 2, 3))
    else:
        module = pytest.importorskip(f'{package}.models.backbones')
        theirs = module.SwinTransformer(**kwargs)
    theirs.eval()
    with torch.no_grad():
        for param in theirs.parameters():
            param.add_(torch.randn_like(param) * 0.1)
    ours = SwinTransformer(kwargs, 'Softmax').eval()
    state = {'backbone.' + k: v for k, v in theirs.state_dict().items()}
    state['decode_head.conv_seg.weight'] = torch.zeros(3)
    report = load_classification_checkpoint(ours, {'state_dict': state})
    assert 'decode_head.conv_seg.weight' in report.dropped
    assert not report.new and not report.unexpected
    # Windows of 7 divide every map; theirs see padding, ours do not.
    x = torch.randn(1, 3, 448, 448)
    for a, b in zip(ours(x), theirs(x)):
        assert torch.allclose(a, b, atol=1e-3)


def test_patch_merging_order():
    """P04: unfold's channels and strided slices agree once reordered."""
    x = torch.randn(1, 6, 14, 16, dtype=torch.float64)
    weight = torch.randn(5, 24, dtype=torch.float64)
    unfolded = torch.nn.functional.unfold(x, 2, stride=2)  # (1, 4C, L)
    theirs = weight @ unfolded[0]
    slices = torch.cat([
        x[:, :, r::2, c::2] for r, c in ((0, 0), (1, 0), (0, 1), (1, 1))
    ], 1).flatten(2)
    ours = unfold_to_slices(weight) @ slices[0]
    assert (ours - theirs).abs().max() < 1e-12


def test_own_detector_and_classifier():
    source, target = build('CSaN'), build('CSaN', seed=1)
    state = {'backbone.' + k: v for k, v in source.state_dict().items()}
    state.update({'neck.w': torch.zeros(1), 'head.fc.weight': torch.zeros(1)})
    report = load_classification_checkpoint(
        target, dict(state_dict=state, meta=dict(epoch=3)))
    assert set(report.dropped) == {'neck.w', 'head.fc.weight'}
    assert not report.new
    same(source, target)


def test_stages_and_norms_of_maps_not_returned():
    source = build('CSaN')
    target = build('CSaN', seed=1, out_indices=(1, 2))
    assert len(target.stages) == 3
    report = load_classification_checkpoint(target, source.state_dict())
    dropped = {k for k in source.state_dict() if k.startswith('stages.3.')}
    dropped |= {f'norm{i}.{k}' for i in (0, 3) for k in ('weight', 'bias')}
    assert set(report.dropped) == dropped
    assert report.coverage == 1


@pytest.mark.parametrize('left', [[], ['bias'], ['weight']])
def test_a_classifier_has_its_last_norm(left):
    state = to_authors(build('CSaN'))
    for key in ('weight', 'bias'):
        if key not in left:
            del state[f'norm.{key}']
    with pytest.raises(CheckpointError, match='norm3'):
        load_classification_checkpoint(build('CSaN'), state)


def test_own_plain_backbone_in_csan():
    plain, ours = build(), build('CSaN', seed=1)
    report = load_classification_checkpoint(ours, plain.state_dict())
    assert report.format == 'mmcsan Swin, plain attention'
    assert all('.attn.' in key for key in report.new) and report.new
    same(plain, ours)


def test_subclasses_load_and_strangers_do_not():

    class Mine(SwinTransformer):
        pass

    state = build().state_dict()
    mine = Mine(ARCH, 'Softmax', window_size=4)
    assert load_classification_checkpoint(mine, state).coverage == 1
    from mmpretrain.models.backbones import SwinTransformer as Plain
    with pytest.raises(CheckpointError, match='mmcsan.SwinTransformer'):
        load_classification_checkpoint(Plain(ARCH), state)


def test_csan_keys_are_new_beside_plain_attention_only():
    plain, ours = build(), build('CSaN', seed=1)
    report = load_classification_checkpoint(ours, to_authors(plain))
    csan_keys = {k for k in ours.state_dict() if k not in plain.state_dict()}
    assert set(report.new) == csan_keys | NEW_NORMS
    assert report.coverage == 1

    source = to_authors(build('CSaN'))
    del source['layers.0.blocks.0.attn.temp.weight']
    with pytest.raises(CheckpointError, match='temp.weight'):
        load_classification_checkpoint(ours, source)


def test_window_change_resizes_tables():
    source, target = build(), build(seed=1, window_size=7)
    report = load_classification_checkpoint(target, source.state_dict())
    assert len(report.resized) == 6
    assert set(report.resized.values()) == {((49, h), (169, h))
                                            for h in ARCH['num_heads']}
    table = source.stages[0].blocks[0].attn.relative_position_bias_table
    resized = target.stages[0].blocks[0].attn.relative_position_bias_table
    centre = resized.view(13, 13, -1)[6, 6]
    assert torch.allclose(centre, table.view(7, 7, -1)[3, 3], atol=0.02)
    assert str(report).count('(49, 1) -> (169, 1)') == 2


def broken(change):
    state = to_authors(build('CSaN'))
    change(state)
    return state


@pytest.mark.parametrize('change, word', [
    (lambda s: s.pop('patch_embed.proj.weight'), 'patch_embed.projection'),
    (lambda s: s.update({'layers.0.blocks.0.attn.extra': torch.zeros(1)}),
     'attn.extra'),
    (lambda s: s.update({
        'layers.3.blocks.0.mlp.fc1.bias': torch.zeros(5)}), r'\(5,\)'),
])
def test_incomplete_raises_and_writes_nothing(change, word):
    target = build('CSaN', seed=1)
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(CheckpointError, match=word):
        load_classification_checkpoint(target, broken(change))
    for key, value in target.state_dict().items():
        assert torch.equal(value, before[key])
    report = load_classification_checkpoint(
        target, broken(change), min_coverage=0.9)
    assert 0.9 <= report.coverage <= 1


@pytest.mark.parametrize('source, target, cause', [
    ('CSaN', dict(type='CSaN', variant='bounded'), 'variant'),
    (dict(type='CSaN', variant='bounded'), 'CSaN', 'variant'),
    ('CSaN', dict(type='CSaN', posinfo=True), 'posinfo'),
    (dict(type='CSaN', posinfo=True), 'CSaN', 'posinfo'),
    ('CSaN', 'Softmax', "attention='CSaN'"),
    (dict(type='CSaN', granularity='head'), 'CSaN', 'granularity'),
])
def test_wrong_variant_is_named(source, target, cause):
    with pytest.raises(CheckpointError, match=cause):
        load_classification_checkpoint(
            build(target), to_authors(build(source)))


def test_wrong_arch_and_family():
    deeper = SwinTransformer(
        dict(ARCH, depths=[2, 1, 3, 1]), 'CSaN', window_size=4)
    with pytest.raises(CheckpointError, match='blocks or stages'):
        load_classification_checkpoint(deeper, to_authors(build('CSaN')))
    with pytest.raises(CheckpointError, match='no checkpoint that mmcsan'):
        load_classification_checkpoint(
            build(), {'conv1.weight': torch.zeros(3)})
    foo = {'foo.relative_position_bias_table': torch.zeros(169, 3)}
    with pytest.raises(CheckpointError):
        load_classification_checkpoint(build(), foo)


def test_one_line_is_logged(monkeypatch):
    lines = []
    monkeypatch.setattr('mmcsan.checkpoints.loader.print_log',
                        lambda line, **kwargs: lines.append((line, kwargs)))
    load_classification_checkpoint(build(), build().state_dict())
    count = len(build().state_dict())
    [(line, kwargs)] = lines
    assert line.startswith(f'matched {count}/{count} (100%)')
    assert kwargs['level'] == logging.INFO


def test_to_dict_is_json():
    report = load_classification_checkpoint(
        build(window_size=7), build().state_dict())
    assert json.loads(json.dumps(report.to_dict()))['coverage'] == 1


class Evil:

    def __reduce__(self):
        return os.system, ('touch evil_was_here', )


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(dict(build().state_dict(), x=Evil()), 'evil.pth')
    with pytest.raises(CheckpointError, match='system'):
        load_classification_checkpoint(build(), 'evil.pth')
    assert os.listdir() == ['evil.pth']


@pytest.mark.parametrize('legacy', [False, True])
def test_bookkeeping_objects_are_replaced(tmp_path, legacy):
    from mmengine.logging import HistoryBuffer
    source, target = build(), build(seed=1)
    path = tmp_path / 'run.pth'
    torch.save(
        dict(
            state_dict=source.state_dict(),
            message_hub=dict(log_scalars=dict(loss=HistoryBuffer())),
            args=argparse.Namespace(lr=1), best=np.float64(3),
            history=[np.arange(3)]),
        path, _use_new_zipfile_serialization=not legacy)
    load_classification_checkpoint(target, path)
    same(source, target)


def test_safetensors(tmp_path):
    from safetensors.torch import save_file
    source, target = build(), build(seed=1)
    save_file(to_authors(source), tmp_path / 'swin.safetensors')
    load_classification_checkpoint(target, tmp_path / 'swin.safetensors')
    same(source, target, ('norm0', 'norm1', 'norm2'))


@pytest.mark.parametrize('name, content, word', [
    ('a.pth', b'', 'empty'),
    ('a.pth', b'\n<!DOCTYPE html><html>not found</html>', 'web page'),
    ('a.pth', b'\x80\x02garbage', 'damaged'),
    ('a.pth', b'PK\x03\x04' + b'0' * 700, 'damaged'),
    ('a.safetensors', b'0' * 64, 'damaged'),
])
def test_unreadable_files(tmp_path, name, content, word):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=word):
        load_classification_checkpoint(build(), tmp_path / name)


def test_truncated_file(tmp_path):
    path = tmp_path / 'a.pth'
    torch.save(build().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(CheckpointError, match='damaged'):
        load_classification_checkpoint(build(), path)


def test_files_without_weights(tmp_path):
    for content, word in [([1, 2], 'list'), (dict(epoch=3), 'no tensors')]:
        torch.save(content, tmp_path / 'a.pth')
        with pytest.raises(CheckpointError, match=word):
            load_classification_checkpoint(build(), tmp_path / 'a.pth')


def test_where_it_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv('MMCSAN_CHECKPOINTS', raising=False)
    with pytest.raises(CheckpointError, match='MMCSAN_CHECKPOINTS'):
        find_checkpoint('nowhere.pth')
    with pytest.raises(CheckpointError, match='is a directory'):
        find_checkpoint(tmp_path)
    monkeypatch.setenv('MMCSAN_CHECKPOINTS', str(tmp_path))
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        find_checkpoint('nowhere.pth')
    (tmp_path / 'here.pth').write_bytes(b'x')
    assert find_checkpoint('here.pth') == tmp_path / 'here.pth'


def test_ema_on_request():
    source, average, target = build(), build(seed=5), build(seed=1)
    file = dict(
        state_dict=to_authors(source),
        state_dict_ema={
            'module.' + k: v for k, v in to_authors(average).items()})
    load_classification_checkpoint(target, file)
    same(source, target, ('norm0', 'norm1', 'norm2'))
    load_classification_checkpoint(target, file, ema=True)
    same(average, target, ('norm0', 'norm1', 'norm2'))
    with pytest.raises(CheckpointError, match='EMA'):
        load_classification_checkpoint(target, to_authors(source), ema=True)
    with pytest.raises(CheckpointError, match='EMA'):
        load_classification_checkpoint(
            target, dict(file, state_dict_ema=None), ema=True)


def test_mmengine_swaps_the_average_in():
    from mmengine.hooks import EMAHook
    from mmengine.model import ExponentialMovingAverage
    source, target = build(), build(seed=1)
    average = ExponentialMovingAverage(build(seed=5))
    hook = EMAHook()
    hook.src_model, hook.ema_model = source, average
    file = dict(state_dict=source.state_dict())
    hook.before_save_checkpoint(None, file)
    for ema in (True, False):  # what mmengine would load is the average
        load_classification_checkpoint(target, file, ema=ema)
        same(average.module, target)


def test_prefix():
    source, target = build(), build(seed=1)
    state = {'net.trunk.' + k: v for k, v in source.state_dict().items()}
    load_classification_checkpoint(target, state, prefix='net.trunk.')
    same(source, target)
    with pytest.raises(CheckpointError, match='prefix'):
        load_classification_checkpoint(target, state, prefix='visual.')


def test_init_cfg_survives_two_calls(tmp_path):
    source = build('CSaN')
    torch.save(source.state_dict(), tmp_path / 'a.pth')
    cfg = dict(
        type='mmcsan.PretrainedClassifier', checkpoint=str(tmp_path / 'a.pth'))
    target = build('CSaN', seed=1, init_cfg=cfg)
    for _ in range(2):
        target.init_weights()
        same(source, target)


def test_the_classifier_is_loaded_last(tmp_path):
    source = build('CSaN')
    torch.save(source.state_dict(), tmp_path / 'a.pth')
    constant = dict(type='Constant', layer='Linear', val=7.)
    target = build(
        dict(type='CSaN', init_cfg=constant),
        seed=1,
        init_cfg=[
            dict(
                type='mmcsan.PretrainedClassifier',
                checkpoint=str(tmp_path / 'a.pth')), constant
        ])
    target.init_weights()
    same(source, target)


def test_initial_values_survive_init_weights():
    """A backbone without init_cfg keeps what its constructor set."""
    model = build(dict(type='CSaN', init='identity'))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.init_weights()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_bad_coverage():
    with pytest.raises(ValueError, match='min_coverage'):
        load_classification_checkpoint(
            build(), build().state_dict(), min_coverage=1.5)


def test_torchscript_is_refused(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / 'a.pth')
    with pytest.raises(CheckpointError, match='TorchScript'):
        load_classification_checkpoint(build(), tmp_path / 'a.pth')


def test_rectangular_windows_are_resized_in_2d():
    source = build(window_size=[(2, 5)] * 4)
    target = build(seed=1, window_size=[(3, 7)] * 4)
    table = source.stages[0].blocks[0].attn.relative_position_bias_table
    with torch.no_grad():  # a ramp along the width alone
        table.copy_(torch.arange(9.).repeat(3)[:, None])
    report = load_classification_checkpoint(target, source.state_dict())
    assert set(report.resized.values()) == {((27, h), (65, h))
                                            for h in ARCH['num_heads']}
    resized = target.stages[0].blocks[0].attn.relative_position_bias_table
    resized = resized.view(5, 13)
    assert torch.allclose(resized, resized[:1].expand(5, 13), atol=1e-5)
    assert (resized[0].diff() > 0).all()


def test_table_of_no_window():
    state = build().state_dict()
    key = 'stages.0.blocks.0.attn.relative_position_bias_table'
    state[key] = torch.zeros(50, 1)
    with pytest.raises(CheckpointError, match='50 rows'):
        load_classification_checkpoint(build(), state)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16,
                                   torch.float64])
def test_other_precisions(dtype):
    source, target = build(), build(seed=1)
    source.to(dtype)
    load_classification_checkpoint(target, source.state_dict())
    for key, value in target.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, source.state_dict()[key].float())


def test_nan_is_warned_of(monkeypatch):
    lines = []
    monkeypatch.setattr(
        'mmcsan.checkpoints.loader.print_log',
        lambda line, level, **kwargs: lines.append((line, level)))
    state = build().state_dict()
    state['patch_embed.projection.bias'][3] = float('nan')
    load_classification_checkpoint(build(), state)
    warned = [line for line, level in lines if level == logging.WARNING]
    assert len(warned) == 1
    assert warned[0].startswith('patch_embed.projection.bias')


def test_sharded(tmp_path):
    from safetensors.torch import save_file
    source, target = build(), build(seed=1)
    state = source.state_dict()
    keys = list(state)
    weight_map = {}
    for number, part in enumerate((keys[:50], keys[50:])):
        name = f'model-{number}.safetensors'
        save_file({k: state[k] for k in part}, tmp_path / name)
        weight_map.update(dict.fromkeys(part, name))
    index = tmp_path / 'model.safetensors.index.json'
    index.write_text(json.dumps(dict(weight_map=weight_map)))
    load_classification_checkpoint(target, index)
    same(source, target)
    (tmp_path / 'model-1.safetensors').unlink()
    with pytest.raises(CheckpointError, match='model-1'):
        load_classification_checkpoint(target, index)
    for bad in ('{}', '[1]', 'no json', '{"weight_map": {"a": "../b.pth"}}'):
        index.write_text(bad)
        with pytest.raises(CheckpointError, match='index'):
            load_classification_checkpoint(target, index)


def _craft(path, ops):
    """A checkpoint file whose pickle is given, byte by byte."""
    import zipfile
    whole = path.with_suffix('.whole')
    torch.save({'a': torch.zeros(1), 'b': argparse.Namespace()}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(
            path, 'w') as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, ops if name.endswith('data.pkl') else data)


def _text(value):
    return b'X' + len(value).to_bytes(4, 'little') + value.encode()


def _global(module, name):
    return f'c{module}\n{name}\n'.encode()


_OBJECT = (_global('numpy', 'dtype') + _text('O8') + b'\x89\x88\x87R')
ATTACKS = {
    # A storage over any address: UntypedStorage(8, allocator=pointer).
    'allocator':
    b'\x80\x04' + _global('argparse', 'Namespace') + b'0' +
    _global('torch.storage', 'UntypedStorage') + b'K\x08\x85}' +
    _text('allocator') + b'\x8a\x08AAAAAAAAs\x92.',
    # Eight bytes read as a pointer to an object.
    'object scalar':
    b'\x80\x03' + _global('numpy.core.multiarray', 'scalar') + _OBJECT +
    b'C\x08AAAAAAAA\x86R.',
    # Other defaults for a function of torch, another method for a class.
    'rewired function':
    b'\x80\x02' + _global('torch._utils', '_rebuild_parameter') + b'N}' +
    _text('__defaults__') + b'K\x01K\x02\x86s\x86b.',
    'rewired class':
    b'\x80\x02' + _global('collections', 'Counter') + b'N}' +
    _text('update') + _global('builtins', 'bytes') + b's\x86b.',
    # A call reached through an allowed container.
    'chain':
    b'\x80\x02' + _global('builtins', 'getattr') +
    _global('collections', 'OrderedDict') + _text('__init_subclass__') +
    b'\x86R' + b')R' + _global('os', 'getcwd') + b')R.',
}


@pytest.mark.parametrize('reader', ['DataUnpickler', 'RunUnpickler'])
@pytest.mark.parametrize('attack', ATTACKS)
def test_crafted_files_do_nothing(attack, reader, tmp_path):
    """In a process of its own: some of these would end it."""
    import subprocess
    import sys
    path = tmp_path / 'crafted.pth'
    _craft(path, ATTACKS[attack])
    code = f'''
import collections, torch
from mmcsan.checkpoints import CheckpointError
from mmcsan.checkpoints import pickles
before = (collections.Counter.update, torch._utils._rebuild_parameter.__defaults__)
try:
    with open({str(path)!r}, 'rb') as file:
        pickles.load_torch(file, 'crafted', pickles.{reader})
except CheckpointError as e:
    print('refused')
after = (collections.Counter.update, torch._utils._rebuild_parameter.__defaults__)
print('same' if before == after else 'changed')
'''  # noqa: E501
    result = subprocess.run([sys.executable, '-W', 'ignore', '-c', code],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    # Where numpy is replaced by stand-ins there is nothing to refuse.
    harmless = attack == 'object scalar' and reader == 'DataUnpickler'
    expected = ['same'] if harmless else ['refused', 'same']
    assert result.stdout.split()[-len(expected):] == expected, result.stdout
