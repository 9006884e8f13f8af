#!/usr/bin/env bash
# Train on several GPUs: dist_train.sh CONFIG GPUS [options of train.py]
# Several machines: set NNODES, NODE_RANK and MASTER_ADDR on each.
# Without a GPU, GPUS processes share the CPU.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG GPUS [options of train.py]" >&2
    exit 2
fi
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$2" \
    "$(dirname "$0")/train.py" "$1" --launcher pytorch "${@:3}"
