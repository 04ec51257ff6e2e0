"""Estimates of the NELBO of given sequences, with their standard errors and the curve h(n)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dnadiff.bootstrap import ConfidenceInterval, blocks, ratio
from dnadiff.likelihood.measurements import BlockMeasurements

COUNT, BLOCKS, MDLM, EXACT = "count form", "count form of each block", "mdlm, one draw", "exact"


@dataclass(frozen=True)
class Curve:
    """h(n): mean cross-entropy (nats) of a masked token when n random other tokens of its sequence
    are visible.

    Attributes:
        visible: (bins,) mean n of each bin, averaged over masked tokens, as h is.
        nats: (bins,) h.
        se: (bins,) standard error over blocks of sequences, with all draws of a block grouped; NaN
            for a single block.
    """

    visible: np.ndarray
    nats: np.ndarray
    se: np.ndarray


@dataclass(frozen=True)
class Likelihood:
    """NELBO estimates of S sequences.

    Attributes:
        nats: for each group of tokens, (S, draws): estimates of the group's part of the sequence's
            NELBO.
        tokens: for each group, (S,) number of counted tokens.
        counts: (S, draws) masked tokens k.
        available: (S,) number of maskable tokens.
        block_size: windows per block of the bootstrap.
        protocol: `count form`, of each sequence or `of each block` (draws in pairs, two per
            stratum), `mdlm, one draw` (no Monte Carlo error), or `exact`.
        by_block: of a block diffusion model, what h(n) of a block is computed from, if it was asked
            for.
    """

    nats: Mapping[str, np.ndarray]
    tokens: Mapping[str, np.ndarray]
    counts: np.ndarray
    available: np.ndarray
    block_size: int
    protocol: str = COUNT
    by_block: BlockMeasurements | None = None

    @property
    def num_draws(self) -> int:
        """Network calls per sequence."""
        return self.counts.shape[1]

    def with_draws(self, more: Likelihood) -> Likelihood:
        """These draws followed by further draws of the same sequences."""
        nats = {
            name: np.concatenate([each, more.nats[name]], 1) for name, each in self.nats.items()
        }
        by_block = (
            None
            if self.by_block is None or more.by_block is None
            else self.by_block.with_draws(more.by_block)
        )
        return replace(
            self, nats=nats, counts=np.concatenate([self.counts, more.counts], 1), by_block=by_block
        )

    def per_sequence(self, group: str = "all") -> np.ndarray:
        """(S,) nats of each sequence: the mean over draws."""
        return self.nats[group].mean(1)

    def interval(self, group: str = "all") -> ConfidenceInterval:
        """Nats per token with `se_total`, which includes the choice of test sequences and the Monte
        Carlo noise."""
        return self.interval_of(self.per_sequence(group), group)

    def variance_mc(self, group: str = "all") -> np.ndarray:
        """(S,) Monte Carlo variance of `per_sequence`, nats squared; NaN if a single draw cannot
        estimate it.

        Each stratum of counts holds two draws, so a quarter of their squared difference is an
        unbiased estimate of the variance of the stratum's mean.
        """
        if self.protocol == EXACT:
            return np.zeros(len(self.available))
        if self.protocol == MDLM:
            return np.full(len(self.available), np.nan)
        pairs = self.nats[group].reshape(len(self.available), -1, 2)
        return ((pairs[..., 0] - pairs[..., 1]) ** 2 / 4).sum(1) / pairs.shape[1] ** 2

    def se_mc(self, group: str = "all") -> float:
        """Monte Carlo standard error in nats per token, for these sequences."""
        return float(np.sqrt(self.variance_mc(group).sum()) / self.tokens[group].sum())

    def difference(self, other: np.ndarray, group: str = "all") -> ConfidenceInterval:
        """This model minus another, nats per token, paired by sequence: `other (S,)` nats of the
        same tokens."""
        return self.interval_of(self.per_sequence(group) - other, group)

    def minus(self, other: Likelihood) -> Likelihood:
        """This model minus another on the same windows, draw by draw: with the same masks, `se_mc`
        is that of the difference.

        Raises:
            ValueError: if the counted tokens differ, or the numbers of draws (unless one is exact).
        """
        same = self.tokens.keys() == other.tokens.keys() and all(
            np.array_equal(n, other.tokens[name]) for name, n in self.tokens.items()
        )
        if not same or (
            EXACT not in (self.protocol, other.protocol) and self.num_draws != other.num_draws
        ):
            raise ValueError(
                "these are likelihoods of different windows or draws: evaluate both models on the "
                "same windows with the same draws"
            )
        drawn = other if self.protocol == EXACT else self
        return replace(
            drawn,
            nats={name: nats - other.nats[name] for name, nats in self.nats.items()},
            by_block=None,
        )

    def interval_of(self, nats: np.ndarray, group: str = "all") -> ConfidenceInterval:
        """Any `nats (S,)` of the tokens of a group, in nats per token with the interval of
        `interval`."""
        return ratio(nats, self.tokens[group], blocks(len(self.available), self.block_size))

    def cross_entropy(self) -> np.ndarray:
        """(S, draws) mean cross-entropy of the masked tokens of each draw: an estimate of h at n =
        available - counts.

        The h of a block diffusion model is that of a block: use `by_block`.
        """
        return self.nats["all"] / np.maximum(self.available[:, None], 1)  # (L/k) sum / L

    def check_curve(self) -> None:
        """Raise ValueError unless h(n) was measured: masks have exact counts, and blocks were
        summed (`likelihood.estimate`)."""
        if self.protocol == BLOCKS and self.by_block is None:
            raise ValueError(
                "h(n) of blocks was not measured; call likelihood.estimate with curve=True"
            )
        if self.protocol not in (COUNT, BLOCKS):
            raise ValueError(
                f"h(n) needs masks of exact counts; the protocol here is {self.protocol}"
            )

    def curve(self, bins: int = 16) -> Curve:
        """h(n) in `bins` equal ranges of n, over all counted tokens; raises ValueError as
        `check_curve`."""
        self.check_curve()
        masked: np.ndarray
        if self.by_block is None:
            row, draw = np.nonzero(self.counts)
            masked, nats = self.counts[row, draw], self.cross_entropy()[row, draw]
            visible, number, longest = (
                self.available[row] - masked,
                np.ones(len(row)),
                max(int(self.available.max()), 1),
            )
        else:
            cells, longest = self.by_block.cells, self.by_block.length
            row, visible, number, masked, nats = (
                cells.row,
                cells.n,
                cells.number,
                cells.masked,
                cells.nats / cells.masked,
            )
        index, unit = (
            np.minimum(visible * bins // longest, bins - 1),
            blocks(len(self.available), self.block_size)[row],
        )
        chosen = [c for b in range(bins) if number[c := index == b].sum() > 1] or [
            np.ones(len(row), bool)
        ]  # few windows
        mean = [
            (
                np.average(visible[c], weights=masked[c]),
                *_weighted_mean(nats[c], masked[c], unit[c]),
            )
            for c in chosen
        ]
        return Curve(*(np.array(column) for column in zip(*mean)))

    def summary(self, group: str = "all") -> dict[str, float | None]:
        """`nll` (nats per token), `bits`, `perplexity`, `se_mc` (None if unknown), `se_total`, 95 %
        interval of the bits, `tokens`."""
        total = self.interval(group)
        bit, se_mc = math.log(2), self.se_mc(group)
        return {
            "nll": total.value,
            "bits": total.value / bit,
            "perplexity": math.exp(total.value),
            "se_mc": None if math.isnan(se_mc) else se_mc,
            "se_total": total.se,
            "bits_low": total.low / bit,
            "bits_high": total.high / bit,
            "tokens": int(self.tokens[group].sum()),
        }


def _weighted_mean(
    values: np.ndarray, weights: np.ndarray, block: np.ndarray
) -> tuple[float, float]:
    """Weighted mean of `values` and its standard error, which allows for dependence within a
    block."""
    mean, num_blocks = float(np.average(values, weights=weights)), len(np.unique(block))
    deviation = np.bincount(block, weights * (values - mean)) / weights.sum()
    return mean, math.sqrt(
        (deviation**2).sum() * num_blocks / (num_blocks - 1)
    ) if num_blocks > 1 else math.nan
