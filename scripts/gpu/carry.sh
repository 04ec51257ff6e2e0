#!/usr/bin/env bash
# Collect in one folder what a GPU machine with PyTorch but without a network lacks: wheels, genomes, mamba-ssm's extensions 
# (45 MB). Where checkout (22 MB) and folder may have 64 MB together, delete what a command does not need from genomes/ and prebuilt/.
#
#   scripts/gpu/carry.sh GENOMES PREBUILT OUTPUT [PYTHON]      # here; GENOMES and PREBUILT hold *.fa.gz and *.so.xz, PYTHON is 3.12
#   export PYTHONPATH=$(scripts/gpu/carry.sh unpack OUTPUT FOLDER)      # on that machine, in the checkout: FOLDER gets the packages
set -euo pipefail
if [ "${1:-}" = unpack ]; then
  for wheel in "$2"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$3"; done
  mkdir -p "$2/prebuilt" # may be left out
  find "$2/prebuilt" -name '*.so.xz' | while read -r archive; do xz -dkc "$archive" > "$3/$(basename "${archive%.xz}")"; done
  echo "$PWD:$3"
  exit
fi
genomes=${1:?usage: scripts/gpu/carry.sh GENOMES PREBUILT OUTPUT [PYTHON]} prebuilt=${2:?PREBUILT is missing} output=${3:?OUTPUT is missing}
mkdir -p "$output/wheels" "$output/genomes" "$output/prebuilt"
cp -f "$genomes"/{GRCh37_chr20,celegans_WBcel235_chrI,scerevisiae_R64-1-1}.fa.gz "$output/genomes"
cp -f "$prebuilt"/*.so.xz "$output/prebuilt"
platforms=()
for version in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${version}_x86_64"); done
packages=$(grep -E '^(hydra-core|omegaconf|biopython|pyfaidx|datasets|dill|multiprocess|pydantic|pydantic_core|annotated-types|typing-inspection)==' constraints.txt)
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version "${4:-3.12}" --implementation cp \
  "${platforms[@]}" --platform manylinux2014_x86_64 -d "$output/wheels" $packages
# hydra-core's parser has no wheel; it is plain Python.
python3 -m pip wheel -q --disable-pip-version-check --no-deps -w "$output/wheels" "$(grep '^antlr4-python3-runtime==' constraints.txt)"
du -sh "$output"
