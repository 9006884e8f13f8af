"""Files that would do more than hold weights do nothing and are refused."""
import argparse
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile

import pytest
import torch
from test_loader import _craft, _global, _text, build

from mmcsan.checkpoints import CheckpointError, load_classification_checkpoint
from mmcsan.checkpoints.pickles import DataUnpickler, RunUnpickler, load_torch
from mmcsan.engine.checkpoint_io import load_as_data

SYSTEM, TOUCH = _global('os', 'system'), _text('touch evil_was_here')
OPEN = _global('io', 'open')
# Each makes a call in its own way; a stub in front forces the careful reader.
START = b'\x80\x04' + _global('argparse', 'Namespace') + b'0'
CALLS = {
    'REDUCE': SYSTEM + TOUCH + b'\x85R.',
    'NEWOBJ': SYSTEM + TOUCH + b'\x85\x81.',
    'NEWOBJ_EX': SYSTEM + TOUCH + b'\x85}\x92.',
    'OBJ': b'(' + SYSTEM + TOUCH + b'o.',
    'INST': b'(' + TOUCH + b'ios\nsystem\n.',
    'STACK_GLOBAL': _text('os') + _text('system') + b'\x93' + TOUCH +
    b'\x85R.',
    'BUILD': _global('collections', 'OrderedDict') + b')R}' +
    _text('__reduce__') + SYSTEM + b'sb.',
    'memo': SYSTEM + b'q\x010' + b'h\x01' + TOUCH + b'\x85R.',
    'memo of a name': _text('os') + b'q\x05' + _text('system') + b'q\x060' +
    b'0h\x05h\x06\x93' + TOUCH + b'\x85R.',
    'posix': _global('posix', 'system') + TOUCH + b'\x85R.',
    'eval': _global('builtins', 'eval') + _text('open("evil_was_here","w")') +
    b'\x85R.',
    'exec': _global('__builtin__', 'exec') +
    _text('open("evil_was_here","w")') + b'\x85R.',
    'open': OPEN + _text('evil_was_here') + _text('w') + b'\x86R.',
    'import': _global('builtins', '__import__') + _text('antigravity') +
    b'\x85R.',
    'partial': _global('functools', 'partial') + SYSTEM + TOUCH + b'\x86R)R.',
    'map': _global('builtins', 'map') + SYSTEM + TOUCH + b'\x85\x86R.',
    'getattr': _global('builtins', 'getattr') + _global('os', 'path') +
    _text('os') + b'\x86R.',
    'dotted name': _text('os') + _text('path.os.system') + b'\x93' + TOUCH +
    b'\x85R.',
    'torch.load': _global('torch', 'load') + _text('other.pth') + b'\x85R.',
    'hub': _global('torch.hub', 'load') + _text('x/y') + _text('z') +
    b'\x86R.',
    'inside numpy': _global('numpy.testing._private.utils', 'runstring') +
    _text('open("evil_was_here","w")') + b'}\x86R.',
    'inside mmengine': _global('mmengine.utils', 'import_modules_from_strings'
                               ) + _text('antigravity') + b'\x85R.',
    'default factory': _global('collections', 'defaultdict') + SYSTEM +
    b'\x85R.',
    'extension': b'\x82\x01.',
    'text persistent id': b'Pos\n.',
    'metaclass': _global('builtins', 'type') + _text('X') + b')}\x87R.',
}
MEMORY = {
    'bytearray': _global('builtins', 'bytearray') +
    b'\x8a\x06\x00\x00\x00\x00\x00\x10\x85R.',
    'bytes': _global('builtins', 'bytes') +
    b'\x8a\x06\x00\x00\x00\x00\x00\x10\x85R.',
    'bytearray8': b'\x96' + struct.pack('<Q', 1 << 44) + b'x.',
    'binbytes8': b'\x8e' + struct.pack('<Q', 1 << 44) + b'x.',
    'unicode8': b'\x8d' + struct.pack('<Q', 1 << 44) + b'x.',
    'list of range': _global('builtins', 'list') +
    _global('builtins', 'range') + b'\x8a\x06\x00\x00\x00\x00\x00\x10\x85R' +
    b'\x85R.',
}
# What numpy's and mmengine's stand-ins swallow without a call.
SWALLOWED = {'inside numpy', 'inside mmengine', 'list of range', 'getattr'}


def check(path, reader, name, tmp_path):
    try:
        with open(path, 'rb') as file:
            load_torch(file, 'it', reader)
    except CheckpointError as e:
        assert len(str(e)) < 900
    else:
        assert name in SWALLOWED, name
    assert not (tmp_path / 'evil_was_here').exists()
    assert 'antigravity' not in sys.modules


@pytest.mark.parametrize('reader', [DataUnpickler, RunUnpickler])
@pytest.mark.parametrize('name', [*CALLS, *MEMORY])
@pytest.mark.parametrize('kind', ['zip', 'legacy', 'bare'])
def test_calls_are_refused(name, reader, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'crafted.pth'
    code = START + {**CALLS, **MEMORY}[name]
    if kind == 'zip':
        _craft(path, code)
    elif kind == 'bare':
        path.write_bytes(code)
    else:
        torch.save({'a': torch.zeros(1)}, path,
                   _use_new_zipfile_serialization=False)
        head = io.BytesIO(path.read_bytes())
        for _ in range(3):
            pickle.load(head)
        start = head.tell()
        path.write_bytes(head.getvalue()[:start] + code)
    check(path, reader, name, tmp_path)


def test_a_stub_in_front_is_what_reaches_the_careful_reader(tmp_path):
    """The attacks above get past the first reader of torch."""
    path = tmp_path / 'crafted.pth'
    _craft(path, START + CALLS['REDUCE'])
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)


def test_an_attack_in_the_facts_of_a_legacy_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'crafted.pth'
    path.write_bytes(START + CALLS['REDUCE'])
    with pytest.raises(CheckpointError, match='run os.system'):
        load_classification_checkpoint(build(), path)
    assert os.listdir() == ['crafted.pth']


@pytest.mark.parametrize('kind', [tarfile.REGTYPE, tarfile.SYMTYPE,
                                  tarfile.FIFOTYPE])
@pytest.mark.parametrize('ustar', [True, False])
def test_tar_archives_are_not_unpacked(kind, ustar, tmp_path):
    path = tmp_path / 'old.pth'
    with tarfile.open(path, 'w', format=tarfile.USTAR_FORMAT) as archive:
        for name in ('storages', 'tensors', 'pickle'):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, '/etc/hostname'
            archive.addfile(info)
    if not ustar:  # the oldest kind has no mark, but a sum to be right
        data = bytearray(path.read_bytes())
        for start in range(0, 3 * 512, 512):
            data[start + 257:start + 265] = bytes(8)
            data[start + 148:start + 156] = b' ' * 8
            total = sum(data[start:start + 512])
            data[start + 148:start + 156] = b'%06o\0 ' % total
        path.write_bytes(data)
        assert tarfile.is_tarfile(path)
    with pytest.raises(CheckpointError, match='tar' if ustar else 'damaged'):
        load_classification_checkpoint(build(), path)


def test_bombs_are_not_unpacked(tmp_path):
    whole, path = tmp_path / 'whole', tmp_path / 'bomb.pth'
    torch.save({'a': torch.zeros(1 << 23)}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(
            path, 'w', zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    assert path.stat().st_size < 1 << 17
    with pytest.raises(CheckpointError, match='unpacks to'):
        load_classification_checkpoint(build(), path)


def test_an_archive_behind_something_else(tmp_path):
    path = tmp_path / 'a.pth'
    torch.save(build().state_dict(), path)
    path.write_bytes(b'\x80\x02N.' + path.read_bytes())
    with pytest.raises(CheckpointError):
        load_classification_checkpoint(build(), path)


def test_a_storage_that_claims_more_than_it_has(tmp_path):
    def refuse(numel):
        path, whole = tmp_path / 'a.pth', tmp_path / 'whole'
        torch.save({'a': torch.zeros(3)}, whole)
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(
                path, 'w') as target:
            for name in source.namelist():
                data = source.read(name)
                if name.endswith('data.pkl'):
                    # the number of the storage, then that of the shape
                    assert data.count(b'K\x03') == 2
                    data = data.replace(b'K\x03', b'\x8a\x05' +
                                        numel.to_bytes(5, 'little'))
                target.writestr(name, data)
        with pytest.raises(CheckpointError):
            load_classification_checkpoint(build(), path)
    for numel in (4, 1000, 1 << 36):
        refuse(numel)


def test_tensors_that_are_no_plain_arrays(tmp_path):
    name = 'stages.0.blocks.0.norm1.weight'
    for bad, word in [
        (torch.zeros(1).expand(24), 'repeats'),
        (torch.zeros(24, device='meta'), 'without content'),
        (torch.zeros(24).to_sparse(), 'sparse'),
        (torch.quantize_per_tensor(torch.zeros(24), 1., 0, torch.qint8),
         'quantized'),
    ]:
        state = dict(build().state_dict(), **{name: bad})
        with pytest.raises(CheckpointError, match=word) as e:
            load_classification_checkpoint(build(), state)
        assert name in str(e.value)


def test_wrappers_that_hold_themselves():
    content = dict(epoch=1)
    content['model'] = content
    with pytest.raises(CheckpointError, match='no tensors'):
        load_classification_checkpoint(build(), content)
    with pytest.raises(CheckpointError, match='no tensors'):
        load_classification_checkpoint(build(), {5: torch.zeros(1)})


@pytest.mark.parametrize('content, word', [
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:1', 'Git LFS'),
    (b'\xef\xbb\xbf<html>', 'web page'),
    (b'{"message": "Not Found"}', 'text that starts with'),
    (b'\x1f\x8b\x08' + b'0' * 90, 'damaged'),
    (b'\x89HDF\r\n\x1a\n' + b'0' * 90, 'damaged'),
    (bytes(2000), 'damaged'),
    (b'PK\x05\x06' + bytes(18), 'damaged'),
])
def test_other_files(content, word, tmp_path):
    for name in ('a.pth', 'a', 'a.bin'):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=word):
            load_classification_checkpoint(build(), tmp_path / name)


@pytest.mark.parametrize('legacy', [False, True])
def test_cut_off_anywhere(legacy, tmp_path):
    path = tmp_path / 'a.pth'
    torch.save({'a': torch.zeros(300), 'n': argparse.Namespace()}, path,
               _use_new_zipfile_serialization=not legacy)
    data = path.read_bytes()
    for size in [*range(1, 90, 7), *range(90, len(data), len(data) // 30)]:
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            load_classification_checkpoint(build(), path)


def test_cut_off_safetensors_under_any_name(tmp_path):
    from safetensors.torch import save
    data = save(build().state_dict())
    for name in ('a.safetensors', 'a.bin'):
        path = tmp_path / name
        path.write_bytes(data)
        assert load_classification_checkpoint(build(), path).coverage == 1
        for size in (20, 1000, len(data) - 1):
            path.write_bytes(data[:size])
            with pytest.raises(CheckpointError, match='damaged'):
                load_classification_checkpoint(build(), path)


def test_byte_order(tmp_path):
    """Zip files say theirs and are read; legacy files are refused."""
    state, target = build().state_dict(), build(seed=1)
    whole, path = tmp_path / 'whole', tmp_path / 'a.pth'
    torch.save(state, whole)
    other = b'big' if sys.byteorder == 'little' else b'little'
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path,
                                                           'w') as archive:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith('byteorder'):
                data = other
            elif '/data/' in name:  # all of them are of four bytes
                data = b''.join(data[i:i + 4][::-1]
                                for i in range(0, len(data), 4))
            archive.writestr(name, data)
    load_classification_checkpoint(target, path)
    for key, value in target.state_dict().items():
        assert torch.equal(value, state[key])
    torch.save(state, path, _use_new_zipfile_serialization=False)
    head = io.BytesIO(path.read_bytes())
    pickle.load(head), pickle.load(head)
    start, facts = head.tell(), pickle.load(head)
    facts['little_endian'] = not facts['little_endian']
    path.write_bytes(head.getvalue()[:start] + pickle.dumps(facts, 2)
                     + head.read())
    with pytest.raises(CheckpointError, match='byte order'):
        load_classification_checkpoint(build(), path)


@pytest.mark.parametrize('index, word', [
    ('{"weight_map": {"a": 5}}', 'weight_map|5, which is no file'),
    ('{"weight_map": {"a": 5, "b": "x"}}', 'weight_map of file names'),
    ('{"weight_map": {"a": null}}', 'None, which'),
    ('{"weight_map": {"a": ["x"]}}', 'weight_map of file names'),
    ('{"weight_map": ["a"]}', 'weight_map of file names'),
    ('{"weight_map": {"a": "../x.pth"}}', 'no file of its directory'),
    ('{"weight_map": {"a": "/etc/passwd"}}', 'no file of its directory'),
    (r'{"weight_map": {"a": "..\\x"}}', 'no file of its directory'),
    ('{"weight_map": {"a": ".."}}', 'no file of its directory'),
    ('{"weight_map": {"a": ""}}', 'no file of its directory'),
    ('{"weight_map": {"a": "m.index.json"}}', 'no file of its directory'),
    ('{"weight_map": {"a": "https://x/y"}}', 'no file of its directory'),
    ('{"weight_map": {"a": "gone.pth"}}', 'gone.pth'),
    ('{"weight_map": {"other": "there.pth"}}', 'such as other'),
    ('[' * 99999, 'index'), ('\x00', 'index'), ('{}', 'index'),
])
def test_bad_indexes(index, word, tmp_path):
    torch.save({'a': torch.zeros(1)}, tmp_path / 'there.pth')
    path = tmp_path / 'm.index.json'
    path.write_text(index)
    with pytest.raises(CheckpointError, match=word):
        load_classification_checkpoint(build(), path)


def test_a_key_in_two_shards(tmp_path):
    for name in 'ab':
        torch.save({'x': torch.zeros(1)}, tmp_path / f'{name}.pth')
    path = tmp_path / 'm.index.json'
    path.write_text(json.dumps(dict(
        weight_map={'x': 'a.pth', 'y': 'b.pth'})))
    with pytest.raises(CheckpointError, match='x is in b.pth and in another'):
        load_classification_checkpoint(build(), path)


def test_weights_are_read_on_the_cpu(tmp_path):
    """Files of a GPU are read where there is none."""
    whole, path = tmp_path / 'whole', tmp_path / 'a.pth'
    torch.save(build().state_dict(), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path,
                                                           'w') as archive:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith('data.pkl'):
                assert b'X\x03\x00\x00\x00cpu' in data
                data = data.replace(b'X\x03\x00\x00\x00cpu',
                                    b'X\x06\x00\x00\x00cuda:7')
            archive.writestr(name, data)
    assert load_classification_checkpoint(build(), path).coverage == 1


def test_a_run_reads_its_own_log(tmp_path):
    from mmengine.logging import HistoryBuffer
    log = HistoryBuffer()
    for value in (3., 1., 2.):
        log.update(value)
    torch.save(dict(log=log, w=torch.ones(2)), tmp_path / 'run.pth')
    read = load_as_data(str(tmp_path / 'run.pth'), 'cpu')['log']
    assert read.statistics('min') == 1 and read.mean() == 2
    code = START + _global(
        'mmengine.logging.history_buffer', 'HistoryBuffer') + b')\x81}' + (
            _text('update') + _global('builtins', 'dict') + b'sb.')
    _craft(tmp_path / 'bad.pth', code)
    with pytest.raises(CheckpointError, match='log of a run'):
        load_as_data(str(tmp_path / 'bad.pth'), 'cpu')


def test_nested_in_endless_references(tmp_path):
    """Errors do not spell out what would fill the memory."""
    code = b'\x80\x04' + _global('argparse', 'Namespace') + b'0]' + b''.join(
        b'\x94]h' + bytes([i]) + b'ah' + bytes([i]) + b'a' for i in range(40))
    path = tmp_path / 'a.pth'
    _craft(path, code + b'}' + _text('x') + b'K\x01sb.')
    done = subprocess.run([
        sys.executable, '-W', 'ignore', '-c',
        'from mmcsan.checkpoints import *\n'
        f'try: read_state_dict({str(path)!r})\n'
        'except CheckpointError as e: print(e)'
    ], capture_output=True, text=True, timeout=60)
    assert 'refused' in done.stdout and len(done.stdout) < 600, done.stderr
