# Sourced by demo.sh and test.sh: a virtual environment in .venv with the package and its pinned dependencies.
# Usage: . scripts/setup.sh EXTRAS        (EXTRAS such as "" or "[test]")
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=${1:-}
version_of() { "$1" -c 'import sys; print(".".join(map(str, sys.version_info[:3])))'; }
if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=${PYTHON:-python3}; fi
version=$(version_of "$python")
other=$([ -z "${PYTHON:-}" ] || version_of "$PYTHON")
if [ -n "${PYTHON:-}" ] && [ "${other%.*}" != "${version%.*}" ]; then
  echo "error: .venv has Python $version, but PYTHON=$PYTHON is Python $other; remove .venv to make it again, or unset PYTHON" >&2
  exit 1
fi
case $extras in
  *docs*) least=3.11.5 ;; # soupsieve and pymdown-extensions need it
  *) least=3.11.0 ;;
esac
"$python" -c "import sys; sys.exit(sys.version_info[:3] < tuple(map(int, '$least'.split('.'))))" || {
  echo "error: Python $version is too old: dnadiff$extras needs Python $least or later; set PYTHON=/path/to/python3 (and remove .venv)" >&2
  exit 1
}
[ -x .venv/bin/python ] || "$python" -m venv .venv

stamp=.venv/.dnadiff-installed
wanted="$extras $(cat pyproject.toml constraints.txt | cksum) $PWD"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  torch=$(grep '^torch==' constraints.txt)
  if ! .venv/bin/python -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '${torch#torch==}')" 2>/dev/null; then
    # On Linux the default build of torch downloads gigabytes of CUDA; without a GPU try PyTorch's index of CPU builds first.
    if [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1; then
      .venv/bin/pip install -q --disable-pip-version-check --retries 0 --timeout 15 \
        --index-url https://download.pytorch.org/whl/cpu "$torch" >/dev/null 2>&1 || true
    fi
    .venv/bin/pip install -q --disable-pip-version-check "$torch" 2>&1 | { grep -v WARNING || true; }
  fi
  .venv/bin/pip install -q --disable-pip-version-check -c constraints.txt -e ".$extras" 2>&1 | { grep -v WARNING || true; }
  # Compile the C++ kernels now, so that the first command does not wait for it; without a compiler this says so and goes on.
  .venv/bin/python -c 'import torch; from dnadiff.networks.kernels.facade import choose; choose("auto", "cpu", torch.float32)'
  echo "$wanted" > "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
