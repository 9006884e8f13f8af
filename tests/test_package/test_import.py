"""What a clean process sees."""
import subprocess
import sys

import pytest


def run(code, root):
    """Run code in a new process that sees the clone."""
    return subprocess.run([sys.executable, '-W', 'ignore', '-c', code],
                          cwd=root,
                          capture_output=True,
                          text=True,
                          timeout=300)


def test_import_is_light(root):
    code = ('import socket, sys\n'
            'socket.socket.connect = None\n'
            'import mmcsan\n'
            'heavy = {"torch", "mmcv", "mmdet", "mmseg", "mmpretrain"}\n'
            'print(sorted(heavy & set(sys.modules)))')
    result = run(code, root)
    assert result.stdout.strip() == '[]', result.stderr


@pytest.mark.parametrize('missing', ['mmdet', 'mmseg', 'mmpretrain'])
def test_import_does_without_a_codebase(root, missing):
    code = (f'import sys; sys.modules["{missing}"] = None\n'
            'import mmcsan, mmcsan.registry; print("fine")')
    result = run(code, root)
    assert result.stdout.strip() == 'fine', result.stderr


@pytest.mark.parametrize('missing', ['torch', 'mmengine', 'mmcv'])
def test_import_names_what_is_missing_and_the_cure(root, missing):
    result = run(
        f'import sys; sys.modules["{missing}"] = None; import mmcsan', root)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert f'needs {missing}' in last and 'pip install' in last


@pytest.mark.parametrize('scope, absent', [('mmseg', 'mmdet'),
                                           ('mmpretrain', 'mmdet'),
                                           ('mmdet', 'mmseg')])
def test_builds_from_a_codebase_without_import(root, scope, absent):
    """No ``custom_imports`` and no other codebase is needed."""
    code = f'''
import sys
sys.modules[{absent!r}] = None
from {scope}.registry import MODELS
if {scope!r} == 'mmdet':
    from importlib.util import find_spec
    if find_spec('mmcv._ext') is None:
        # mmdet's own models do not import without compiled operators
        import mmcsan
assert MODELS.get('mmcsan.SwinTransformer').__module__ == (
    'mmcsan.backbones.swin')
try:
    MODELS.build(dict(type='mmcsan.SwinTransfomer'))
except KeyError as e:
    print(e)
'''
    result = run(code, root)
    assert "Did you mean 'SwinTransformer'?" in result.stdout, result.stderr
