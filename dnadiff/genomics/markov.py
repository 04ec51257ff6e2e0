"""Interpolated back-off Markov models of both strands: the classical baseline for a network.

    q_k(x | c) = (n(c, x) + a_k q_{k-1}(x | c')) / (n(c) + a_k),    q_{-1} = 1/4,

where c is the k bases before x, c' is c without its first base, n counts occurrences in the
training sequences and their reverse complements, and a_k > 0 is the *strength* of order k (a
Dirichlet prior around order k - 1), chosen on validation data. A context with an unknown base has
no counts, so the formula itself backs off to the longest known context. Sequences are arrays of
bases as in `dnadiff.data.kmers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
from annotated_types import Interval
from numpy import ndarray

from dnadiff.data.kmers import UNKNOWN, codes, reverse_complement, spectrum
from dnadiff.fields import check_value

# orders up to here are tables of 4^(order+1) counts; higher orders share one sorted array of
# windows
TABLE_ORDER = 9
_BLOCK = 1 << 19  # bases processed at once: bounds the memory needed in addition to the sequence


class Segment:
    """A segment of a sequence with the context of each base.

    `index` is the code of the context, an index into a table of counts. `reversed_contexts` reads
    the context backwards from each position, with the base just before it as the highest of `order`
    digits in radix 5 (4 is unknown). Contexts that agree in their last k bases are then neighbors
    in sorted order, for every k at once.

    Args:
        padded: (order + L,) the `order` bases before the segment, then its L bases.
        order: length of the longest context.
    """

    def __init__(self, padded: ndarray, order: int) -> None:
        self.padded = padded
        self.order = order
        self.bases = padded[order:]
        position = np.arange(len(padded))
        digits = min(order, TABLE_ORDER)
        known = np.append(UNKNOWN, padded[:-1]) < UNKNOWN
        after_unknown = np.maximum.accumulate(np.where(known, 0, position))
        # (L,) known bases in a row before each position, at most `order`
        self.num_known = (position - after_unknown)[order:]
        self.index = np.zeros(len(self.bases), np.int64)
        if digits:
            self.index = codes(padded[:-1], digits)[0][order - digits :].view(np.int64)

    def reversed_contexts(self) -> ndarray:
        """(L,) uint64. Not cached: counting needs them once, unsorted."""
        contexts = np.zeros(len(self.bases), np.uint64)
        for distance in range(1, self.order + 1):
            contexts *= np.uint64(5)
            contexts += self.padded[self.order - distance : len(self.padded) - distance]
        return contexts

    @cached_property
    def sorted_contexts(self) -> tuple[ndarray, ndarray]:
        """The reversed contexts in ascending order, with their positions: searches in this order
        read neighboring memory."""
        contexts = self.reversed_contexts()
        position = np.argsort(contexts)
        return contexts[position], position


class Counts:
    """n(c, x) for contexts c of every order up to `order` and the next base x, on both strands.

    Short contexts have tables; long ones share one sorted array of windows (next base, context
    backwards).
    """

    def __init__(self, bases: ndarray, order: int) -> None:
        self.order = order
        self._tables = [
            spectrum([bases], k + 1, both_strands=True).reshape(-1, 4)
            for k in range(min(order, TABLE_ORDER) + 1)
        ]
        number = 2 * int((bases < UNKNOWN).sum()) if order > TABLE_ORDER else 0
        self._windows = np.empty(number, np.uint64)
        filled = 0
        for strand in (bases, reverse_complement(bases)) if number else ():
            for _, segment in segments(strand, order):
                known = segment.bases < UNKNOWN
                windows = segment.reversed_contexts()[known] + segment.bases[known] * _digit(order)
                self._windows[filled : filled + len(windows)] = windows
                filled += len(windows)
        self._windows.sort()

    def following(self, segment: Segment, order: int) -> ndarray:
        """Counts of each base after the context of length `order` at each position: (L, 4) int64, 0
        for contexts that are not known."""
        if order <= TABLE_ORDER:
            found = self._tables[order][segment.index & (4**order - 1)]
            return np.where(segment.num_known[:, None] >= order, found, 0)
        contexts, position = segment.sorted_contexts
        known = segment.num_known[position] >= order
        contexts = contexts[known]
        position = position[known]
        width = _digit(self.order - order)
        first = contexts - contexts % width
        counts = np.zeros((len(segment.bases), 4), np.int64)
        for x in range(4):
            low = first + np.uint64(x) * _digit(self.order)
            below, through = (np.searchsorted(self._windows, each) for each in (low, low + width))
            counts[position, x] = through - below
        return counts

    def of_next(self, segment: Segment, order: int) -> tuple[ndarray, ndarray]:
        """n(c, x) of the observed next base x, and n(c): both (L,); the first is meaningless at
        unknown bases."""
        counts = self.following(segment, order)
        return counts[np.arange(len(counts)), segment.bases & 3], counts.sum(1)


def _digit(place: int) -> np.uint64:
    return np.uint64(5**place)


def segments(bases: ndarray, order: int) -> Iterator[tuple[slice, Segment]]:
    """The sequence in consecutive segments, each with the `order` bases before it; the first one is
    preceded by unknown bases."""
    padded = np.concatenate([np.full(order, UNKNOWN, np.uint8), bases])
    for start in range(0, len(bases), _BLOCK):
        block = padded[start : start + _BLOCK + order]
        yield slice(start, start + len(block) - order), Segment(block, order)


MAX_ORDER = 26  # 5^27 is the largest power of five that fits into 64 bits
Order = Annotated[int, Interval(ge=0, le=MAX_ORDER)]
GRID = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
# good for orders 6 to 12 on bacterial and human chromosomes; lower orders hardly depend on it
DEFAULT_STRENGTH = 256.0
_SWEEP_BASES = 1 << 21  # bases used by joint searches
_TUNING_BASES = 1 << 25  # bases on which strengths are chosen: each takes about 100 bytes
_TUNING_BLOCK = 1 << 16  # bases that stay together if there are more


class BackoffMarkov:
    """A fitted model: counts of every order up to `order`, with one strength per order.

    Attributes:
        order: number of bases in the longest context.
    """

    def __init__(self, counts: Counts, strengths: float | Sequence[float]) -> None:
        self.counts = counts
        self.order = counts.order
        each = np.array(strengths, float)
        self.strengths = tuple(np.broadcast_to(each, self.order + 1).tolist())

    @classmethod
    def fit(
        cls,
        sequences: Iterable[ndarray],
        order: int,
        strength: float | Sequence[float] = DEFAULT_STRENGTH,
    ) -> BackoffMarkov:
        """Count the sequences and their reverse complements.

        Args:
            sequences: arrays of bases; no context extends from one sequence into the next.
            order: 0..26. The model includes all lower orders.
            strength: a_0 .. a_order, or one number for all orders; positive.

        Raises:
            ValueError: if the order is out of range, or no sequence contains a known base.
        """
        check_value("order", order, Order)
        bases = _joined(sequences)
        if not (bases < UNKNOWN).any():
            raise ValueError(
                "sequences contain no known base (A, C, G or T); a Markov model needs training data"
            )
        return cls(Counts(bases, order), strength)

    def tuned_each(
        self,
        valid: Iterable[ndarray],
        orders: Sequence[int],
        grid: Sequence[float] = GRID,
        sweeps: int = 4,
    ) -> dict[int, BackoffMarkov]:
        """For each order, the same counts with the strengths of maximum likelihood on `valid`.

        They are chosen greedily in ascending order of k: every lower order is then a tuned model
        too. `sweeps` of coordinate search continue from there for the highest order alone: each
        chooses every strength again with the others fixed, which can skip an unhelpful intermediate
        order (E. coli, order 12: 0.006 bits less). Use held-out sequences: on training data the
        smallest strength always wins. Of more than 34 million bases, evenly spaced blocks are used.

        Args:
            grid: strengths to choose from, positive.
            sweeps: maximum number of joint searches after the greedy one, on at most 2 million
                bases; they stop when nothing changes.

        Raises:
            ValueError: if `valid` contains no known base.
        """
        bases = _joined(_evenly_spaced(list(valid), _TUNING_BASES, _TUNING_BLOCK))
        known = bases < UNKNOWN
        if not known.any():
            raise ValueError(
                "valid contains no known base (A, C, G or T); strengths are chosen on held-out data"
            )
        top = max(map(self._checked, orders))
        blocks = [segment for _, segment in segments(bases, self.order)]
        q = np.full(known.sum(), 0.25)
        strengths = []
        counts = []
        for order in range(self.order + 1):
            pairs = [self.counts.of_next(segment, order) for segment in blocks]
            n_x, n = (np.concatenate(parts)[known] for parts in zip(*pairs))
            steps = [(n_x + a * q) / (n + a) for a in grid]
            best = int(np.argmax([np.log(step).sum() for step in steps]))
            q = steps[best]
            strengths.append(grid[best])
            if sweeps and order <= top:  # float32 is exact up to 2^24
                some = slice(None, None, -(-len(n) // _SWEEP_BASES))
                counts.append((n_x[some].astype(np.float32), n[some].astype(np.float32)))
        found = {}
        for order in orders:
            lower = strengths[: order + 1]
            upper = strengths[order + 1 :]
            chosen = _coordinate_search(lower, counts[: order + 1], grid, sweeps)
            found[order] = BackoffMarkov(self.counts, chosen + upper)
        return found

    def log_probs(self, bases: ndarray, order: int | None = None) -> ndarray:
        """log q_order(x_l | context) of each base of one held-out sequence: (L,), natural
        logarithms, NaN at unknown bases.

        At the start and after an unknown base, the context is limited to the known bases. The
        sequence itself is not counted.
        """
        strengths = self.strengths[: self._checked(order) + 1]
        log_probs = np.empty(len(bases))
        for here, segment in segments(bases, self.order):
            q = np.full(len(segment.bases), 0.25)
            for k, a in enumerate(strengths):
                n_x, n = self.counts.of_next(segment, k)
                q = (n_x + a * q) / (n + a)
            log_probs[here] = np.where(segment.bases < UNKNOWN, np.log(q), np.nan)
        return log_probs

    def _checked(self, order: int | None) -> int:
        if order is None:
            return self.order
        if not 0 <= order <= self.order:
            raise ValueError(
                f"order {order} must be from 0 to {self.order}, the order of this model; fit one "
                "of a higher order"
            )
        return order


def _coordinate_search(
    strengths: list[float],
    counts: Sequence[tuple[ndarray, ndarray]],
    grid: Sequence[float],
    sweeps: int,
) -> list[float]:
    """The strengths after at most `sweeps` of coordinate search that maximize the likelihood of the
    highest order.

    q_top is linear in q_k: q_top = rest + factor q_k with factor the product of a_j / (n_j + a_j)
    over j > k, so one pass down the orders prepares a sweep and the likelihood of a strength is one
    line.
    """
    strengths = list(strengths)
    for _ in range(sweeps):
        before = list(strengths)
        # (rest, factor) of the orders above k, the highest order first.
        above: list[tuple[ndarray, ndarray]] = [(np.zeros(1, np.float32), np.ones(1, np.float32))]
        for (n_x, n), a in zip(counts[:0:-1], strengths[:0:-1]):
            rest, factor = above[-1]
            above.append((rest + factor * n_x / (n + a), factor * (a / (n + a))))
        q = np.full(len(counts[0][0]), 0.25)
        for k, (n_x, n) in enumerate(counts):
            rest, factor = above.pop()
            totals = [np.log(rest + factor * ((n_x + a * q) / (n + a))).sum() for a in grid]
            strengths[k] = grid[int(np.argmax(totals))]
            q = (n_x + strengths[k] * q) / (n + strengths[k])
        if strengths == before:
            break
    return strengths


def _evenly_spaced(sequences: Sequence[ndarray], maximum: int, size: int) -> list[ndarray]:
    """The sequences, or, if they have more than `maximum` bases, every k-th block of `size` bases
    of one after the other."""
    total = sum(map(len, sequences))
    if total <= maximum:
        return list(sequences)
    every = -(-total // maximum)
    kept = list[ndarray]()
    offset = 0
    for bases in sequences:
        first = offset // size
        for block in range(first + -first % every, -(-(offset + len(bases)) // size), every):
            kept.append(bases[max(0, block * size - offset) : (block + 1) * size - offset])
        offset += len(bases)
    return kept


def _joined(sequences: Iterable[ndarray]) -> ndarray:
    """All sequences in one array, separated by an unknown base, so that no context extends from one
    into the next."""
    parts = [part for bases in sequences for part in (bases, np.array([UNKNOWN], np.uint8))]
    return np.concatenate(parts[:-1] or [np.empty(0, np.uint8)])
