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
from typing import Any

import numpy as np

_CANDIDATES = 1024  # group boundaries that the dynamic programme tries
MOST_LOST = 0.02  # share of the structure that samples may lose where nobody chose the number of groups


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
    return best_sizes(h, [num_groups])[num_groups]


def best_sizes(h: np.ndarray, several: Sequence[int]) -> dict[int, np.ndarray]:
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
    best = best_sizes(h, range(1, len(equal) + 1))
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


def _check_groups(length: int, num_groups: int) -> None:
    if not 1 <= num_groups <= length:
        raise ValueError(f"num_groups {num_groups} must lie in 1..{length}, the number of tokens")
