#!/bin/bash
# Trains on two machines without a scheduler. On both of them, from the folder that holds examples/:
#
#     bash examples/cluster/two_machines.sh ADDRESS_OF_THE_FIRST examples/digits.yaml
#
# Options of `mm-runner train` may follow the configuration. Both machines need the same folder for
# checkpoints, such as one on NFS. If a process or a machine fails, training resumes from the newest
# checkpoint as soon as both are there again.
set -eu
first=$1
shift

# With torchrun in place of `mm-dist run` it works too, where each machine's own name resolves to an
# address that the other one reaches.
${LAUNCHER:-mm-dist run} \
    --nnodes=2 \
    --nproc_per_node="${NPROC_PER_NODE:-gpu}" \
    --rdzv_backend=c10d \
    --rdzv_endpoint="$first:29400" \
    --rdzv_id=two_machines \
    --max_restarts=3 \
    -m mm_runner train "$@" --launcher=pytorch --resume
