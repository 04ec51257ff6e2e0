#!/usr/bin/env bash
# Builds the wheel and the source distribution in dist/, and checks both: each is installed into an environment of its own, away from
# the checkout, where the commands have to list themselves, load the bundled models and generate a sequence.
#
#   scripts/release.sh           uses the installed packages of .venv if it exists, which saves downloading PyTorch
#   CLEAN=1 scripts/release.sh   installs all dependencies, so that one that is not declared is missing
#   scripts/release.sh 0.1.0     before tagging a version: it must be that of the package, with a section in CHANGELOG.md
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD python=${PYTHON:-python3} released=${1:-}

version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' dnadiff/renamed.py)
grep -q "^version = \"$version\"" pyproject.toml || { echo "error: pyproject.toml and dnadiff/renamed.py have different versions" >&2; exit 1; }
if [ -n "$released" ]; then
  [ "${released#v}" = "$version" ] || { echo "error: $released is not the version of the package, $version" >&2; exit 1; }
  grep -Eq "^## ${version//./\\.}( |$)" CHANGELOG.md || { echo "error: CHANGELOG.md has no section '## $version'" >&2; exit 1; }
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
"$python" -m venv "$work/build"
"$work/build/bin/pip" install -q --disable-pip-version-check build
"$work/build/bin/python" -m build --outdir dist . > "$work/build.log" || { cat "$work/build.log" >&2; exit 1; }

for file in dist/*.whl dist/*.tar.gz; do
  environment=$work/$(basename "$file")
  "$python" -m venv "$environment"
  if [ -x .venv/bin/python ] && [ -z "${CLEAN:-}" ]; then
    site=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    own=$("$environment/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    "$environment/bin/pip" install -q --disable-pip-version-check hatchling
    "$environment/bin/pip" install -q --disable-pip-version-check --no-deps --no-build-isolation "$root/$file"
    echo "$site" > "$own/zz_checkout.pth"
  else
    # As in setup.sh: on Linux without a GPU, PyTorch's CPU build, which is a tenth of the default one; without that index, the default.
    if [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1; then
      "$environment/bin/pip" install -q --disable-pip-version-check --retries 0 --timeout 15 \
        --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)" >/dev/null 2>&1 || true
    fi
    "$environment/bin/pip" install -q --disable-pip-version-check -c constraints.txt "$root/$file"
  fi
  (
    cd "$work"
    "$environment/bin/python" - "$environment" <<'PYTHON'
import sys
from pathlib import Path

import dnadiff

package = Path(dnadiff.__file__).parent
assert package.is_relative_to(Path(sys.argv[1])), f"imported {package}"
for name in ("configs/backbone/transformer.yaml", "genomic_benchmarks/published.csv", "RESPONSIBLE_USE.md", "py.typed"):
    assert (package / name).is_file(), f"{name} is missing"
PYTHON
    run() { "$environment/bin/$@" > /dev/null 2> "$work/log" || { cat "$work/log" >&2; exit 1; }; }
    run python -m dnadiff
    for model in "$root"/dnadiff/bundled/*/; do
      run dnadiff-info checkpoint="$(basename "$model")"
    done
    run dnadiff-sample checkpoint=ecoli num_samples=1 length=64 output="$work/x.fa" overwrite=true hydra.run.dir="$work/run"
    grep -q '^>' "$work/x.fa"
  )
  echo "$file"
done
