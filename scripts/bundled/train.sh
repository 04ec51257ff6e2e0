#!/usr/bin/env bash
# Trains a bundled model, measures its held-out likelihood and writes it to dnadiff/bundled/NAME. About one hour on two CPU cores; started again
# after an interruption, it continues. A finished run in runs/bundled/NAME, such as one of scripts/gpu/bundled.sh, is not trained again; its card
# says how in TRAINED, such as TRAINED="by scripts/gpu/bundled.sh on one GPU" (without quotation marks in it).
#
#   scripts/bundled/train.sh ecoli
#   scripts/bundled/train.sh yeast GENOMES
#   scripts/bundled/train.sh human_chr20 GENOMES
#   scripts/bundled/train.sh multi GENOMES
#   scripts/bundled/train.sh enterobacteria [ALIGNMENT]
#
# ALIGNMENT is a file of `python -m dnadiff.align genome=bundled:ecoli_K12_MG1655.fa.gz`, without it bundled:enterobacteria.aln.xz. With this model
# the ranks of random SNVs ship too, for percentile=true of `variants`.
# GENOMES is a folder with scerevisiae_R64-1-1.fa.gz, GRCh37_chr20.fa.gz and celegans_WBcel235_chrI.fa.gz. The parts held out of `multi` are
# those of the other models.
name=${1:?usage: scripts/bundled/train.sh ecoli|yeast|human_chr20|multi|enterobacteria [GENOMES or ALIGNMENT]} genomes=
case $name in
  ecoli) ;;
  yeast | human_chr20 | multi)
    : "${2:?$name needs the folder of the genomes as the second argument}"
    genomes=$(CDPATH= cd -- "$2" && pwd) || exit 1
    ;;
  enterobacteria)
    alignment=${2:-bundled:enterobacteria.aln.xz}
    case $alignment in
      bundled:*) ;;
      *) alignment=$(CDPATH= cd -- "$(dirname -- "$alignment")" && pwd)/$(basename -- "$alignment") || exit 1 ;;
    esac
    ;;
  *) echo "unknown model $name; choose ecoli, yeast, human_chr20, multi or enterobacteria" >&2; exit 1 ;;
esac
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""

# Bash 3.2, which macOS has, refuses "${data[@]}" of an empty array under set -u; ${data[@]+...} is nothing then.
yeast=$genomes/scerevisiae_R64-1-1.fa.gz
human=$genomes/GRCh37_chr20.fa.gz
worm=$genomes/celegans_WBcel235_chrI.fa.gz
recipe=(experiment=bundled) draws=2 # a network call for each of millions of held-out bases needs few draws
case $name in
  ecoli) recipe=(experiment=ecoli_bundled) data=() draws=8 ;;
  enterobacteria) recipe=(experiment=enterobacteria "data.alignment='$alignment'") data=() draws=8 ;;
  yeast) data=(data=fasta data/split=fraction "data.path='$yeast'" "data.name='S. cerevisiae R64-1-1'") draws=8 ;;
  human_chr20) data=(data=fasta data/split=chr20 "data.path='$human'" "data.name='human chr20 (GRCh37)'") ;;
  multi) recipe+=(backbone.num_labels=4) data=(
    data=fasta data/split=regions data.split.bed=bundled:multi.split.bed
    "data.path={ecoli:'bundled:ecoli_K12_MG1655.fa.gz',human:'$human',worm:'$worm',yeast:'$yeast'}"
    "data.name='E. coli, S. cerevisiae, C. elegans chrI, human chr20'"
  ) ;;
esac
note="Trained ${TRAINED:-by scripts/bundled/train.sh on CPU cores}. To fine-tune, to embed, to score and to sample sequences of what it was trained on."
[ "$name" != enterobacteria ] || note="$note Reads the columns of related genomes: likelihoods with them are conditional on homologs of the held-out part."
note="$note Not for statements about variants of patients, about other organisms, or about function."

licenses="Public reference sequences, which may be used and redistributed without restriction"
run=runs/bundled/$name
[ -f "$run/metrics.json" ] || python -m dnadiff.train "${recipe[@]}" ${data[@]+"${data[@]}"} hydra.run.dir="$run" resume=true
export=(license=apache-2.0 "data_license='$licenses'" "note='$note'" duplicate_tied=false overwrite=true)
if [ "$name" = multi ]; then # the largest: stored in half precision, and measured as it is stored
  export+=(dtype=float16)
  [ -d "$run/model" ] || python -m dnadiff.export checkpoint="$run" output="$run/model" "${export[@]}"
  run=$run/model
  data+=(data.length=1024)
else
  data=()
fi
[ -f "$run/evaluate.json" ] || python -m dnadiff.evaluate checkpoint="$run" ${data[@]+"${data[@]}"} length=4096 num_draws=$draws output="$run/evaluate.json"
output=dnadiff/bundled/$name neutral=neutral_variants.json
rm -f "$output/$neutral" # export replaces a folder with files of its own only
python -m dnadiff.export checkpoint="$run" output="$output" "${export[@]}"
if [ "$name" = enterobacteria ]; then
  # The command scores random SNVs for each of the twelve changes of these three, once, and keeps them in the run folder.
  python -m dnadiff.variants checkpoint="$run" genome=bundled:ecoli_K12_MG1655.fa.gz "alignment='$alignment'" \
    saturate=U00096.3:1000001-1000040 percentile=true output="$run/saturated.tsv" overwrite=true
  cp "$run/$neutral" "$output"
fi
