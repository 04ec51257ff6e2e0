"""Adaptive code lengths of back-off Markov models: each base is added to the counts once it has
been scored.

A decoder knows exactly the bases before a position, so -log2 of these probabilities is an
achievable code length.
"""

from collections.abc import Callable

import numpy as np

from dnadiff.kmers import UNKNOWN, check_bases, codes, reverse_complement_codes
from dnadiff.markov.model import BackoffMarkov, Counts, segments

_TABLE_ORDER = 12  # running counts of orders up to here are tables: 268 MB for the highest


def untrained(order: int, strength: float) -> BackoffMarkov:
    """A model without counts: 1/4 for every base, the start of a purely adaptive code."""
    return BackoffMarkov(Counts(np.empty(0, np.uint8), order), [strength] * (order + 1))


def adaptive_log_probs(
    model: BackoffMarkov, bases: np.ndarray, both_strands: bool = True
) -> np.ndarray:
    """log q(x_l | bases before l) with the counts of training plus those of the sequence before l:
    (L,), NaN at unknown bases.

    With `both_strands` each window also counts as its reverse complement. Orders up to 12 use
    tables, block after block: 0.4 GB for all of them in addition to 16 bytes per base. Higher
    orders sort the whole sequence twice each, in 100 bytes per base.
    """
    check_bases(bases)
    q = np.full(len(bases), 0.25)
    running = [RunningCounts(k, both_strands) for k in range(min(model.order, _TABLE_ORDER) + 1)]
    for here, segment in segments(bases, model.order):
        for k, (counts, a) in enumerate(zip(running, model.strengths)):
            n_x, n = counts.add(segment.padded[model.order - k :])
            if model.num_bases:
                trained_x, trained = model.counts.of_next(segment, k)
                n_x, n = n_x + trained_x, n + trained
            q[here] = (n_x + a * q[here]) / (n + a)
    for k, a in enumerate(model.strengths[len(running) :], start=len(running)):
        n_x, n = counts_so_far(bases, k, both_strands)
        for here, segment in segments(bases, model.order) if model.num_bases else ():
            trained_x, trained = model.counts.of_next(segment, k)
            n_x[here] += trained_x
            n[here] += trained
        q = (n_x + a * q) / (n + a)
    return np.where(bases < UNKNOWN, np.log(q), np.nan)


class RunningCounts:
    """n(c, x) of one order for a sequence read block by block: a table for the blocks before, ranks
    within a block."""

    def __init__(self, order: int, both_strands: bool) -> None:
        self.order, self.both_strands = order, both_strands
        self._table = np.zeros(4 ** (order + 1), np.int32)

    def add(self, padded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """n(c, x) and n(c), both (L,) int64, at each of the L bases of a block, given after its
        `order` preceding bases. Counts the block."""
        kmers, valid = codes(padded, self.order + 1)
        where = np.flatnonzero(valid)
        events, strands = _events(kmers[where], self.order + 1, self.both_strands)
        n_x, n = np.zeros((2, len(padded) - self.order), np.int64)
        contexts = self._table.reshape(-1, 4)
        n[where] = _equal_before(events >> np.uint64(2), lambda c: contexts[c].sum(1))[::strands]
        n_x[where] = _equal_before(events, lambda c: self._table[c], self._count)[::strands]
        return n_x, n

    def _count(self, kmers: np.ndarray, times: np.ndarray) -> None:
        self._table[kmers] += times.astype(np.int32)


def counts_so_far(
    bases: np.ndarray, order: int, both_strands: bool
) -> tuple[np.ndarray, np.ndarray]:
    """n(c, x) and n(c) at each position, counted over the windows that end before it: both (L,)
    int64."""
    kmers, valid = codes(bases, order + 1)
    start = np.flatnonzero(valid)
    events, strands = _events(kmers[start], order + 1, both_strands)
    n_x, n = np.zeros((2, len(bases)), np.int64)
    n_x[start + order] = _equal_before(events)[::strands]
    n[start + order] = _equal_before(events >> np.uint64(2))[::strands]
    return n_x, n


def _events(kmers: np.ndarray, k: int, both_strands: bool) -> tuple[np.ndarray, int]:
    """The k-mers in the order in which they become known, and how many at once: with both strands
    the forward one comes first, so that its own reverse complement is not yet counted."""
    strands = [kmers, reverse_complement_codes(kmers, k)] if both_strands else [kmers]
    return np.stack(strands, axis=1).ravel(), len(strands)


def _equal_before(
    events: np.ndarray,
    earlier: Callable[[np.ndarray], np.ndarray] | None = None,
    count: Callable[[np.ndarray, np.ndarray], None] | None = None,
) -> np.ndarray:
    """For each event the number of equal events before it, plus `earlier(values)`;
    `count(values, times)` receives the totals.

    Sorts (value, index) as one unique integer if both fit into 64 bits, which is several times
    faster than a stable argsort.
    """
    shift = np.uint64(max(len(events) - 1, 1).bit_length())
    if len(events) and int(events.max()).bit_length() + int(shift) > 64:
        index = np.argsort(events, kind="stable")
        value = events[index].view(np.int64)
    else:
        key = events << shift | np.arange(len(events), dtype=np.uint64)
        key.sort()
        index, value = (
            (key & np.uint64((1 << int(shift)) - 1)).view(np.int64),
            (key >> shift).view(np.int64),
        )
    first = np.flatnonzero(np.append(True, value[1:] != value[:-1])[: len(value)])
    times = np.diff(np.append(first, len(value)))
    rank = np.empty(len(events), np.int64)
    rank[index] = np.arange(len(events)) + np.repeat(
        (0 if earlier is None else earlier(value[first])) - first, times
    )
    if count is not None:
        count(value[first], times)
    return rank
