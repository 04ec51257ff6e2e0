"""h(n), the mean cross-entropy of a masked token when n random others are visible: fitted to measurements, with its errors.

`code_length_table` is what `evaluate` reports of it: the price of K network calls (`dnadiff.likelihood.code_length`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnadiff.bootstrap import MIN_BLOCKS, blocks
from dnadiff.likelihood import Likelihood
from dnadiff.likelihood.code_length import best_sizes, code_length, lost_structure, uniform_sizes

NUM_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
APPLIES_TO = "sampler=grouped, temperature 1, nothing cut, no guidance; n/a for other orders"


def stored_points(length: int) -> np.ndarray:
    """The n at which a `code_length_table` holds h: near both ends, where it may be steep, nearly all, and ever wider apart away from them."""
    near = np.unique(np.round(np.geomspace(1, length, min(length, 64))).astype(np.int64)) - 1
    return np.unique([*near, *(length - 1 - near)])


@dataclass(frozen=True)
class CurveSamples:
    """Measurements of h, from which smooth curves are fitted.

    Attributes:
        share: (S, draws) share of the sequence's tokens that were visible.
        nats: (S, draws) mean cross-entropy of the masked ones.
        start: (S,) h(0) of each sequence, exact.
        tokens: (S,) tokens of each sequence.
        block: (S,) bootstrap block of each sequence.
    """

    share: np.ndarray
    nats: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    block: np.ndarray

    @classmethod
    def from_estimates(cls, result: Likelihood, start: Likelihood) -> CurveSamples:
        """From estimates in count form and from `likelihood.all_masked` of the same sequences."""
        used = result.available > 0
        available = result.available[used]
        share = 1 - result.counts[used] / available[:, None]
        nats, zero = result.cross_entropy()[used], start.per_sequence()[used] / available
        return cls(share, nats, zero, available, blocks(len(used), result.block_size)[used])

    def fit(self, length: int, weight: np.ndarray | None = None, coarse: bool = False) -> np.ndarray:
        """h(0) .. h(length - 1), whose sum is the NELBO of the draws: piecewise linear between means over bins of n.

        h(0) is measured without Monte-Carlo error and stands by itself. Elsewhere a bin holds the mean difference to each sequence's own
        h(0), which is closer to the truth where little is visible. Bins are single counts at both ends, where h may be steep, and grow
        wider with the distance from them and where draws are few. A rise of h with n is taken for noise, and levelled, unless it
        is more than three standard deviations: a network may well do worse with more context, on data unlike those it was trained on.

        Args:
            length: L.
            weight: (S,) multiplies the sequences (bootstrap); None is 1.
            coarse: with bins of twice the size, to tell what the bins do.
        """
        weight = np.ones(len(self.tokens)) if weight is None else weight
        mass = np.broadcast_to((weight * self.tokens)[:, None], self.nats.shape)
        h0, nelbo = np.average(self.start, weights=weight * self.tokens), np.average(self.nats, weights=mass)
        n = np.clip(np.round(self.share * length), 0, length - 1).astype(np.int64)
        inner = n > 0
        if length == 1 or not (mass[inner] > 0).any():
            return np.full(length, h0)
        edges = _edges(np.bincount(n[inner], minlength=length))
        edges = np.append(edges[:-1:2], edges[-1]) if coarse else edges
        index, mass, rise = np.searchsorted(edges, n[inner], "right") - 1, mass[inner], (self.nats - self.start[:, None])[inner]
        total, squares = np.bincount(index, mass, len(edges) - 1), np.bincount(index, mass**2, len(edges) - 1)
        used = total > 0
        centre, mean, second = (np.bincount(index, mass * x, len(edges) - 1)[used] / total[used] for x in (n[inner], rise, rise**2))
        variance = (second - mean**2).clip(min=1e-24) * squares[used] / total[used] ** 2
        value = _levelled(h0 + mean, total[used], variance)
        grid = np.arange(length)
        h = np.interp(grid, [0, *centre], [h0, *value])
        if len(centre) > 1:
            slope = (value[-1] - value[-2]) / (centre[-1] - centre[-2])
            h = np.where(grid > centre[-1], np.maximum(value[-1] + slope * (grid - centre[-1]), 0), h)
        rest, now = length * nelbo - h0, h[1:].sum()
        h[1:] = h[1:] * (rest / now) if now > 0 else rest / (length - 1)
        return h

    def bootstrap_replicates(self, length: int, num_resamples: int = 100, seed: int = 0) -> np.ndarray:
        """Fits to resampled blocks of sequences, `(num_resamples, length)`: their spread is the error of the fit."""
        num_blocks = int(self.block.max()) + 1
        counts = np.random.default_rng(seed).multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=num_resamples)
        drawn = counts[:, self.block].astype(float)
        return np.stack([self.fit(length, w) for w in drawn if (w * self.tokens).sum() > 0])

    def gains(self, length: int, several: Sequence[int]) -> dict[int, float]:
        """What best sizes save against equal ones, nats (below 0): chosen on half of the blocks and measured on the other, both ways.

        On the curve from which they were chosen they would profit from its noise and promise too much.
        """
        halves = [(self.block % 2 == i).astype(float) for i in range(2)]
        if not all((half * self.tokens).sum() for half in halves):
            return dict.fromkeys(several, 0.0)
        first, second = (self.fit(length, half) for half in halves)
        gains = dict.fromkeys(several, 0.0)
        for chooser, judge in ((first, second), (second, first)):
            for k, sizes in best_sizes(chooser, several).items():
                gains[k] += (code_length(judge, sizes) - code_length(judge, uniform_sizes(length, k))) / 2
        return gains

    def error(self, values: np.ndarray, bias: float = 0.0) -> float | None:
        """Standard error of a number from its `values` in the `bootstrap_replicates`; None where fewer than 5 blocks cannot tell.

        The bootstrap of n blocks is too narrow by sqrt((n-1)/n), which is put right. `bias` is what the bins may do to the number.
        """
        n = len(np.unique(self.block))
        return None if n < MIN_BLOCKS or np.isnan(values).any() else math.hypot(float(values.std(ddof=1)) * math.sqrt(n / (n - 1)), bias)


def _edges(draws: np.ndarray) -> np.ndarray:
    """Bins of n = 1 .. L-1, `(bins + 1,)` edges: one n at both ends, then a quarter of the distance to the nearer end, up to L/64.

    They are joined until each has measured 64 masked tokens in eight draws, with `draws (L,)` at each n, and there are at most
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
    if edges[-1] < length:  # what is left over joins the last bin
        edges = [*edges[:-1], length] if len(edges) > 1 else [1, length]
    return np.array(edges)


def _levelled(values: np.ndarray, weights: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The closest non-increasing sequence in weighted squares, save where the values contradict it clearly."""
    level, result = _non_increasing(values, weights), values.copy()
    pools = np.split(np.arange(len(values)), np.flatnonzero(np.diff(level)) + 1)
    for pool in pools:
        excess, freedom = float(((values[pool] - level[pool]) ** 2 / variances[pool]).sum()), len(pool) - 1
        if excess <= freedom + 6 * math.sqrt(2 * freedom):  # three deviations for a pair of bins
            result[pool] = level[pool]
    return result


def _non_increasing(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The closest non-increasing sequence in weighted squares: pool adjacent violators."""
    pools: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values, weights):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            value, weight, size = pools.pop()
            before = pools[-1]
            before[0] = (before[0] * before[1] + value * weight) / (before[1] + weight)
            before[1] += weight
            before[2] += size
    return np.repeat([p[0] for p in pools], [int(p[2]) for p in pools])


def code_length_table(samples: CurveSamples, length: int, num_groups: Sequence[int] = NUM_GROUPS) -> dict[str, Any]:
    """The code length for each number of groups, uniform and optimal, in bits per token with standard errors; ready for JSON.

    Args:
        samples: measurements of h.
        length: L, tokens in a sequence.
        num_groups: values of K; those above L are left out.
    """
    h, rough, bootstrap_replicates = samples.fit(length), samples.fit(length, coarse=True), samples.bootstrap_replicates(length)
    several = [k for k in num_groups if k <= length]
    best, gains = best_sizes(h, several), samples.gains(length, several)
    bit = length * math.log(2)
    rows = []
    for k in several:
        row: dict[str, Any] = {"groups": k}
        uniform = uniform_sizes(length, k)
        sizes_of = {"uniform": uniform, "optimal": best[k] if gains[k] < 0 else uniform}
        for name, sizes in sizes_of.items():
            totals = np.array([code_length(w, sizes) for w in bootstrap_replicates])
            lost = np.array([lost_structure(w, t) for w, t in zip(bootstrap_replicates, totals)])
            nats, roughly = code_length(h, sizes), code_length(rough, sizes)
            share, rough_share = lost_structure(h, nats), lost_structure(rough, roughly)
            bias, share_bias = (nats - roughly) / bit / 3, (share - rough_share) / 3  # bins twice as large err four times as much
            if name == "optimal":
                nats = code_length(h, uniform) + min(gains[k], 0.0)
                share = lost_structure(h, nats)
            row[name] = {
                "bits": nats / bit,
                "se": samples.error(totals / bit, bias),
                "lost_structure": None if math.isnan(share) else share,
                "lost_se": samples.error(lost, share_bias),
            }
        row["optimal"]["sizes"] = sizes_of["optimal"].tolist()
        rows.append(row)
    at = stored_points(length)
    return {
        "length": length,
        "applies_to": APPLIES_TO,
        "nelbo_bits": float(h.sum()) / bit,
        "h0_bits": float(h[0]) / math.log(2),
        "h": {
            "visible": at.tolist(),
            "bits": (h[at] / math.log(2)).tolist(),
            "se": [samples.error(bootstrap_replicates[:, n] / math.log(2)) for n in at.tolist()],
        },
        "rows": rows,
    }
