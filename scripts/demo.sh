#!/usr/bin/env bash
# Install, pretrain, evaluate, sample, fine-tune and write a report, on the bundled E. coli genome.
# Fits 10 minutes on any machine, without the installation. Results go to runs/demo/<date_time>.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
exec python scripts/demo.py "$@"
