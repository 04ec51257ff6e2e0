"""The NELBO of both windows with common masks: the check of the other methods, with a large
error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import check_num_draws
from dnadiff.fields import PositiveInt, integer
from dnadiff.genomics.variants.base import PairMethod
from dnadiff.genomics.variants.network import Bools, Network
from dnadiff.genomics.variants.variant import Edit, Pair


class PairedWindow(PairMethod):
    """NELBO of the window with REF minus that of the window with ALT, in count form with common
    masks.

    Each draw masks k of the n bases of both windows, the same ones (those that belong together,
    `Pair.aligned`), and costs two network calls; n / k times the difference of the masked bases'
    log-probabilities has the difference of the NELBOs as its mean. Counts are stratified, two draws
    per stratum, so that the estimate of the error is unbiased
    (`dnadiff.diffusion.likelihood.estimators`).

    Args:
        num_draws: per variant and strand, even.
    """

    def __init__(self, num_draws: PositiveInt = 64) -> None:
        self.num_draws = check_num_draws(integer("num_draws", num_draws))

    @override
    def difference(
        self, network: Network, pair: Pair, edit: Edit, reverse: bool
    ) -> tuple[float, float]:
        places = pair.aligned(None)
        if places is None:
            return np.nan, np.nan
        chosen, weight = self.masks(len(places[0]), network.draws(edit, reverse, self.num_draws))
        masked = np.zeros((2, len(chosen), len(pair.ref)), bool)
        for which in (0, 1):
            masked[which][:, places[which]] = chosen
        allele = np.repeat((0, 1), len(chosen)).tolist()
        ref, alt = network.log_probs(
            (pair.ref, pair.alt), allele, masked.reshape(-1, len(pair.ref))
        ).reshape(2, -1)
        return self.mean(weight * (alt - ref))

    def masks(self, count: int, draws: Draws) -> tuple[Bools, NDArray[np.float64]]:
        """Which of `count` places each draw masks, (D, count), and the weights of the draws,
        (D,)."""
        strata = self.num_draws // 2
        u = (draws.uniform("count").numpy() + np.arange(self.num_draws) // 2) / strata
        number = np.minimum((u * count).astype(np.int64) + 1, count)
        rank = draws.uniform("mask", count).argsort(-1).argsort(-1).numpy()
        return rank < number[:, None], count / number

    def mean(self, values: NDArray[np.float64]) -> tuple[float, float]:
        """The mean of the draws and its variance, from the two draws of each stratum."""
        pairs = values.reshape(-1, 2)
        return float(values.mean()), float(
            ((pairs[:, 0] - pairs[:, 1]) ** 2 / 4).sum() / len(pairs) ** 2
        )
