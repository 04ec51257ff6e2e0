#!/usr/bin/env bash
# Builds the wheel and the source distribution in dist/, and checks both: each is installed into an environment of its own, away from
# the checkout, where the commands have to list themselves, load the bundled model and generate a sequence.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$python" -m venv "$work/build"
"$work/build/bin/pip" install -q --disable-pip-version-check build
"$work/build/bin/python" -m build --outdir dist . > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }

version=$("$python" -c "import re; print(re.search(r'__version__ = \"(.+)\"', open('dnadiff/__init__.py').read())[1])")
grep -q "^version = \"$version\"" pyproject.toml || { echo "error: pyproject.toml and dnadiff/__init__.py have different versions" >&2; exit 1; }
grep -q "^## " CHANGELOG.md

for file in dist/*.whl dist/*.tar.gz; do
  environment=$work/$(basename "$file")
  "$python" -m venv "$environment"
  # The installed packages of the checkout's environment are used where there are any, which saves downloading PyTorch.
  if [ -x .venv/bin/python ]; then
    site=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    own=$("$environment/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    "$environment/bin/pip" install -q --disable-pip-version-check hatchling
    "$environment/bin/pip" install -q --disable-pip-version-check --no-deps --no-build-isolation "$root/$file"
    echo "$site" > "$own/zz_checkout.pth"
  else
    "$environment/bin/pip" install -q --disable-pip-version-check -c constraints.txt "$root/$file"
  fi
  (
    cd "$work"
    "$environment/bin/python" - "$environment" <<'PYTHON'
import sys
from pathlib import Path

import dnadiff

assert Path(dnadiff.__file__).is_relative_to(Path(sys.argv[1])), f"imported {dnadiff.__file__}"
PYTHON
    "$environment/bin/python" -m dnadiff > /dev/null
    "$environment/bin/dnadiff-sample" checkpoint=ecoli num_samples=1 length=64 output="$work/x.fa" overwrite=true "hydra.run.dir=$work/run" > /dev/null 2> "$work/log" \
      || { cat "$work/log" >&2; exit 1; }
    grep -q '^>' "$work/x.fa"
  )
  echo "$file"
done
