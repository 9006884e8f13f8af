"""What the set-up keeps, mends and makes anew; installing is stubbed."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

STUBS = '''
set -euo pipefail
. tools/setup_env.sh
install_mmcsan() { echo INSTALL; rm -f "$VENV_STAMP"; ${FAIL:-true}; }
works() { [ ! -e "$VENV/broken" ]; }
usable_python() { "$1" -c '' 2>/dev/null; }
setup_env
echo "READY $VENV_PYTHON"
'''
# an environment without pip is made in a blink
FAKE_PYTHON = '''#!/bin/sh
if [ "$1" = -m ] && [ "$2" = venv ]; then
    mkdir -p "$3/bin"
    touch "$3/pyvenv.cfg"
    cp "$0" "$3/bin/python"
    exit
fi
[ "$1" = -m ] && [ "$2" = pip ] && exit
exec {python} "$@"
'''


@pytest.fixture
def setup(root, tmp_path):
    """Run the set-up into a folder and tell what it did."""
    python = tmp_path / 'python3.11'
    python.write_text(FAKE_PYTHON.format(python=sys.executable))
    python.chmod(0o755)

    def run(**env):
        result = subprocess.run(
            ['bash', '-c', STUBS], cwd=root, capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ, PYTHON=str(python),
                     MMCSAN_VENV=str(tmp_path / 'env'), **env))
        lines = result.stdout.splitlines()
        return (result, [word for word in ('Making', 'INSTALL', 'READY')
                         if any(word in line for line in lines)])

    run.env = tmp_path / 'env'
    return run


def test_first_and_second_time(setup):
    assert setup()[1] == ['Making', 'INSTALL', 'READY']
    result, done = setup()
    assert done == ['READY']
    assert 'up to date' in result.stdout


def test_a_changed_requirement_installs_again(setup):
    setup()
    (setup.env / 'mmcsan-installed').write_text('of other requirements')
    assert 'INSTALL' in setup()[1]
    assert setup()[1] == ['READY']


def test_an_environment_that_broke_is_made_anew(setup):
    setup()
    (setup.env / 'broken').touch()
    assert setup()[1] == ['Making', 'INSTALL', 'READY']
    assert not (setup.env / 'broken').exists()


def test_an_unfinished_installation_is_made_anew(setup):
    result, done = setup(FAIL='false')
    assert result.returncode != 0 and 'READY' not in done
    (setup.env / 'half').touch()
    assert setup()[1] == ['Making', 'INSTALL', 'READY']
    assert not (setup.env / 'half').exists()


@pytest.mark.parametrize('left', ['bin/python', 'pyvenv.cfg'])
def test_a_half_made_folder_is_made_anew(setup, left):
    (setup.env / 'bin').mkdir(parents=True)
    (setup.env / 'pyvenv.cfg').touch()
    (setup.env / left).touch()
    assert setup()[1] == ['Making', 'INSTALL', 'READY']


def test_a_folder_of_something_else_is_not_touched(setup):
    setup.env.mkdir()
    precious = setup.env / 'thesis.tex'
    precious.touch()
    result, done = setup()
    assert result.returncode != 0 and 'no virtual environment' in result.stderr
    assert precious.exists() and not done


def test_no_python_is_told(root, tmp_path):
    (tmp_path / 'dirname').symlink_to('/usr/bin/dirname')
    code = '. tools/setup_env.sh; find_python'
    env = {k: v for k, v in os.environ.items() if k != 'PYTHON'}
    result = subprocess.run(['/bin/bash', '-c', code], cwd=root,
                            env=dict(env, PATH=str(tmp_path)),
                            capture_output=True, text=True)
    assert result.returncode == 1
    assert 'no Python 3.10 - 3.12' in result.stderr
    result = subprocess.run(['bash', '-c', code], cwd=root,
                            env=dict(env, PYTHON='/no/python'),
                            capture_output=True, text=True)
    assert result.returncode == 1 and '/no/python' in result.stderr


@pytest.mark.parametrize('script', ['tools/demo.sh', 'tools/run_tests.sh',
                                    '.ci/run'])
def test_scripts_parse_and_can_be_run(root, script):
    assert os.access(Path(root, script), os.X_OK)
    subprocess.run(['bash', '-n', script], cwd=root, check=True)
