"""When the fallback for mmcv's compiled module answers, and when not."""
import subprocess
import sys

import pytest

from mmcsan.compat.mmcv_ops_finder import _FallbackFinder

_INSTALL = ('from mmcsan.compat import install_mmcv_ops_fallback as install\n'
            'install()\n')


def _run(code, *path):
    """Run ``code`` in a clean process, with ``path`` before ``sys.path``."""
    path = [str(p) for p in path] + sys.path
    code = f'import sys\nsys.path[:] = {path!r}\n{code}'
    result = subprocess.run([sys.executable, '-c', code],
                            capture_output=True,
                            text=True)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return output


@pytest.fixture
def small_mmcv(tmp_path):
    """A package that calls itself mmcv and has ``ops`` but no ``_ext``."""
    (tmp_path / 'mmcv' / 'ops').mkdir(parents=True)
    (tmp_path / 'mmcv' / '__init__.py').touch()
    (tmp_path / 'mmcv' / 'ops' / '__init__.py').touch()
    return tmp_path


def test_installing_imports_nothing_and_is_idempotent():
    _run('import mmcsan.compat\n'
         'before = set(sys.modules)\n'
         'finders = len(sys.meta_path)\n'
         'mmcsan.compat.install_mmcv_ops_fallback()\n'
         'mmcsan.compat.install_mmcv_ops_fallback()\n'
         'assert set(sys.modules) == before, set(sys.modules) - before\n'
         'from mmcsan.compat.mmcv_ops_finder import _FallbackFinder as F\n'
         'assert sum(isinstance(f, F) for f in sys.meta_path) == 1\n'
         'assert isinstance(sys.meta_path[-1], F)\n')


def test_finder_answers_for_one_module_only(small_mmcv, tmp_path, monkeypatch):
    path, finder = [str(small_mmcv / 'mmcv')], _FallbackFinder()
    assert finder.find_spec('mmcv._ext', path).name == 'mmcv._ext'
    for name in ('mmcv', 'mmcv.ops', 'mmcv._other', '_ext', 'mmdet._ext'):
        assert finder.find_spec(name, path) is None
    # mmcv-lite has no mmcv.ops, and mmengine trusts mmcv._ext to tell.
    assert finder.find_spec('mmcv._ext', [str(tmp_path / 'other')]) is None
    monkeypatch.setitem(sys.modules, 'torchvision', None)
    assert finder.find_spec('mmcv._ext', path) is None


def test_compiled_module_wins(small_mmcv):
    (small_mmcv / 'mmcv' / '_ext.py').write_text('compiled = True\n')
    output = _run(
        _INSTALL + 'import mmcv._ext\n'
        'assert mmcv._ext.compiled is True\n'
        "assert not hasattr(mmcv._ext, 'nms')\n", small_mmcv)
    assert 'without its compiled operators' not in output


def test_fallback_loads_where_the_module_is_absent_and_says_so_once(
        small_mmcv):
    output = _run(
        _INSTALL + 'import mmcv._ext\n'
        'assert callable(mmcv._ext.nms)\n'
        "del sys.modules['mmcv._ext']\n"
        'import mmcv._ext\n', small_mmcv)
    assert output.count('without its compiled operators') == 1


def test_blocked_module_hurts_only_mmcv_ops():
    pytest.importorskip('mmcv')
    _run("sys.modules['mmcv._ext'] = None\n" + _INSTALL + 'import mmcv\n'
         'import mmcsan.compat.mmcv_ops\n'
         'from mmengine.utils.dl_utils import mmcv_full_available\n'
         'assert not mmcv_full_available()\n'
         'try:\n'
         '    import mmcv.ops\n'
         'except ImportError:\n'
         '    pass\n'
         'else:\n'
         "    raise AssertionError('mmcv.ops was imported')\n")


def test_all_of_mmdet_models_imports():
    pytest.importorskip('mmdet')
    _run(_INSTALL + 'import pkgutil, mmdet.models\n'
         'from importlib import import_module\n'
         'found = pkgutil.walk_packages(mmdet.models.__path__,\n'
         "                              'mmdet.models.', onerror=None)\n"
         'names = [module.name for module in found]\n'
         'assert len(names) > 100, names\n'
         'for name in names:\n'
         '    import_module(name)\n'
         'from mmdet.registry import MODELS\n'
         "assert 'MaskRCNN' in MODELS\n")
