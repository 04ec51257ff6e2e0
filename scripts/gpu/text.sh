#!/usr/bin/env bash
# What is left of the evidence on a GPU, in about 10 minutes: GPU tests, the DiT step, and War and Peace by two models side by side.
#
#   scripts/gpu/text.sh BOOK OUTPUT [MINUTES]      # BOOK is war_and_peace.txt.gz; MINUTES (6) of training for each model
set -u
book=$(realpath -e "${1:?usage: scripts/gpu/text.sh BOOK OUTPUT [MINUTES]}") || exit 1
: "${2:?usage: scripts/gpu/text.sh BOOK OUTPUT [MINUTES]}"
mkdir -p "$2" || exit 1
output=$(realpath -e "$2") || exit 1
minutes=${3:-6} device=${DEVICE:-cuda} options=${OPTIONS:-}
step=${STEP:---size small --batch 32 --repeats 10 --compile}
# shellcheck disable=SC2086 # several options
timeout 90 python scripts/bench/dit_step.py $step --device "$device" --json "$output/dit_step.json" > "$output/dit_step.txt" 2>&1
# shellcheck disable=SC2086
for model in mdlm ar; do
  python scripts/experiments/war_and_peace.py --data "$book" --output "$output/war_and_peace" --models "$model" --minutes "$minutes" --device "$device" $options \
    > "$output/$model.txt" 2>&1 &
done
timeout 240 python -m pytest -m gpu -q tests/backbone tests/downstream tests/sampler > "$output/tests.txt" 2>&1 &
wait
python scripts/experiments/war_and_peace.py --table --output "$output/war_and_peace" $options > "$output/table.txt"
cat "$output/dit_step.txt" "$output/table.txt"
tail -n 1 "$output/tests.txt"
