#!/usr/bin/env bash
# Train on the GPUs of one machine, one process for each: bash scripts/cluster/eight_gpus.sh RUN_FOLDER [KEY=VALUE ...]
#
# A second start with the same arguments continues the run. GPUS=4 uses four of them.
set -eu
run=${1:?give a run folder, such as runs/train/mine, and then keys of python -m dnadiff.train}
shift
gpus=${GPUS:-8}
exec torchrun --standalone --nproc-per-node="$gpus" -m dnadiff.train \
    hydra.run.dir="$run" resume=true trainer.accelerator=gpu trainer.devices="$gpus" trainer.strategy=ddp trainer.precision=bf16-mixed "$@"
