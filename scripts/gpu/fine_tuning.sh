#!/usr/bin/env bash
# Run the study of fine-tuning (scripts/studies/fine_tuning.py) on one GPU for a number of seconds, with several processes side by side.
#
#   scripts/gpu/fine_tuning.sh DATA OUTPUT [SECONDS] [PROCESSES] [MINUTES]
#
# DATA holds benchmarks/ and expression/. OUTPUT/fine_tuning.json gets the finished pieces; a file of an earlier call is restored first, so that
# the study continues. MINUTES (0.5) is the time of each network in the pieces that have a limit (few-, ablation-).
set -u
data=$(realpath -e "${1:?usage: scripts/gpu/fine_tuning.sh DATA OUTPUT [SECONDS] [PROCESSES] [MINUTES]}") || exit 1
: "${2:?usage: scripts/gpu/fine_tuning.sh DATA OUTPUT [SECONDS] [PROCESSES] [MINUTES]}"
mkdir -p "$2" || exit 1
output=$(realpath -e "$2") || exit 1
seconds=${3:-420} processes=${4:-12} minutes=${5:-0.5}
study=(python scripts/studies/fine_tuning.py --data "$data" --output runs/fine_tuning --minutes "$minutes")
export OMP_NUM_THREADS=1

if [ -f "$output/fine_tuning.json" ]; then # pieces that cannot be restored would be lost when the file is written again
  "${study[@]}" --restore "$output/fine_tuning.json" --table > "$output/restored.txt" 2>&1 || exit 1
fi
trap 'kill $(jobs -p) 2>/dev/null' INT TERM # finished pieces are collected all the same
for ((i = 0; i < processes; i++)); do
  timeout "$seconds" "${study[@]}" > "$output/process_$i.txt" 2>&1 &
done
wait
"${study[@]}" --table --collect "$output/fine_tuning.json" > "$output/table.txt" 2>&1
