#!/usr/bin/env bash
# Test under Slurm:
#   slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS are read from the
# environment.
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG CHECKPOINT" \
        "[options of test.py]" >&2
    exit 2
fi
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-$((GPUS < 8 ? GPUS : 8))}
# shellcheck disable=SC2086  # SRUN_ARGS holds several words
exec srun -p "$1" \
    --job-name="$2" \
    --gres="gpu:$GPUS_PER_NODE" \
    --ntasks="$GPUS" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/test.py" "$3" "$4" \
    --launcher slurm "${@:5}"
