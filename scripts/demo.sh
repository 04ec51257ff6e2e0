#!/usr/bin/env bash
# The whole path on the bundled E. coli genome: installs, pretrains, evaluates, samples, fine-tunes and writes one report.
# About 10 minutes on two CPU cores. Results go to runs/demo/<date_time>.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
exec python scripts/demo.py "$@"
