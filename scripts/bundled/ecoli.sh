#!/usr/bin/env bash
# Trains the bundled model checkpoint=ecoli, measures its held-out likelihood and writes it to dnadiff/bundled/ecoli.
# About one hour on two CPU cores; started again after an interruption, it continues.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""

run=runs/bundled/ecoli
[ -f $run/metrics.json ] || python -m dnadiff.train experiment=ecoli_bundled hydra.run.dir=$run resume=true
[ -f $run/evaluate.json ] || python -m dnadiff.evaluate checkpoint=$run length=4096 num_draws=8 hydra.run.dir=$run
python -m dnadiff.export checkpoint=$run output=dnadiff/bundled/ecoli license=apache-2.0 duplicate_tied=false overwrite=true
