"""How likely a model finds given sequences: the NELBO with error bars, exactly for a few tokens, on both strands.

`record` holds the results and their errors, `monte_carlo` makes them, `exact` by enumeration, `strand` reads the
other strand. What K network calls cost on top is the business of `dnadiff.likelihood.code_length`.
"""

from dnadiff.likelihood.exact import exact_curve, exact_nelbo
from dnadiff.likelihood.monte_carlo import (
    Batches,
    WindowBatch,
    all_masked,
    chain_rule,
    check_one_draw,
    estimate,
    estimate_to,
    one_draw,
    stratified_counts,
)
from dnadiff.likelihood.record import Curve, Likelihood
from dnadiff.likelihood.strand import Conjoined, OtherStrand, ReverseComplemented, both_strands

__all__ = [
    "Batches",
    "Conjoined",
    "Curve",
    "Likelihood",
    "OtherStrand",
    "ReverseComplemented",
    "WindowBatch",
    "all_masked",
    "both_strands",
    "chain_rule",
    "check_one_draw",
    "estimate",
    "estimate_to",
    "exact_curve",
    "exact_nelbo",
    "one_draw",
    "stratified_counts",
]
