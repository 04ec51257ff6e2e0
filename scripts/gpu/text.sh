#!/usr/bin/env bash
# GPU measurements that have not been made yet, in about 10 minutes: the DiT step, GPU tests, and War and Peace by two models side by side.
#
#   scripts/gpu/text.sh BOOK OUTPUT [MINUTES] [SECONDS]
#
# BOOK is war_and_peace.txt.gz; MINUTES (6) of training for each model; SECONDS (480) stop a model that is not finished.
set -u
usage="usage: scripts/gpu/text.sh BOOK OUTPUT [MINUTES] [SECONDS]"
book=$(realpath -e "${1:?$usage}") || exit 1
: "${2:?$usage}"
mkdir -p "$2" || exit 1
output=$(realpath -e "$2") || exit 1
minutes=${3:-6} seconds=${4:-480} device=${DEVICE:-cuda} options=${OPTIONS:-} failed=0
step=${STEP:---size small --batch 32 --repeats 10 --compile}
# shellcheck disable=SC2086 # several options
timeout 90 python scripts/bench/dit_step.py $step --device "$device" --json "$output/dit_step.json" > "$output/dit_step.txt" 2>&1 || failed=1
jobs=()
for model in mdlm ar; do
  # shellcheck disable=SC2086 # several options
  timeout "$seconds" python scripts/studies/war_and_peace.py --data "$book" --output "$output/war_and_peace" --models "$model" \
    --minutes "$minutes" --device "$device" $options > "$output/$model.txt" 2>&1 &
  jobs+=($!)
done
timeout 240 python -m pytest -m gpu -q tests/networks/backbone tests/supervised tests/diffusion/sampler > "$output/tests.txt" 2>&1 &
jobs+=($!)
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
# shellcheck disable=SC2086 # several options
python scripts/studies/war_and_peace.py --table --output "$output/war_and_peace" $options > "$output/table.txt" || failed=1
cat "$output/dit_step.txt" "$output/table.txt"
tail -n 1 "$output/tests.txt"
exit "$failed"
