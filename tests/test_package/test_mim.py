"""Train and test through mim, from a wheel and from an editable install."""
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

tiny_spec = importlib.util.spec_from_file_location(
    'tiny_data',
    Path(__file__).resolve().parents[1] / 'test_tools' / 'tiny.py')
tiny = importlib.util.module_from_spec(tiny_spec)
tiny_spec.loader.exec_module(tiny)

NAME = 'only-for-this-test_8xb2.py'
LEFT_OUT = ('.git', '.venv', 'data', 'work_dirs', '__pycache__', '*.egg-info',
            '.pytest_cache', '.ruff_cache', 'build', 'dist')
TOOLS_OF_CLONES = {'demo.sh', 'run_tests.sh', 'setup_env.sh'}


def run(*command, cwd):
    """Run a command; its output is the message if it fails."""
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True,
        timeout=600, stdin=subprocess.DEVNULL,
        env=dict(os.environ, OMP_NUM_THREADS='1'))
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-4000:]
    return output


def new_venv(folder):
    """An environment that sees what this one has installed."""
    venv.create(folder, with_pip=False)
    python = folder / 'bin' / 'python'
    site = run(python, '-c',
               'import sysconfig; print(sysconfig.get_path("purelib"))',
               cwd=folder).strip()
    ours = {sysconfig.get_path(name) for name in ('purelib', 'platlib')}
    Path(site, 'outer.pth').write_text('\n'.join(ours))
    return python


def install(python, *what, cwd):
    run(sys.executable, '-m', 'pip', '--python', python, 'install',
        '--no-deps', '--no-index', '--no-build-isolation', *what, cwd=cwd)


@pytest.fixture(scope='module')
def clone(root, tmp_path_factory):
    """A copy of the clone, with one tiny config more."""
    folder = tmp_path_factory.mktemp('clone') / 'mmcsan'
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    data = tmp_path_factory.mktemp('data')
    tiny.write_images(data)
    (folder / 'configs' / 'test').mkdir()
    tiny.write_config(folder / 'configs' / 'test' / NAME, data, 'mmpretrain')
    return folder


@pytest.fixture(scope='module')
def wheel(clone, tmp_path_factory):
    folder = tmp_path_factory.mktemp('wheel')
    before = sorted(p.name for p in clone.iterdir())
    run(sys.executable, '-m', 'pip', 'wheel', '--no-build-isolation',
        '--no-deps', '--no-index', '-w', folder, '.', cwd=clone)
    # a copy of the configs left in an editable install would confuse mim
    assert sorted(p.name for p in clone.iterdir()) == before
    return next(folder.glob('mmcsan-*.whl'))


@pytest.fixture(scope='module')
def wheel_python(wheel, tmp_path_factory):
    python = new_venv(tmp_path_factory.mktemp('venv'))
    install(python, wheel, cwd=wheel.parent)
    return python


def test_the_wheel_holds_what_mim_reads(clone, wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert names.count('mmcsan/.mim/tools/train.py') == 1
    wanted = ['model-index.yml']
    for folder in ('configs', 'tools'):
        wanted += [
            p.relative_to(clone).as_posix()
            for p in (clone / folder).rglob('*')
            if p.is_file() and p.name not in TOOLS_OF_CLONES
        ]
    for place in ('mmcsan/.mim', '_mmcsan_mim/.mim'):
        found = [n[len(place) + 1:] for n in names if n.startswith(place)]
        assert sorted(found) == sorted(wanted)
    assert not [n for n in names if n.startswith('tests')]
    code = {p.relative_to(clone).as_posix()
            for p in (clone / 'mmcsan').rglob('*') if p.is_file()}
    assert code <= set(names)


def test_configs_parse_from_the_wheel(wheel_python, clone, tmp_path):
    code = '''
from pathlib import Path
import mmcsan
from mmengine.config import Config
folder = Path(mmcsan.__file__).parent / '.mim' / 'configs'
count = 0
for path in folder.rglob('*.py'):
    Config.fromfile(path)
    count += 1
print(mmcsan.__file__, count)
'''
    file, count = run(wheel_python, '-W', 'ignore', '-c', code,
                      cwd=tmp_path).split()[-2:]
    assert 'site-packages' in file
    assert int(count) == len(list((clone / 'configs').rglob('*.py')))


def test_mim_from_a_wheel(wheel_python, tmp_path):
    mim = (wheel_python, '-W', 'ignore', '-m', 'mim')
    run(*mim, 'train', 'mmcsan', NAME, cwd=tmp_path)
    work = tmp_path / 'work_dirs' / Path(NAME).stem
    assert (work / 'epoch_2.pth').is_file()
    out = tmp_path / 'metrics.json'
    run(*mim, 'test', 'mmcsan', NAME, '--checkpoint', work / 'epoch_2.pth',
        '--out', out, cwd=tmp_path)
    assert 'accuracy/top1' in out.read_text()


def test_mim_from_an_editable_install(clone, tmp_path, tmp_path_factory):
    python = new_venv(tmp_path / 'venv')
    install(python, '-e', clone, cwd=tmp_path)
    empty = tmp_path / 'empty'
    empty.mkdir()
    mim = (python, '-W', 'ignore', '-m', 'mim')
    output = run(*mim, 'train', 'mmcsan', NAME, cwd=empty)
    assert str(clone / 'tools' / 'train.py') in output
    saved = empty / 'work_dirs' / Path(NAME).stem / 'epoch_2.pth'
    # from the clone too, where metadata beside the package would mislead
    output = run(*mim, 'test', 'mmcsan', NAME, '--checkpoint', saved,
                 '--work-dir', empty, cwd=clone)
    assert str(clone / 'tools' / 'test.py') in output
