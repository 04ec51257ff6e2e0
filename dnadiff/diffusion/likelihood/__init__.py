"""Likelihoods of given sequences: the NELBO with error bars, by enumeration for short sequences,
and both strands.

`estimates` holds results and their errors, `estimators` computes them: by Monte Carlo, by the chain
rule, in a deterministic order, or from all masks. `curve` computes what sampling with K network
calls costs. Held-out windows, the report of `dnadiff.evaluate` and the information content of bases
are in `dnadiff.genomics`.
"""
