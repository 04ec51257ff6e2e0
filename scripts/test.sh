#!/usr/bin/env bash
# Installs with the test and docs extras and runs the linter, the type checker and the tests, without those marked slow or gpu.
# Extra arguments go to pytest:  scripts/test.sh tests/networks/backbone -k caduceus
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" "[test,docs]"

# One worker of one thread for each core: with two threads each, small operations are ten times slower.
# The cores that this process may use, where Python can tell; macOS has neither that nor nproc.
workers=$(python -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
export OMP_NUM_THREADS=1
if [ -d ../shared/data ]; then export DNADIFF_REQUIRE_SHARED=1; fi

ruff check .
ruff format --check -q . || { echo "error: run 'ruff format .'" >&2; exit 1; }
mypy
exec python -m pytest -n "$workers" --dist worksteal -m "not slow and not gpu" --durations=5 -rs "$@"
