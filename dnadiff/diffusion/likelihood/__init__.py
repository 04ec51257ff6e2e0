"""Likelihoods of given sequences: the NELBO with error bars, by enumeration for short sequences,
and both strands.

`estimates` holds results and their errors, `estimators` computes them: by Monte Carlo, by the chain
rule, in a deterministic order, or from all masks. `strands` evaluates the other strand and predicts
masked sites. `curve` computes what sampling with K network calls costs. Held-out windows, the
report of `dnadiff.evaluate` and the information content of bases are in `dnadiff.genomics`.
"""

from dnadiff.diffusion.denoiser import Conjoined, OtherStrand, site_log_probs
from dnadiff.diffusion.likelihood.estimates import Likelihood
from dnadiff.diffusion.likelihood.estimators import (
    ORDERS,
    ReverseComplemented,
    WindowBatch,
    all_masked,
    both_strands,
    chain_rule,
    check_num_draws,
    estimate,
    estimate_to,
    exact_curve,
    exact_nelbo,
    one_draw,
    ordered,
)

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
