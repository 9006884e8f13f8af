#!/usr/bin/env bash
# Set up everything and run the tests: bash tools/run_tests.sh [pytest options]
# See setup_env.sh for the Python and the folder of the environment.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
setup_env
cd "$MMCSAN_ROOT"
step "Checking the style (ruff, isort)"
"$VENV_PYTHON" -m ruff check .
"$VENV_PYTHON" -m isort --check-only --diff .
step "Running the tests (pytest, a process for each core)"
# Two processes of one thread are faster than one of two. A file stays whole:
# its fixtures are made once.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$VENV_PYTHON" -m pytest -n "${MMCSAN_TEST_PROCESSES:-auto}" \
    --dist loadfile "$@"
