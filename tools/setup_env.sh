# Sourced by demo.sh and run_tests.sh: a virtual environment of mmcsan's own.
# After setup_env, $VENV_PYTHON is its Python. Safe to repeat: what is there
# and works is kept, what is broken is made anew.
#   PYTHON       the Python to make it with; default: the first of 3.10 - 3.12
#   MMCSAN_VENV  its folder; default: .venv in the clone

MMCSAN_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="${MMCSAN_VENV:-$MMCSAN_ROOT/.venv}"
case "$VENV" in
/*) ;;
*) VENV="$PWD/$VENV" ;;
esac
VENV_PYTHON="$VENV/bin/python"
VENV_STAMP="$VENV/mmcsan-installed"
VENV_UNFINISHED="$VENV/mmcsan-unfinished"
VENV_EXTRAS="mminstall,demo,test"

step() {
    echo "==> $*"
}

die() {
    echo "error: $*" >&2
    exit 1
}

# Whether a Python is one of the tested ones and can make environments.
usable_python() {
    "$1" -c '
import sys
import venv, ensurepip
sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
        </dev/null >/dev/null 2>&1
}

# Set BASE_PYTHON.
find_python() {
    local name
    if [ -n "${PYTHON:-}" ]; then
        usable_python "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.10 -" \
            "3.12 with the modules venv and ensurepip"
        BASE_PYTHON="$PYTHON"
        return
    fi
    for name in python3.11 python3.12 python3.10 python3 python; do
        if usable_python "$name"; then
            BASE_PYTHON="$name"
            return
        fi
    done
    die "no Python 3.10 - 3.12 with the modules venv and ensurepip on PATH." \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv) or" \
        "name one: PYTHON=/path/to/python bash $0"
}

# What the installation depends on; another value means another installation.
fingerprint() {
    "$BASE_PYTHON" -c '
import hashlib, sys
parts = [sys.version, sys.base_prefix] + sys.argv[1:2]
parts += [open(name).read() for name in sys.argv[2:]]
print(hashlib.sha256("\n".join(parts).encode()).hexdigest())' \
        "$VENV_EXTRAS $MMCSAN_ROOT" "$MMCSAN_ROOT/setup.py" \
        "$MMCSAN_ROOT/mmcsan/version.py"
}

# Whether the environment runs and mmcsan in it is this clone's.
works() {
    "$VENV_PYTHON" -c '
import os, sys
import cv2, mmcsan, torch
sys.exit(not os.path.realpath(mmcsan.__file__).startswith(sys.argv[1]))' "$MMCSAN_ROOT/" \
        </dev/null >/dev/null 2>&1
}

make_venv() {
    if [ -n "$(ls -A "$VENV" 2>/dev/null)" ] && [ ! -e "$VENV_UNFINISHED" ] &&
        [ ! -e "$VENV/pyvenv.cfg" ]; then
        die "$VENV is no virtual environment; move it away or name another" \
            "folder: MMCSAN_VENV=/path/to/folder bash $0"
    fi
    step "Making the virtual environment $VENV with $BASE_PYTHON"
    rm -rf "$VENV"
    mkdir -p "$VENV"
    # until all is installed: a run cut short is not taken for a whole one
    touch "$VENV_UNFINISHED"
    "$BASE_PYTHON" -m venv "$VENV" </dev/null
}

install_mmcsan() {
    step "Installing mmcsan and what it needs (some minutes, about 6 GB)"
    rm -f "$VENV_STAMP"
    (cd "$MMCSAN_ROOT" &&
        "$VENV_PYTHON" -m pip install -e ".[$VENV_EXTRAS]" </dev/null)
    "$VENV_PYTHON" -c 'import cv2' </dev/null 2>/dev/null || headless_opencv
    "$VENV_PYTHON" -c 'import cv2, mmcsan, torch' </dev/null
}

# Two OpenCV distributions share one folder. The one with windows needs
# libGL, which servers lack; the other one must be written last there.
headless_opencv() {
    step "OpenCV needs libraries of a desktop here: using its headless build"
    local version
    version="$("$VENV_PYTHON" -c '
from importlib.metadata import version
print(version("opencv-python"))')"
    "$VENV_PYTHON" -m pip install --force-reinstall --no-deps \
        "opencv-python-headless==$version" </dev/null
}

setup_env() {
    find_python
    local wanted
    wanted="$(fingerprint)"
    if [ -f "$VENV_STAMP" ] && [ "$(cat "$VENV_STAMP")" = "$wanted" ] &&
        works; then
        step "The virtual environment $VENV is up to date"
        return
    fi
    if [ -e "$VENV_UNFINISHED" ] || [ -f "$VENV_STAMP" ] ||
        ! "$VENV_PYTHON" -m pip --version </dev/null >/dev/null 2>&1; then
        make_venv
    fi
    install_mmcsan
    echo "$wanted" >"$VENV_STAMP"
    rm -f "$VENV_UNFINISHED"
}
