"""What K network calls cost: the expected code length of revealing K random groups of tokens, from the curve h(n).

A token revealed when n random others are visible costs h(n) nats in expectation, so groups of s_1, ..., s_K tokens cost
sum_k s_k h(n_k) with n_k = s_1 + ... + s_{k-1}: exactly, given the random order, and an upper bound on -log p of the sampler that does not
fix its order. One token at a time it is the NELBO, all at once L h(0). It holds for `sampler=grouped` at temperature 1 with nothing
cut and no guidance, and for no order that looks at tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnadiff.bootstrap import FEWEST, blocks
from dnadiff.likelihood import Likelihood

_CANDIDATES = 1024  # group boundaries that the dynamic programme tries
NUM_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_LOST = 0.02  # share of the structure that samples may lose where nobody chose the number of groups
APPLIES_TO = "sampler=grouped, temperature 1, nothing cut, no guidance; n/a for other orders"


def uniform_sizes(length: int, num_groups: int) -> np.ndarray:
    """Sizes of the groups that `dnadiff.sampler.grouped.Grouped` reveals: `(K,)`, their sum is `length`.

    Raises:
        ValueError: if there are more groups than tokens, or none.
    """
    _check_groups(length, num_groups)
    starts = -(-np.arange(num_groups + 1) * length // num_groups)  # rank r is in group r K // L
    return np.diff(starts)


def optimal_sizes(h: np.ndarray, num_groups: int) -> np.ndarray:
    """Sizes of K groups whose code length is smallest under `h (L,)`: `(K,)` in order of revealing, their sum is L.

    Dynamic programming over boundaries: best(k, m) = min_j best(k - 1, j) + (m - j) h(j). Beyond 1,024 tokens
    boundaries are multiples of about L/1024.

    Raises:
        ValueError: if there are more groups than tokens, or none.
    """
    return _optimal(h, [num_groups])[num_groups]


def _optimal(h: np.ndarray, several: Sequence[int]) -> dict[int, np.ndarray]:
    """`optimal_sizes` for several numbers of groups with one programme."""
    length, most = len(h), max(several)
    for num_groups in several:
        _check_groups(length, num_groups)
    place = np.unique(np.round(np.linspace(0, length, min(length, max(_CANDIDATES, most)) + 1)).astype(np.int64))
    size = place[None, :] - place[:-1, None]  # (from, to)
    step = np.where(size > 0, size * h[place[:-1], None], np.inf)
    best, back = np.full(len(place), np.inf), []
    best[0] = 0.0
    for _ in range(most):
        total = best[:-1, None] + step
        back.append(total.argmin(0))
        best = total.min(0)
    sizes = {}
    for num_groups in several:
        at, boundaries = len(place) - 1, []
        for k in range(num_groups - 1, -1, -1):
            boundaries.append(place[at])
            at = back[k][at]
        sizes[num_groups] = np.diff([0, *reversed(boundaries)])
    return sizes


def code_length(h: np.ndarray, sizes: Sequence[int] | np.ndarray) -> float:
    """sum_k s_k h(n_k) in nats for a sequence of L tokens.

    Args:
        h: (L,) cross-entropy of a masked token when n = 0 .. L-1 others are visible.
        sizes: (K,) group sizes in order of revealing, none 0, their sum L.

    Raises:
        ValueError: if the sizes are not positive or do not add up to L.
    """
    sizes = np.asarray(sizes)
    if (sizes < 1).any() or sizes.sum() != len(h):
        raise ValueError(f"sizes of {len(sizes)} groups add up to {sizes.sum()}; they must be positive and add up to the {len(h)} tokens")
    visible = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return float((sizes * h[visible]).sum())


def discrete_time(h: np.ndarray, alpha: Sequence[float] | np.ndarray) -> float:
    """What T ancestral steps cost in nats: the NELBO of discrete time (arXiv 2406.07524v2, section 3.3), as code of random groups.

    In the step from t to s each token is revealed with probability alpha_s - alpha_t, when Binomial(L - 1, alpha_t) others are visible.

    Args:
        h: (L,) as in `code_length`.
        alpha: (T + 1,) at the times 0, 1/T, ..., 1; the first counts as 1 and the last as 0, for everything is revealed in the end.

    Raises:
        ValueError: if alpha does not fall.
    """
    alpha, others = np.asarray(alpha, dtype=float).copy(), len(h) - 1
    alpha[0], alpha[-1] = 1.0, 0.0
    if len(alpha) < 2 or (np.diff(alpha) > 0).any():
        raise ValueError("alpha must hold at least the times 0 and 1, and may not rise")
    n = np.arange(len(h))
    log_choose = np.array([math.lgamma(others + 1) - math.lgamma(k + 1) - math.lgamma(others - k + 1) for k in n])
    nats = 0.0
    for before, now in itertools.pairwise(alpha):  # s, t
        log_seen, log_hidden = math.log(max(now, 1e-300)), math.log1p(-min(now, 1 - 1e-15))
        nats += (before - now) * (np.exp(log_choose + n * log_seen + (others - n) * log_hidden) * h).sum()
    return len(h) * float(nats)


def lost_structure(h: np.ndarray, nats: float) -> float:
    """(code length - NELBO)/(L h(0) - NELBO): 0 for one token at a time, 1 for one call; NaN if there is no structure to lose."""
    nelbo, independent = h.sum(), len(h) * h[0]
    return float((nats - nelbo) / (independent - nelbo)) if independent - nelbo > 1e-12 * independent else math.nan


def fewest_groups(h: np.ndarray, most_lost: float = MOST_LOST, optimal: bool = False) -> np.ndarray | None:
    """Sizes of the fewest groups whose lost structure is at most `most_lost`: `(K,)`; None if there is no structure to lose.

    Args:
        h: (L,) as in `code_length`.
        most_lost: a share.
        optimal: the sizes that cost least; False is equal sizes.
    """
    if math.isnan(lost_structure(h, 0.0)):
        return None

    def enough(sizes: np.ndarray) -> bool:
        return lost_structure(h, code_length(h, sizes)) <= most_lost + 1e-12

    equal = next(sizes for k in range(1, len(h) + 1) if enough(sizes := uniform_sizes(len(h), k)))
    if not optimal:
        return equal
    best = _optimal(h, range(1, len(equal) + 1))
    return next((best[k] for k in sorted(best) if enough(best[k])), equal)


def curve_from(content: Mapping[str, Any], length: int) -> np.ndarray:
    """h(0) .. h(length - 1) in nats from a `table`, read at the same shares of visible tokens and linear between its points.

    For the length of the table that is its own h. For another one it is an assumption: that what n tokens say depends on n/L.

    Raises:
        KeyError, TypeError, ValueError: if that is not what `table` writes.
    """
    visible = np.asarray(content["h"]["visible"], dtype=float) / int(content["length"])
    bits = np.interp(np.arange(length) / length, visible, np.asarray(content["h"]["bits"], dtype=float))
    return np.minimum.accumulate(bits) * math.log(2)


def best_sizes_hold(content: Mapping[str, Any], num_groups: int) -> bool:
    """Whether best sizes cost less than equal ones on windows that they were not chosen on, by the nearest K of a `table`."""
    rows = [row for row in content.get("rows", ()) if row["groups"] > 1]
    nearest = min(rows, key=lambda row: abs(math.log(row["groups"] / num_groups)), default=None)
    return nearest is not None and nearest["optimal"]["bits"] < nearest["uniform"]["bits"]


def stored_points(length: int) -> np.ndarray:
    """The n at which a `table` holds h: near both ends, where it may be steep, nearly all, and ever wider apart away from them."""
    near = np.unique(np.round(np.geomspace(1, length, min(length, 64))).astype(np.int64)) - 1
    return np.unique([*near, *(length - 1 - near)])


@dataclass(frozen=True)
class Samples:
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
    def of(cls, result: Likelihood, start: Likelihood) -> Samples:
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

    def worlds(self, length: int, num_resamples: int = 100, seed: int = 0) -> np.ndarray:
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
            for k, sizes in _optimal(chooser, several).items():
                gains[k] += (code_length(judge, sizes) - code_length(judge, uniform_sizes(length, k))) / 2
        return gains

    def error(self, values: np.ndarray, bias: float = 0.0) -> float | None:
        """Standard error of a number from its `values` in the `worlds`; None where fewer than 5 blocks cannot tell.

        The bootstrap of n blocks is too narrow by sqrt((n-1)/n), which is put right. `bias` is what the bins may do to the number.
        """
        n = len(np.unique(self.block))
        return None if n < FEWEST or np.isnan(values).any() else math.hypot(float(values.std(ddof=1)) * math.sqrt(n / (n - 1)), bias)


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


def table(samples: Samples, length: int, num_groups: Sequence[int] = NUM_GROUPS) -> dict[str, Any]:
    """The code length for each number of groups, uniform and optimal, in bits per token with standard errors; ready for JSON.

    Args:
        samples: measurements of h.
        length: L, tokens in a sequence.
        num_groups: values of K; those above L are left out.
    """
    h, rough, worlds = samples.fit(length), samples.fit(length, coarse=True), samples.worlds(length)
    several = [k for k in num_groups if k <= length]
    best, gains = _optimal(h, several), samples.gains(length, several)
    bit = length * math.log(2)
    rows = []
    for k in several:
        row: dict[str, Any] = {"groups": k}
        uniform = uniform_sizes(length, k)
        sizes_of = {"uniform": uniform, "optimal": best[k] if gains[k] < 0 else uniform}
        for name, sizes in sizes_of.items():
            totals = np.array([code_length(w, sizes) for w in worlds])
            lost = np.array([lost_structure(w, t) for w, t in zip(worlds, totals)])
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
            "se": [samples.error(worlds[:, n] / math.log(2)) for n in at.tolist()],
        },
        "rows": rows,
    }


def _check_groups(length: int, num_groups: int) -> None:
    if not 1 <= num_groups <= length:
        raise ValueError(f"num_groups {num_groups} must lie in 1..{length}, the number of tokens")
