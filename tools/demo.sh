#!/usr/bin/env bash
# Set up everything and run the demo: bash tools/demo.sh [options of demo.py]
# See setup_env.sh for the Python and the folder of the environment.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
setup_env
step "Running the demo"
cd "$MMCSAN_ROOT"
exec "$VENV_PYTHON" tools/demo.py "$@"
