"""log p of the window with each allele under a model that goes from left to right: autoregressive
or block diffusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.likelihood.estimators import check_num_draws, is_exact
from dnadiff.fields import PositiveInt, integer
from dnadiff.genomics.variants.base import VariantMethod
from dnadiff.genomics.variants.network import NUM_BASES, Floats, Network
from dnadiff.genomics.variants.variant import TOKENIZER, Edit


class LogProb(VariantMethod):
    """log p(window with ALT) - log p(window with REF).

    Exact, by the chain rule, for an autoregressive model and for block diffusion in blocks of one
    token: the error is 0. For other block diffusion models it is the difference of the NELBOs, with
        the same masks for both alleles. For an indel the windows have equal length. There is no
        value if one of them has more N, because its sum would have fewer terms.

    Args:
        num_draws: masks per window under a block diffusion model, even; an exact result needs none.
    """

    for_left_to_right: ClassVar[bool] = True

    def __init__(self, num_draws: PositiveInt = 64) -> None:
        self.num_draws = integer("num_draws", num_draws)

    @override
    def for_model(self, denoiser: BaseDenoiser) -> VariantMethod:
        method = super().for_model(denoiser)
        if not is_exact(denoiser):
            check_num_draws(self.num_draws)
        return method

    @override
    def llr(
        self, network: Network, edits: Sequence[Edit], at_sites: Floats
    ) -> tuple[Floats, Floats]:
        llr, variance = np.zeros((2, len(network.strands), len(edits)))
        for strand, reverse in enumerate(network.strands):
            pairs = [network.pair(edit, reverse) for edit in edits]
            keys = [
                hash64("log_prob", e.record, e.start, e.ref, e.alt, "-" if reverse else "+") >> 1
                for e in edits
            ]
            ref, alt = (
                network.window_log_probs(windows, keys, self.num_draws)
                for windows in ([p.ref for p in pairs], [p.alt for p in pairs])
            )
            equal = np.array(
                [
                    (TOKENIZER.bases(p.ref) < NUM_BASES).sum()
                    == (TOKENIZER.bases(p.alt) < NUM_BASES).sum()
                    for p in pairs
                ]
            )
            difference = np.where(equal[:, None], alt - ref, np.nan)  # (n, draws)
            llr[strand] = difference.mean(1)
            if (
                difference.shape[1] > 1
            ):  # draws in pairs, two per stratum: see `Likelihood.variance_mc`
                first, second = difference[:, ::2], difference[:, 1::2]
                variance[strand] = ((first - second) ** 2 / 4).sum(1) / first.shape[1] ** 2
        return llr, variance
