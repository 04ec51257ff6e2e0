#!/usr/bin/env bash
# Train the bundled models yeast, human_chr20 and multi at once on one GPU, evaluate them, and run the GPU tests next to them: under 8 minutes
# on an H200. The recipe is that of scripts/bundled/train.sh with four times the batch.
#
#   scripts/gpu/bundled.sh GENOMES OUTPUT [SECONDS]
#
# OUTPUT gets one archive for each model (the run folder without its last checkpoint) and the logs. Training is stopped after SECONDS (300); a
# stopped run is saved and can be resumed.
set -u
genomes=$(realpath -e "${1:?usage: scripts/gpu/bundled.sh GENOMES OUTPUT [SECONDS]}") || exit 1
: "${2:?usage: scripts/gpu/bundled.sh GENOMES OUTPUT [SECONDS]}"
mkdir -p "$2" || exit 1
output=$(realpath -e "$2") || exit 1
seconds=${3:-300}
export OMP_NUM_THREADS=4

train() { # NAME KEY=VALUE ...
    local name=$1 run=runs/bundled/$1
    shift
    timeout "$seconds" python -m dnadiff.train "$@" data.batch_size=32 trainer.accelerator=gpu hydra.run.dir="$run" resume=true
    [ ! -f "$run/metrics.json" ] || python -m dnadiff.evaluate checkpoint="$run" length=4096 num_draws=8 accelerator=gpu hydra.run.dir="$run"
    tar -cf "$output/$name.tar" --exclude last.ckpt "$run"
}

yeast=$genomes/scerevisiae_R64-1-1.fa.gz human=$genomes/GRCh37_chr20.fa.gz worm=$genomes/celegans_WBcel235_chrI.fa.gz
train human_chr20 experiment=bundled data/split=chr20 "data.path='$human'" "data.name='human chr20 (GRCh37)'" > "$output/human_chr20.txt" 2>&1 &
train multi experiment=bundled data/split=regions data.split.bed=bundled:multi.split.bed backbone.num_labels=4 \
    "data.path={ecoli:'bundled:ecoli_K12_MG1655.fa.gz',human:'$human',worm:'$worm',yeast:'$yeast'}" \
    "data.name='E. coli, S. cerevisiae, C. elegans chrI, human chr20'" > "$output/multi.txt" 2>&1 &
train yeast experiment=bundled data/split=fraction "data.path='$yeast'" "data.name='S. cerevisiae R64-1-1'" > "$output/yeast.txt" 2>&1 &
python -m pytest -m gpu -q tests/networks/kernels tests/networks/backbone > "$output/tests.txt" 2>&1 &
wait
