"""Conversion to this project's own files, and the tools that show it."""
import hashlib
import json
import subprocess
import sys

import pytest
import torch
from mmengine.logging import HistoryBuffer
from safetensors.torch import load_file
from test_loader import ARCH, build, to_authors

from mmcsan.checkpoints import (CheckpointError, convert_checkpoint,
                                load_classification_checkpoint, save_weights)

ATTENTIONS = [
    'Softmax',
    dict(
        type='CSaN', variant='unbounded', granularity='unit', posinfo=True),
    dict(type='CSaN', variant='bounded', granularity='head', posinfo=False)
]


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_converts_and_loads(attention, suffix, tmp_path):
    source, target = build(attention), build(attention, seed=1)
    done = convert_checkpoint(to_authors(source))
    assert done.guess_arch() == dict(ARCH, attention=attention)
    path = save_weights(done.weights, tmp_path / f'swin{suffix}')
    assert path.stem == 'swin-' + hashlib.sha256(
        path.read_bytes()).hexdigest()[:8]
    report = load_classification_checkpoint(target, path)
    assert report.coverage == 1 and report.format.startswith('mmcsan Swin')
    assert set(report.new) == {
        f'norm{i}.{k}' for i in range(3) for k in ('weight', 'bias')}
    for key, value in done.weights.items():
        assert torch.equal(target.state_dict()[key], value)
    # Tensors only: torch reads it without executing anything.
    if suffix == '.pth':
        torch.load(path, weights_only=True)
    else:
        load_file(path)


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_is_idempotent(suffix, tmp_path):
    done = convert_checkpoint(to_authors(build('CSaN')))
    once = save_weights(done.weights, tmp_path / f'swin{suffix}')
    again = convert_checkpoint(once)
    assert save_weights(again.weights, once) == once
    assert len(list(tmp_path.iterdir())) == 1


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match='safetensors'):
        save_weights({}, tmp_path / 'swin.bin')


def run(root, tool, *args):
    return subprocess.run(
        [sys.executable, root / 'tools' / tool, *map(str, args)],
        capture_output=True,
        text=True)


def test_tools(root, tmp_path):
    file = tmp_path / 'run.pth'
    torch.save(
        dict(
            state_dict={
                'module.' + k: v for k, v in to_authors(
                    build('CSaN')).items()},
            log=HistoryBuffer()), file)
    result = run(root, 'convert_checkpoint.py', file, tmp_path / 'out.pth',
                 '--to', 'safetensors', '--report', 'json')
    report = json.loads(result.stdout)
    assert report['format'] == 'CSaN Swin'
    assert report['arch']['depths'] == ARCH['depths']
    assert report['file'].endswith('.safetensors')
    assert 'head.fc.weight' in report['dropped']

    config = tmp_path / 'config.py'
    config.write_text(f'''
model = dict(backbone=dict(
    type='mmcsan.SwinTransformer', arch=dict(**{ARCH}), window_size=7,
    attention='CSaN'))''')
    result = run(root, 'inspect_checkpoint.py', report['file'], '--config',
                 config)
    assert result.returncode == 0, result.stderr
    for word in ('mmcsan Swin', 'SwinTransformer', "'unbounded'", '(100%)',
                 'resized'):
        assert word in result.stdout

    (tmp_path / 'page.pth').write_text('<html>404</html>')
    for tool in ('inspect_checkpoint.py', 'convert_checkpoint.py'):
        extra = [tmp_path / 'x.pth'] if 'convert' in tool else []
        result = run(root, tool, tmp_path / 'page.pth', *extra)
        assert result.returncode == 1 and 'web page' in result.stderr
