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
step "Running the tests (pytest)"
exec "$VENV_PYTHON" -m pytest "$@"
