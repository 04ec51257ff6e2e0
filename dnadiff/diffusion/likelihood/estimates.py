"""Estimates of the NELBO of given sequences with their standard errors, and measurements of h(n),
the mean cross-entropy of a masked token when n others are visible.

Measurements are sums that a curve can be fitted to. A window of a model that unmasks in any order
gives one measurement per draw. A block diffusion model gives one for each block of a window, which
are many: they are summed over the blocks and draws of a window as soon as its batch is
evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from dnadiff.diffusion.bootstrap import ConfidenceInterval, blocks, ratio

COUNT = "count form"
BLOCKS = "count form of each block"
MDLM = "mdlm, one draw"
EXACT = "exact"
OWN = "bound of the objective"


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

    visible: ndarray
    nats: ndarray
    se: ndarray


def variance_of_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(S,) variance of the means of `values (S, D)` of D draws.

    Each stratum of counts holds two draws, so a quarter of their squared difference is an unbiased
    estimate of the variance of the stratum's mean.
    """
    pairs = values.reshape(len(values), -1, 2)
    return ((pairs[..., 0] - pairs[..., 1]) ** 2 / 4).sum(1) / pairs.shape[1] ** 2


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
        protocol: `count form`, of each sequence or `of each block`, or `bound of the objective`
            (draws in pairs, two per stratum), `mdlm, one draw` (no Monte Carlo error), or `exact`.
        start: (S,) nats of each sequence with all its tokens masked, or, of a block diffusion
            model, each block given the tokens before it; if h(n) was asked for.
        by_block: of a block diffusion model, what h(n) of a block is computed from besides.
    """

    nats: Mapping[str, ndarray]
    tokens: Mapping[str, ndarray]
    counts: ndarray
    available: ndarray
    block_size: int
    protocol: str = COUNT
    start: ndarray | None = None
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
        counts = np.concatenate([self.counts, more.counts], 1)
        by_block = self.by_block
        if by_block is not None and more.by_block is not None:
            by_block = by_block.with_draws(more.by_block)
        return replace(self, nats=nats, counts=counts, by_block=by_block)

    def per_sequence(self, group: str = "all") -> ndarray:
        """(S,) nats of each sequence: the mean over draws."""
        return self.nats[group].mean(1)

    def interval(self, group: str = "all") -> ConfidenceInterval:
        """Nats per token with `se_total`, which includes the choice of test sequences and the Monte
        Carlo noise."""
        return self.interval_of(self.per_sequence(group), group)

    def variance_mc(self, group: str = "all") -> ndarray:
        """(S,) Monte Carlo variance of `per_sequence`, nats squared; NaN if a single draw cannot
        estimate it."""
        if self.protocol == EXACT:
            return np.zeros(len(self.available))
        if self.protocol == MDLM:
            return np.full(len(self.available), np.nan)
        return variance_of_mean(self.nats[group])

    def se_mc(self, group: str = "all") -> float:
        """Monte Carlo standard error in nats per token, for these sequences."""
        return float(np.sqrt(self.variance_mc(group).sum()) / self.tokens[group].sum())

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

    def interval_of(self, nats: ndarray, group: str = "all") -> ConfidenceInterval:
        """Any `nats (S,)` of the tokens of a group, in nats per token with the interval of
        `interval`."""
        return ratio(nats, self.tokens[group], blocks(len(self.available), self.block_size))

    def cross_entropy(self) -> ndarray:
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
        if self.by_block is None:
            row, draw = np.nonzero(self.counts)
            masked = self.counts[row, draw]
            nats = self.cross_entropy()[row, draw]
            visible = self.available[row] - masked
            number = np.ones(len(row))
            longest = max(int(self.available.max()), 1)
        else:
            cells = self.by_block.cells
            longest = self.by_block.length
            row = cells.row
            visible = cells.n
            number = cells.number
            masked = cells.masked
            nats = cells.nats / masked
        index = np.minimum(visible * bins // longest, bins - 1)
        unit = blocks(len(self.available), self.block_size)[row]
        chosen = [c for b in range(bins) if number[c := index == b].sum() > 1]
        mean = []
        for c in chosen or [np.ones(len(row), bool)]:  # few windows
            center, value = (np.average(x[c], weights=masked[c]) for x in (visible, nats))
            deviation = np.bincount(unit[c], masked[c] * (nats[c] - value)) / masked[c].sum()
            n = len(np.unique(unit[c]))  # blocks, within which values may depend on each other
            se = math.nan if n < 2 else math.sqrt((deviation**2).sum() * n / (n - 1))
            mean.append((center, value, se))
        return Curve(*(np.array(column) for column in zip(*mean)))

    def summary(self, group: str = "all") -> dict[str, float | None]:
        """`nll` (nats per token), `bits`, `perplexity`, `se_mc` (None if unknown), `se_total`, 95 %
        interval of the bits, `tokens`."""
        total = self.interval(group)
        bit = math.log(2)
        se_mc = self.se_mc(group)
        return {
            "nll": total.value,
            "bits": total.value / bit,
            "perplexity": math.exp(min(total.value, 700.0)),  # a larger one is no float
            "se_mc": None if math.isnan(se_mc) else se_mc,
            "se_total": total.se,
            "bits_low": total.low / bit,
            "bits_high": total.high / bit,
            "tokens": int(self.tokens[group].sum()),
        }


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Cells(NamedTuple):
    """Sums over the measurements x of one row (a window, or a unit of the bootstrap) at one n: (C,)
    each.

    A measurement has k masked tokens of `a` that can be masked, and x0 is h(0) of the same tokens.
    """

    row: Ints
    n: Ints
    number: Floats  # of measurements
    tokens: Floats  # sum a
    squares: Floats  # sum a^2
    rise: Floats  # sum a (x - x0)
    rise_squares: Floats  # sum a (x - x0)^2
    masked: Floats  # sum k
    nats: Floats  # sum k x

    @classmethod
    def of(
        cls, row: Ints, tokens: Ints, masked: Ints, nats: Floats, start: Floats, length: int
    ) -> Cells:
        """One cell for each measurement, from arrays (C,); n is the visible fraction of `length`
        tokens, rounded."""
        n = np.clip(np.round((1 - masked / tokens) * length), 0, length - 1).astype(np.int64)
        a = tokens.astype(float)
        rise = nats - start
        sums = a, a**2, a * rise, a * rise**2, masked.astype(float), masked * nats
        return cls(row, n, np.ones(len(n)), *sums)

    @classmethod
    def joined(cls, parts: Sequence[Cells]) -> Cells:
        """The cells of all parts, with one for each row and n."""
        row, n, *sums = (np.concatenate(column) for column in zip(*parts))
        width = int(n.max(initial=0)) + 1
        keys, index = np.unique(row * width + n, return_inverse=True)
        return cls(
            keys // width,
            keys % width,
            *(np.bincount(index, column, len(keys)).astype(np.float64) for column in sums),
        )


@dataclass(frozen=True)
class BlockMeasurements:
    """The measurements in the blocks of each of S sequences, each given the tokens before its
    block.

    Memory grows with the number of sequences and with the counts n that occur in them, not with the
    number of blocks or draws.

    Attributes:
        cells: rows are sequences.
        size: S.
        first_start: nats of the first blocks, which have no context, completely masked: the sum
            over sequences.
        first_tokens: their tokens.
        length: b, or the number of tokens of a sequence, if it is shorter.
    """

    cells: Cells
    size: int
    first_start: float
    first_tokens: int
    length: int

    @classmethod
    def of(
        cls, counts: Ints, available: Ints, nats: Floats, start: Floats, length: int
    ) -> BlockMeasurements:
        """Of one batch, from numbers of each block.

        Args:
            counts, nats: masked tokens of each draw and its estimate: (D, B, blocks).
            available, start: tokens that can be masked, and nats with all of them masked: (B,
                blocks).
            length: as above.
        """
        used = np.broadcast_to(available > 0, counts.shape)
        arrays: tuple[Any, ...] = (np.arange(len(available))[:, None], available, start)
        row, a, zero = (np.broadcast_to(x, counts.shape)[used] for x in arrays)
        cells = Cells.of(row, a, counts[used], nats[used] / a, zero / a, length)
        first = float(start[:, 0].sum()), int(available[:, 0].sum())
        return cls(Cells.joined([cells]), len(start), *first, length)

    @classmethod
    def joined(cls, batches: Sequence[BlockMeasurements]) -> BlockMeasurements:
        """Those of the sequences of all batches, in order.

        Raises:
            ValueError: unless all have the same first block (b tokens, or the whole sequence), and
                so the same n.
        """
        lengths = {batch.length for batch in batches}
        if len(lengths) > 1:
            size = max(lengths)
            raise ValueError(
                f"batches have sequences of {min(lengths)} and of {size} tokens, and h(n) of "
                f"blocks of {size} is of sequences of at least {size} tokens, or of one length; "
                "evaluate them apart, or set curve=False"
            )
        first_rows = np.cumsum([0, *(batch.size for batch in batches)])
        each = zip(first_rows, (batch.cells for batch in batches))
        return cls(
            Cells.joined([cells._replace(row=cells.row + first) for first, cells in each]),
            int(first_rows[-1]),
            sum(batch.first_start for batch in batches),
            sum(batch.first_tokens for batch in batches),
            batches[0].length,
        )

    def with_draws(self, more: BlockMeasurements) -> BlockMeasurements:
        """These measurements and those of further draws of the same sequences."""
        return replace(self, cells=Cells.joined([self.cells, more.cells]))
