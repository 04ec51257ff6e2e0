"""Likelihoods of given sequences: the NELBO with error bars, by enumeration for short sequences,
and both strands.

`record` holds results and their errors, `monte_carlo` and `one_draw` estimate them, `exact`
enumerates masks, `strand` evaluates the other strand, `sites` predicts masked sites, `information`
the information content of each base in the windows of `tiles`, `records` scores records as a
stream. `code_length` and `curve` compute what sampling with K network calls costs, from
`measurements`, `held_out` evaluates windows of data, `evaluation` puts the report of
`dnadiff.evaluate` together.
"""

from dnadiff.likelihood.exact import exact_curve, exact_nelbo
from dnadiff.likelihood.monte_carlo import (
    WindowBatch,
    all_masked,
    chain_rule,
    check_num_draws,
    estimate,
    estimate_to,
)
from dnadiff.likelihood.one_draw import one_draw
from dnadiff.likelihood.ordered import ORDERS, ordered
from dnadiff.likelihood.record import Likelihood
from dnadiff.likelihood.sites import site_log_probs
from dnadiff.likelihood.strand import Conjoined, OtherStrand, ReverseComplemented, both_strands

__all__ = [
    "ORDERS",
    "Conjoined",
    "Likelihood",
    "OtherStrand",
    "ReverseComplemented",
    "WindowBatch",
    "all_masked",
    "both_strands",
    "chain_rule",
    "check_num_draws",
    "estimate",
    "estimate_to",
    "exact_curve",
    "exact_nelbo",
    "one_draw",
    "ordered",
    "site_log_probs",
]
