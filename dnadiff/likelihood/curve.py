"""h(n), the mean cross-entropy of a masked token when n random other tokens are visible: a fit to
measurements, with standard errors.

`code_length_table` is what `evaluate` reports: the cost of sampling with K network calls
(`dnadiff.likelihood.code_length`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnadiff.bootstrap import MIN_BLOCKS, blocks
from dnadiff.config import Json
from dnadiff.likelihood.code_length import (
    code_length,
    lost_structure,
    optimal_sizes_for,
    uniform_sizes,
)
from dnadiff.likelihood.measurements import Cells, Floats
from dnadiff.likelihood.record import Likelihood

NUM_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
APPLIES_TO = "sampler=grouped, temperature 1, nothing cut, no guidance; n/a for other orders"


def stored_points(length: int) -> np.ndarray:
    """The n at which a `code_length_table` stores h: dense at both ends, where h may be steep, and
    sparse in the middle."""
    near = np.unique(np.round(np.geomspace(1, length, min(length, 64))).astype(np.int64)) - 1
    return np.unique([*near, *(length - 1 - near)])


@dataclass(frozen=True)
class CurveSums:
    """Measurements of h, summed over the windows of each of U units of the bootstrap, to which
    smooth curves are fitted.

    Attributes:
        cells: rows are units.
        tokens: (U,) tokens of each unit.
        start: (U,) nats of these tokens at h(0), exact.
        nats: (U,) nats of these tokens at the NELBO: the mean over draws.
        length: L, tokens of a sequence; of a block, where "sequences" are blocks that see those
            before them.
        alone: h(0) without any context, where sequences are blocks; None is h(0).
    """

    cells: Cells
    tokens: Floats
    start: Floats
    nats: Floats
    length: int
    alone: float | None = None

    @classmethod
    def of(
        cls,
        masked: np.ndarray,
        nats: np.ndarray,
        start: np.ndarray,
        tokens: np.ndarray,
        unit: np.ndarray,
        length: int,
    ) -> CurveSums:
        """From one measurement for each sequence and draw.

        Args:
            masked: (S, draws) masked tokens of each sequence.
            nats: (S, draws) mean cross-entropy of the masked tokens.
            start: (S,) h(0) of each sequence.
            tokens: (S,) tokens of each sequence.
            unit: (S,) unit of the bootstrap, 0..U-1.
        """
        row, a, zero = (
            np.broadcast_to(x[:, None], nats.shape).ravel() for x in (unit, tokens, start)
        )
        cells = Cells.of(row, a, masked.ravel(), nats.ravel(), zero, length)
        of_units, zeros, means = (
            _per_unit(unit, each) for each in (tokens, tokens * start, tokens * nats.mean(1))
        )
        return cls(cells, of_units, zeros, means, length)

    @classmethod
    def from_estimates(cls, result: Likelihood, start: Likelihood | None, length: int) -> CurveSums:
        """From estimates in count form of windows of `length` tokens, and `likelihood.all_masked`
        of the same windows.

        The curve of a block diffusion model is that of a block; `start` is not needed, because
        `likelihood.estimate` measured it.

        Raises:
            ValueError: if there are no measurements: see `Likelihood.check_curve`.
        """
        result.check_curve()
        unit, of_blocks = blocks(len(result.available), result.block_size), result.by_block
        if of_blocks is None:
            assert start is not None
            used = result.available > 0
            tokens, zero = result.available[used], start.per_sequence()[used]
            return cls.of(
                result.counts[used],
                result.cross_entropy()[used],
                zero / tokens,
                tokens,
                unit[used],
                length,
            )
        cells = of_blocks.cells._replace(row=unit[of_blocks.cells.row])
        alone = of_blocks.first_start / max(of_blocks.first_tokens, 1)
        of_units, zeros, means = (
            _per_unit(unit, each)
            for each in (result.available, of_blocks.start, result.per_sequence())
        )
        return cls(Cells.joined([cells]), of_units, zeros, means, of_blocks.length, alone)

    def fit(self, weight: Floats | None = None, coarse: bool = False) -> Floats:
        """h(0) .. h(L - 1), piecewise linear between means over bins of n; their sum is the NELBO
        of the draws.

        h(0) is measured without Monte Carlo error and is used as it is. Elsewhere a bin holds the
        mean difference from each sequence's own h(0), which has less variance when few tokens are
        visible. Bins are single counts at both ends, where h may be steep; they widen with the
        distance from the ends and where draws are few. An increase of h with n is treated as noise
        and removed, unless it exceeds three standard deviations: on data unlike its training data,
        a network can do worse with more context.

        Args:
            weight: (U,) bootstrap weights of the units; None is 1.
            coarse: use bins of twice the size, to estimate the bias of the bins.
        """
        return self._fits(
            np.ones((1, len(self.tokens))) if weight is None else weight[None], coarse
        )[0]

    def _fits(self, weights: Floats, coarse: bool = False) -> Floats:
        """`fit` for each row of `weights (R, U)`: (R, L)."""
        cells, length, units = self.cells, self.length, len(self.tokens)
        tokens = weights @ self.tokens
        h0, nelbo = weights @ self.start / tokens, weights @ self.nats / tokens
        inner = cells.n > 0
        n, row = cells.n[inner], cells.row[inner]
        if length == 1 or not len(n):
            return np.repeat(h0[:, None], length, 1)
        edges = _edges(np.bincount(n, cells.number[inner], length))
        edges = np.append(edges[:-1:2], edges[-1]) if coarse else edges
        bins = len(edges) - 1
        place = row * bins + np.searchsorted(edges, n, "right") - 1

        def binned(values: Floats, weights: Floats) -> Floats:
            return weights @ np.bincount(place, values[inner], units * bins).reshape(
                units, bins
            )  # (R, bins)

        total, squares = binned(cells.tokens, weights), binned(cells.squares, weights**2)
        n_sum, rise, rise_squares = (
            binned(x, weights) for x in (cells.tokens * cells.n, cells.rise, cells.rise_squares)
        )
        each = zip(h0, nelbo, total, squares, n_sum, rise, rise_squares)
        return np.stack([_through_bins(length, *sums) for sums in each])

    def bootstrap_replicates(self, num_resamples: int = 100, seed: int = 0) -> Floats:
        """Fits to resampled units, `(num_resamples, L)`: their spread is the error of the fit."""
        units = len(self.tokens)
        counts = np.random.default_rng(seed).multinomial(
            units, np.full(units, 1 / units), size=num_resamples
        )
        return self._fits(counts[counts @ self.tokens > 0].astype(float))

    def optimal_gains(self, group_counts: Sequence[int]) -> dict[int, float]:
        """Cost of optimal minus equal sizes in nats, two-fold cross-validated: chosen on half of
        the units, measured on the other half.

        Measured on the curve that they were chosen on, optimal sizes would profit from its noise
        and look too good.
        """
        halves = np.stack([np.arange(len(self.tokens)) % 2 == i for i in range(2)]).astype(float)
        gains = dict.fromkeys(group_counts, 0.0)
        if not (halves @ self.tokens).all():
            return gains
        first, second = self._fits(halves)
        for chosen_on, measured_on in ((first, second), (second, first)):
            for k, sizes in optimal_sizes_for(chosen_on, group_counts).items():
                gains[k] += (
                    code_length(measured_on, sizes)
                    - code_length(measured_on, uniform_sizes(self.length, k))
                ) / 2
        return gains

    def standard_error(self, values: np.ndarray, bias: float = 0.0) -> float | None:
        """Standard error of a number from its `values` in the `bootstrap_replicates`; None for
        fewer than 5 units.

        The bootstrap of n units underestimates by sqrt((n-1)/n), which is corrected. `bias` is the
        bias of the number due to the bins.
        """
        n = int((self.tokens > 0).sum())
        return (
            None
            if n < MIN_BLOCKS or np.isnan(values).any()
            else math.hypot(float(values.std(ddof=1)) * math.sqrt(n / (n - 1)), bias)
        )


def _per_unit(unit: np.ndarray, values: np.ndarray) -> Floats:
    """The sum of `values (S,)` over the sequences of each unit: (U,)."""
    return np.bincount(unit, values).astype(np.float64)


def _through_bins(
    length: int,
    h0: float,
    nelbo: float,
    total: Floats,
    squares: Floats,
    n: Floats,
    rise: Floats,
    rise_squares: Floats,
) -> Floats:
    """The curve (L,) through h(0) and the means of the bins, from sums over the measurements of
    each bin, (bins,)."""
    used = total > 0
    if not used.any():
        return np.full(length, h0)
    total, squares = total[used], squares[used]
    center, mean, second = n[used] / total, rise[used] / total, rise_squares[used] / total
    variance = (second - mean**2).clip(min=1e-24) * squares / total**2
    value = _without_noise_increases(h0 + mean, total, variance)
    grid = np.arange(length)
    h = np.interp(grid, [0, *center], [h0, *value])
    if len(center) > 1:
        slope = (value[-1] - value[-2]) / (center[-1] - center[-2])
        h = np.where(grid > center[-1], np.maximum(value[-1] + slope * (grid - center[-1]), 0), h)
    rest, now = length * nelbo - h0, h[1:].sum()
    h[1:] = h[1:] * (rest / now) if now > 0 else rest / (length - 1)
    return h


def _edges(draws: np.ndarray) -> np.ndarray:
    """Bins of n = 1 .. L-1, `(bins + 1,)` edges: one n at both ends, then a quarter of the distance
    to the nearer end, up to L/64.

    Bins are joined until each has 64 masked tokens in eight draws, with `draws (L,)` at each n, and
    there are at most sqrt(draws)/2 of full size.
    """
    length = len(draws)
    widest = max(1, round(length / np.clip(math.sqrt(draws.sum()) / 2, 2, 64)))
    edges, now, tokens = [1], 0, 0
    for n in range(1, length):
        now, tokens = now + draws[n], tokens + draws[n] * (length - n)
        if (
            n + 1 - edges[-1] >= min(widest, max(1, min(edges[-1], length - n - 1) // 4))
            and now >= 8
            and tokens >= 64
        ):
            edges.append(n + 1)
            now = tokens = 0
    if edges[-1] < length:  # the remainder joins the last bin
        edges = [*edges[:-1], length] if len(edges) > 1 else [1, length]
    return np.array(edges)


def _without_noise_increases(
    values: np.ndarray, weights: np.ndarray, variances: np.ndarray
) -> np.ndarray:
    """The closest non-increasing sequence (isotonic regression), except where the values differ
    from it significantly."""
    from sklearn.isotonic import isotonic_regression

    level, result = (
        isotonic_regression(values, sample_weight=weights, increasing=False),
        values.copy(),
    )
    pools = np.split(np.arange(len(values)), np.flatnonzero(np.diff(level)) + 1)
    for pool in pools:
        excess, freedom = (
            float(((values[pool] - level[pool]) ** 2 / variances[pool]).sum()),
            len(pool) - 1,
        )
        if excess <= freedom + 6 * math.sqrt(
            2 * freedom
        ):  # three standard deviations for a pair of bins
            result[pool] = level[pool]
    return result


def code_length_table(sums: CurveSums, num_groups: Sequence[int] = NUM_GROUPS) -> Json:
    """The code length of K equal and of K optimal groups, for each K up to L, in bits per token
    with standard errors."""
    length, alone = sums.length, sums.alone
    h, coarse, replicates = sums.fit(), sums.fit(coarse=True), sums.bootstrap_replicates()
    group_counts = [k for k in num_groups if k <= length]
    optimal, gains = optimal_sizes_for(h, group_counts), sums.optimal_gains(group_counts)
    bit = length * math.log(2)

    def cost(sizes: np.ndarray, nats: float | None = None) -> Json:
        """The cost of groups of these sizes; `nats` replaces their code length under h. Bins of
        twice the size err four times as much."""
        totals = np.array([code_length(w, sizes) for w in replicates])
        lost = np.array([lost_structure(w, t, alone) for w, t in zip(replicates, totals)])
        fine_nats, coarse_nats = code_length(h, sizes), code_length(coarse, sizes)
        fine_lost, coarse_lost = (
            lost_structure(h, fine_nats, alone),
            lost_structure(coarse, coarse_nats, alone),
        )
        nats, found = (
            (fine_nats, fine_lost) if nats is None else (nats, lost_structure(h, nats, alone))
        )
        return {
            "bits": nats / bit,
            "se": sums.standard_error(totals / bit, (fine_nats - coarse_nats) / bit / 3),
            "lost_structure": None if math.isnan(found) else found,
            "lost_se": sums.standard_error(lost, (fine_lost - coarse_lost) / 3),
        }

    rows = []
    for k in group_counts:
        equal = uniform_sizes(length, k)
        best = optimal[k] if gains[k] < 0 else equal
        at_best = cost(best, code_length(h, equal) + min(gains[k], 0.0)) | {"sizes": best.tolist()}
        rows.append({"groups": k, "uniform": cost(equal), "optimal": at_best})
    at = stored_points(length)
    return {
        "length": length,
        "applies_to": APPLIES_TO
        if alone is None
        else f"each block of sampler=block with {APPLIES_TO}",
        "nelbo_bits": float(h.sum()) / bit,
        "h0_bits": float(h[0]) / math.log(2),
        "alone_bits": None if alone is None else alone / math.log(2),
        "h": {
            "visible": at.tolist(),
            "bits": (h[at] / math.log(2)).tolist(),
            "se": [sums.standard_error(replicates[:, n] / math.log(2)) for n in at.tolist()],
        },
        "rows": rows,
    }
