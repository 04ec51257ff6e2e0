"""The expected code length of sampling with K network calls, computed from the curve h(n).

A token that is unmasked when n random other tokens are visible costs h(n) nats in expectation.
Unmasking groups of s_1, ..., s_K tokens therefore costs sum_k s_k h(n_k) with n_k = s_1 + ... +
s_{k-1}. Given the random order this is exact; if the order is not given, it is an upper bound on
-log p of the sampler. One token per call gives the NELBO, one call for all tokens gives L h(0). The
formula holds for `sampler=grouped` at temperature 1 without truncation or guidance, not for orders
that depend on the tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from dnadiff.config import Json

_CANDIDATES = 1024  # group boundaries that the dynamic program considers
# fraction of the structure that samples may lose when the number of groups is chosen automatically
MAX_LOST = 0.02


def uniform_sizes(length: int, num_groups: int) -> np.ndarray:
    """Sizes of the groups that `dnadiff.sampler.grouped.Grouped` unmasks: `(K,)`, their sum is
    `length`.

    Raises:
        ValueError: if there are more groups than tokens, or none.
    """
    _check_groups(length, num_groups)
    starts = -(-np.arange(num_groups + 1) * length // num_groups)  # rank r is in group r K // L
    return np.diff(starts)


def optimal_sizes(h: np.ndarray, num_groups: int) -> np.ndarray:
    """`optimal_sizes_for` a single number of groups."""
    return optimal_sizes_for(h, [num_groups])[num_groups]


def optimal_sizes_for(h: np.ndarray, group_counts: Sequence[int]) -> dict[int, np.ndarray]:
    """Sizes of K groups that minimize the code length under `h (L,)`, for each K: `(K,)` in
    unmasking order, their sum is L.

    Dynamic programming over boundaries: best(k, m) = min_j best(k - 1, j) + (m - j) h(j). For more
    than 1,024 tokens, boundaries are multiples of about L/1024.

    Raises:
        ValueError: if there are more groups than tokens, or none.
    """
    length, largest = len(h), max(group_counts)
    for num_groups in group_counts:
        _check_groups(length, num_groups)
    boundary = np.unique(
        np.round(np.linspace(0, length, min(length, max(_CANDIDATES, largest)) + 1)).astype(
            np.int64
        )
    )
    size = boundary[None, :] - boundary[:-1, None]  # (from, to)
    step = np.where(size > 0, size * h[boundary[:-1], None], np.inf)
    best, back = np.full(len(boundary), np.inf), []
    best[0] = 0.0
    for _ in range(largest):
        total = best[:-1, None] + step
        back.append(total.argmin(0))
        best = total.min(0)
    sizes = {}
    for num_groups in group_counts:
        at, ends = len(boundary) - 1, []
        for k in range(num_groups - 1, -1, -1):
            ends.append(boundary[at])
            at = back[k][at]
        sizes[num_groups] = np.diff([0, *reversed(ends)])
    return sizes


def code_length(h: np.ndarray, sizes: Sequence[int] | np.ndarray) -> float:
    """sum_k s_k h(n_k) in nats, for `h (L,)` at n = 0 .. L-1 and `sizes (K,)` in unmasking order.

    Raises:
        ValueError: if the sizes are not positive or do not add up to L.
    """
    sizes = np.asarray(sizes)
    if (sizes < 1).any() or sizes.sum() != len(h):
        raise ValueError(
            f"sizes of {len(sizes)} groups add up to {sizes.sum()}; they must be positive and add "
            f"up to the {len(h)} tokens"
        )
    visible = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return float((sizes * h[visible]).sum())


def discrete_time(h: np.ndarray, alpha: Sequence[float] | np.ndarray) -> float:
    """The cost of T ancestral steps in nats: the discrete-time NELBO (arXiv 2406.07524v2, section
    3.3), as a code of random groups.

    The step from t to s unmasks each token with probability alpha_s - alpha_t, when Binomial(L - 1,
    alpha_t) others are visible.

    Args:
        h: (L,) as in `code_length`.
        alpha: (T + 1,) at the times 0, 1/T, ..., 1; the first is taken as 1 and the last as 0,
            because all tokens are unmasked in the end.

    Raises:
        ValueError: if alpha increases.
    """
    alpha, others = np.asarray(alpha, dtype=float).copy(), len(h) - 1
    alpha[0], alpha[-1] = 1.0, 0.0
    if len(alpha) < 2 or (np.diff(alpha) > 0).any():
        raise ValueError("alpha must hold at least the times 0 and 1, and must not increase")
    n = np.arange(len(h))
    log_choose = np.array(
        [math.lgamma(others + 1) - math.lgamma(k + 1) - math.lgamma(others - k + 1) for k in n]
    )
    nats = 0.0
    for before, now in itertools.pairwise(alpha):  # s, t
        log_visible, log_masked = math.log(max(now, 1e-300)), math.log1p(-min(now, 1 - 1e-15))
        nats += (before - now) * (
            np.exp(log_choose + n * log_visible + (others - n) * log_masked) * h
        ).sum()
    return len(h) * float(nats)


def lost_structure(h: np.ndarray, nats: float, alone: float | None = None) -> float:
    """(code length - NELBO)/(L h(0) - NELBO): 0 for one token per call, 1 for a single call; NaN if
    there is no structure to lose.

    `alone` replaces h(0): the nats of a token without any context, where h is of blocks that see
    those before them.
    """
    nelbo, independent = h.sum(), len(h) * (h[0] if alone is None else alone)
    return (
        float((nats - nelbo) / (independent - nelbo))
        if independent - nelbo > 1e-12 * independent
        else math.nan
    )


def fewest_groups(
    h: np.ndarray, max_lost: float = MAX_LOST, optimal: bool = False, alone: float | None = None
) -> np.ndarray | None:
    """Sizes of the fewest equal (or `optimal`) groups with at most `max_lost` lost structure:
    `(K,)`; None without structure to lose.

    `alone` is as in `lost_structure`.
    """
    if math.isnan(lost_structure(h, 0.0, alone)):
        return None

    def enough(sizes: np.ndarray) -> bool:
        return lost_structure(h, code_length(h, sizes), alone) <= max_lost + 1e-12

    equal = next(sizes for k in range(1, len(h) + 1) if enough(sizes := uniform_sizes(len(h), k)))
    if not optimal:
        return equal
    best = optimal_sizes_for(h, range(1, len(equal) + 1))
    return next((best[k] for k in sorted(best) if enough(best[k])), equal)


def curve_from(content: Json, length: int) -> np.ndarray:
    """h(0) .. h(length - 1) in nats from a `code_length_table`, by linear interpolation at equal
    fractions of visible tokens.

    At the length of the table this is the measured h. At other lengths it assumes that h depends on
    n/L only.
    """
    visible = np.asarray(content["h"]["visible"], dtype=float) / int(content["length"])
    bits = np.interp(
        np.arange(length) / length, visible, np.asarray(content["h"]["bits"], dtype=float)
    )
    return np.minimum.accumulate(bits) * math.log(2)


def optimal_sizes_help(content: Json, num_groups: int) -> bool:
    """Whether optimal sizes cost less than equal ones on windows not used to choose them, at the
    nearest K of a `code_length_table`."""
    rows = [row for row in content.get("rows", ()) if row["groups"] > 1]
    nearest = min(rows, key=lambda row: abs(math.log(row["groups"] / num_groups)), default=None)
    return nearest is not None and nearest["optimal"]["bits"] < nearest["uniform"]["bits"]


def _check_groups(length: int, num_groups: int) -> None:
    if not 1 <= num_groups <= length:
        raise ValueError(
            f"num_groups {num_groups} must be from 1 to {length}, the number of tokens"
        )
