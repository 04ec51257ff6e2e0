#!/usr/bin/env bash
# Trains a bundled model, measures its held-out likelihood and writes it to dnadiff/bundled/NAME. About one hour on two CPU cores; started again
# after an interruption, it continues.
#
#   scripts/bundled/train.sh ecoli
#   scripts/bundled/train.sh yeast GENOMES
#   scripts/bundled/train.sh human_chr20 GENOMES
#   scripts/bundled/train.sh multi GENOMES
#
# GENOMES is a folder with scerevisiae_R64-1-1.fa.gz, GRCh37_chr20.fa.gz and celegans_WBcel235_chrI.fa.gz. The parts held out of `multi` are
# those of the other models.
name=${1:?usage: scripts/bundled/train.sh ecoli|yeast|human_chr20|multi [GENOMES]} genomes=
case $name in
  ecoli) ;;
  yeast | human_chr20 | multi)
    : "${2:?$name needs the folder of the genomes as the second argument}"
    genomes=$(realpath -e "$2") || exit 1
    ;;
  *) echo "unknown model $name; choose ecoli, yeast, human_chr20 or multi" >&2; exit 1 ;;
esac
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""

yeast=$genomes/scerevisiae_R64-1-1.fa.gz
human=$genomes/GRCh37_chr20.fa.gz
worm=$genomes/celegans_WBcel235_chrI.fa.gz
case $name in
  ecoli) data=(experiment=ecoli_bundled) ;;
  yeast) data=(experiment=bundled data/split=fraction "data.path='$yeast'" "data.name='S. cerevisiae R64-1-1'") ;;
  human_chr20) data=(experiment=bundled data/split=chr20 "data.path='$human'" "data.name='human chr20 (GRCh37)'") ;;
  multi) data=(
    experiment=bundled data/split=regions data.split.bed=bundled:multi.split.bed backbone.num_labels=4
    "data.path={ecoli:'bundled:ecoli_K12_MG1655.fa.gz',human:'$human',worm:'$worm',yeast:'$yeast'}"
    "data.name='E. coli, S. cerevisiae, C. elegans chrI, human chr20'"
  ) ;;
esac

run=runs/bundled/$name
[ -f "$run/metrics.json" ] || python -m dnadiff.train "${data[@]}" hydra.run.dir="$run" resume=true
[ -f "$run/evaluate.json" ] || python -m dnadiff.evaluate checkpoint="$run" length=4096 num_draws=8 hydra.run.dir="$run"
python -m dnadiff.export checkpoint="$run" output="dnadiff/bundled/$name" license=apache-2.0 duplicate_tied=false overwrite=true
