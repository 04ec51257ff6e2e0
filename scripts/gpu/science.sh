#!/usr/bin/env bash
# Train the three objectives of `steps.py` side by side on one GPU for some minutes each, on human chr20, and evaluate them: under 10 minutes.
#
#   scripts/gpu/science.sh GENOMES OUTPUT [MINUTES] [SECONDS]
#
# Finished pieces are in OUTPUT/science.json and the logs next to it. SECONDS (570) stops what is not finished.
set -u
genomes=$(realpath -e "${1:?usage: scripts/gpu/science.sh GENOMES OUTPUT [MINUTES] [SECONDS]}") || exit 1
: "${2:?usage: scripts/gpu/science.sh GENOMES OUTPUT [MINUTES] [SECONDS]}"
mkdir -p "$2" || exit 1
output=$(realpath -e "$2") || exit 1
minutes=${3:-4} seconds=${4:-570} device=${DEVICE:-cuda} options=${OPTIONS:-}
export OMP_NUM_THREADS=4
# shellcheck disable=SC2086 # several options
steps() { timeout "$seconds" python scripts/gpu/steps.py --output runs/gpu_science --genomes "$genomes" --minutes "$minutes" --device "$device" $options "$@"; }
for objective in mdlm ar block; do
  steps --only "science-$objective" > "$output/$objective.txt" 2>&1 &
done
wait
steps --table --collect "$output/science.json" > "$output/table.txt" 2>&1
