"""h(n), the mean cross-entropy of a masked token when n random other tokens are visible: a fit to measurements, with standard errors.

`code_length_table` is what `evaluate` reports: the cost of sampling with K network calls (`dnadiff.likelihood.code_length`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnadiff.bootstrap import MIN_BLOCKS, blocks
from dnadiff.config import Json
from dnadiff.likelihood.code_length import code_length, lost_structure, optimal_sizes_for, uniform_sizes
from dnadiff.likelihood.record import Likelihood

NUM_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
APPLIES_TO = "sampler=grouped, temperature 1, nothing cut, no guidance; n/a for other orders"


def stored_points(length: int) -> np.ndarray:
    """The n at which a `code_length_table` stores h: dense at both ends, where h may be steep, and sparse in the middle."""
    near = np.unique(np.round(np.geomspace(1, length, min(length, 64))).astype(np.int64)) - 1
    return np.unique([*near, *(length - 1 - near)])


@dataclass(frozen=True)
class CurveSamples:
    """Measurements of h, to which smooth curves are fitted.

    Attributes:
        visible: (S, draws) fraction of the sequence's tokens that were visible.
        nats: (S, draws) mean cross-entropy of the masked tokens.
        start: (S,) h(0) of each sequence, exact.
        tokens: (S,) tokens of each sequence.
        block: (S,) bootstrap block of each sequence.
        alone: h(0) without any context, where "sequences" are blocks that see those before them; None is h(0).
    """

    visible: np.ndarray
    nats: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    block: np.ndarray
    alone: float | None = None

    @classmethod
    def from_estimates(cls, result: Likelihood, start: Likelihood) -> CurveSamples:
        """From estimates in count form and from `likelihood.all_masked` of the same sequences; of their blocks, if a model reads blocks."""
        alone = None
        if result.by_block is not None and start.by_block is not None:
            first = slice(None, None, len(start.by_block.available) // len(start.available))  # of each sequence: nothing is before it
            result, start = result.by_block, start.by_block
            alone = float(start.per_sequence()[first].sum() / max(start.available[first].sum(), 1))
        used = result.available > 0
        available = result.available[used]
        visible = 1 - result.counts[used] / available[:, None]
        nats, zero = result.cross_entropy()[used], start.per_sequence()[used] / available
        return cls(visible, nats, zero, available, blocks(len(used), result.block_size)[used], alone)

    def fit(self, length: int, weight: np.ndarray | None = None, coarse: bool = False) -> np.ndarray:
        """h(0) .. h(length - 1), piecewise linear between means over bins of n; their sum is the NELBO of the draws.

        h(0) is measured without Monte Carlo error and is used as it is. Elsewhere a bin holds the mean difference from each sequence's
        own h(0), which has less variance when few tokens are visible. Bins are single counts at both ends, where h may be steep; they
        widen with the distance from the ends and where draws are few. An increase of h with n is treated as noise and removed, unless it
        exceeds three standard deviations: on data unlike its training data, a network can do worse with more context.

        Args:
            weight: (S,) bootstrap weights of the sequences; None is 1.
            coarse: use bins of twice the size, to estimate the bias of the bins.
        """
        weight = np.ones(len(self.tokens)) if weight is None else weight
        mass = np.broadcast_to((weight * self.tokens)[:, None], self.nats.shape)
        h0, nelbo = np.average(self.start, weights=weight * self.tokens), np.average(self.nats, weights=mass)
        n = np.clip(np.round(self.visible * length), 0, length - 1).astype(np.int64)
        inner = n > 0
        if length == 1 or not (mass[inner] > 0).any():
            return np.full(length, h0)
        edges = _edges(np.bincount(n[inner], minlength=length))
        edges = np.append(edges[:-1:2], edges[-1]) if coarse else edges
        index, mass, rise = np.searchsorted(edges, n[inner], "right") - 1, mass[inner], (self.nats - self.start[:, None])[inner]
        total, squares = np.bincount(index, mass, len(edges) - 1), np.bincount(index, mass**2, len(edges) - 1)
        used = total > 0
        center, mean, second = (np.bincount(index, mass * x, len(edges) - 1)[used] / total[used] for x in (n[inner], rise, rise**2))
        variance = (second - mean**2).clip(min=1e-24) * squares[used] / total[used] ** 2
        value = _without_noise_increases(h0 + mean, total[used], variance)
        grid = np.arange(length)
        h = np.interp(grid, [0, *center], [h0, *value])
        if len(center) > 1:
            slope = (value[-1] - value[-2]) / (center[-1] - center[-2])
            h = np.where(grid > center[-1], np.maximum(value[-1] + slope * (grid - center[-1]), 0), h)
        rest, now = length * nelbo - h0, h[1:].sum()
        h[1:] = h[1:] * (rest / now) if now > 0 else rest / (length - 1)
        return h

    def bootstrap_replicates(self, length: int, num_resamples: int = 100, seed: int = 0) -> np.ndarray:
        """Fits to resampled blocks of sequences, `(num_resamples, length)`: their spread is the error of the fit."""
        num_blocks = int(self.block.max()) + 1
        counts = np.random.default_rng(seed).multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=num_resamples)
        drawn = counts[:, self.block].astype(float)
        return np.stack([self.fit(length, w) for w in drawn if (w * self.tokens).sum() > 0])

    def optimal_gains(self, length: int, group_counts: Sequence[int]) -> dict[int, float]:
        """Cost of optimal minus equal sizes in nats, two-fold cross-validated: chosen on half of the blocks, measured on the other half.

        Measured on the curve that they were chosen on, optimal sizes would profit from its noise and look too good.
        """
        halves = [(self.block % 2 == i).astype(float) for i in range(2)]
        gains = dict.fromkeys(group_counts, 0.0)
        if not all((half * self.tokens).sum() for half in halves):
            return gains
        first, second = (self.fit(length, half) for half in halves)
        for chosen_on, measured_on in ((first, second), (second, first)):
            for k, sizes in optimal_sizes_for(chosen_on, group_counts).items():
                gains[k] += (code_length(measured_on, sizes) - code_length(measured_on, uniform_sizes(length, k))) / 2
        return gains

    def standard_error(self, values: np.ndarray, bias: float = 0.0) -> float | None:
        """Standard error of a number from its `values` in the `bootstrap_replicates`; None for fewer than 5 blocks.

        The bootstrap of n blocks underestimates by sqrt((n-1)/n), which is corrected. `bias` is the bias of the number due to the bins.
        """
        n = len(np.unique(self.block))
        return None if n < MIN_BLOCKS or np.isnan(values).any() else math.hypot(float(values.std(ddof=1)) * math.sqrt(n / (n - 1)), bias)


def _edges(draws: np.ndarray) -> np.ndarray:
    """Bins of n = 1 .. L-1, `(bins + 1,)` edges: one n at both ends, then a quarter of the distance to the nearer end, up to L/64.

    Bins are joined until each has 64 masked tokens in eight draws, with `draws (L,)` at each n, and there are at most
    sqrt(draws)/2 of full size.
    """
    length = len(draws)
    widest = max(1, round(length / np.clip(math.sqrt(draws.sum()) / 2, 2, 64)))
    edges, now, tokens = [1], 0, 0
    for n in range(1, length):
        now, tokens = now + draws[n], tokens + draws[n] * (length - n)
        if n + 1 - edges[-1] >= min(widest, max(1, min(edges[-1], length - n - 1) // 4)) and now >= 8 and tokens >= 64:
            edges.append(n + 1)
            now = tokens = 0
    if edges[-1] < length:  # the remainder joins the last bin
        edges = [*edges[:-1], length] if len(edges) > 1 else [1, length]
    return np.array(edges)


def _without_noise_increases(values: np.ndarray, weights: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The closest non-increasing sequence (isotonic regression), except where the values differ from it significantly."""
    from sklearn.isotonic import isotonic_regression

    level, result = isotonic_regression(values, sample_weight=weights, increasing=False), values.copy()
    pools = np.split(np.arange(len(values)), np.flatnonzero(np.diff(level)) + 1)
    for pool in pools:
        excess, freedom = float(((values[pool] - level[pool]) ** 2 / variances[pool]).sum()), len(pool) - 1
        if excess <= freedom + 6 * math.sqrt(2 * freedom):  # three standard deviations for a pair of bins
            result[pool] = level[pool]
    return result


def code_length_table(samples: CurveSamples, length: int, num_groups: Sequence[int] = NUM_GROUPS) -> Json:
    """The code length of K equal and of K optimal groups, for each K up to `length`, in bits per token with standard errors."""
    h, coarse, replicates = samples.fit(length), samples.fit(length, coarse=True), samples.bootstrap_replicates(length)
    group_counts = [k for k in num_groups if k <= length]
    optimal, gains = optimal_sizes_for(h, group_counts), samples.optimal_gains(length, group_counts)
    bit = length * math.log(2)

    def cost(sizes: np.ndarray, nats: float | None = None) -> Json:
        """The cost of groups of these sizes; `nats` replaces their code length under h. Bins of twice the size err four times as much."""
        totals = np.array([code_length(w, sizes) for w in replicates])
        lost = np.array([lost_structure(w, t, samples.alone) for w, t in zip(replicates, totals)])
        fine_nats, coarse_nats = code_length(h, sizes), code_length(coarse, sizes)
        fine_lost, coarse_lost = lost_structure(h, fine_nats, samples.alone), lost_structure(coarse, coarse_nats, samples.alone)
        nats, found = (fine_nats, fine_lost) if nats is None else (nats, lost_structure(h, nats, samples.alone))
        return {
            "bits": nats / bit,
            "se": samples.standard_error(totals / bit, (fine_nats - coarse_nats) / bit / 3),
            "lost_structure": None if math.isnan(found) else found,
            "lost_se": samples.standard_error(lost, (fine_lost - coarse_lost) / 3),
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
        "applies_to": APPLIES_TO if samples.alone is None else f"each block of sampler=block with {APPLIES_TO}",
        "nelbo_bits": float(h.sum()) / bit,
        "h0_bits": float(h[0]) / math.log(2),
        "alone_bits": None if samples.alone is None else samples.alone / math.log(2),
        "h": {
            "visible": at.tolist(),
            "bits": (h[at] / math.log(2)).tolist(),
            "se": [samples.standard_error(replicates[:, n] / math.log(2)) for n in at.tolist()],
        },
        "rows": rows,
    }
