#!/usr/bin/env bash
# Train under Slurm:
#   slurm_train.sh PARTITION JOB_NAME CONFIG [options of train.py]
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS are read from the
# environment.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG [options of train.py]" >&2
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
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$3" \
    --launcher slurm "${@:4}"
