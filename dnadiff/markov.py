"""Back-off Markov models of both strands: the classical baseline that a network has to beat.

    q_k(x | c) = (n(c, x) + a_k q_{k-1}(x | c')) / (n(c) + a_k),    q_{-1} = 1/4,

where c is the k bases before x, c' is c without its first base, n counts the training sequences and their reverse complements,
and a_k > 0 is the *strength* of order k, chosen on validation data. A context that holds an unknown base has no counts, so the
formula itself falls back to the longest context that is known. Sequences are arrays of bases as in `dnadiff.kmers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from dnadiff.kmers import UNKNOWN, check_bases, checked, codes, reverse_complement, reverse_complement_codes, spectrum

MAX_ORDER = 26  # 5^27 is the largest power of five that fits 64 bits
GRID = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
DEFAULT_STRENGTH = 256.0  # good for orders 6 to 12 on bacterial and human chromosomes; lower orders hardly depend on it
_TABLE_ORDER = 9  # orders up to here are tables of 4^(order+1) counts; higher ones share one sorted array of windows
_SWEPT = 1 << 21  # bases that joint searches look at
_BLOCK = 1 << 19  # bases scored at once: bounds the memory on top of the sequence
_RUNNING_ORDER = 12  # adaptive counts of orders up to here are tables too: 268 MB for the highest


class BackoffMarkov:
    """A fitted model: counts of every order up to `order`, with one strength for each.

    Attributes:
        order: number of bases in the longest context.
        strengths: a_0 .. a_order.
        num_bases: known bases that were counted, on one strand.
    """

    def __init__(self, counts: _Counts, strengths: Sequence[float]):
        self.order = counts.order
        self.strengths = tuple(float(a) for a in strengths)
        self.num_bases = counts.num_bases
        self._counts = counts

    @classmethod
    def fit(cls, sequences: Iterable[np.ndarray], order: int, strength: float | Sequence[float] | None = None) -> BackoffMarkov:
        """Counts the sequences and their reverse complements.

        Args:
            sequences: arrays of bases; no context reaches from one into the next.
            order: 0..26. Lower orders come with it.
            strength: a_0 .. a_order, or one number for all; None takes 256 for all.

        Raises:
            ValueError: if the order is out of range, a strength is not positive, or no sequence holds a known base.
        """
        strengths = _checked_strengths(strength, _checked_order(order))
        bases = _joined(sequences)
        if not (bases < UNKNOWN).any():
            raise ValueError("sequences hold no known base (A, C, G or T); a Markov model needs training data")
        return cls(_Counts(bases, order), strengths)

    @classmethod
    def untrained(cls, order: int, strength: float | Sequence[float] | None = None) -> BackoffMarkov:
        """The model that has seen nothing: 1/4 for every base, the start of a purely adaptive code (`adaptive_log_probs`)."""
        return cls(_Counts(np.empty(0, np.uint8), _checked_order(order)), _checked_strengths(strength, order))

    def with_strengths(self, strength: float | Sequence[float]) -> BackoffMarkov:
        """The same counts with other strengths."""
        return BackoffMarkov(self._counts, _checked_strengths(strength, self.order))

    def tuned(self, valid: Iterable[np.ndarray], grid: Sequence[float] = GRID, sweeps: int = 0) -> BackoffMarkov:
        """The same counts with the strengths of highest likelihood on `valid`, chosen one order after the other from 0 up.

        Greedy, so that every lower order is a tuned model too. `sweeps` go on from there for the highest order alone: each chooses every
        strength anew with the others fixed, and a middle order that only gets in the way is passed over (E. coli, order 12: 0.006 bits
        less). Only sequences that were not counted can choose them: on training data the smallest strength always wins.

        Raises:
            ValueError: if `valid` holds no known base, or the grid is empty or has a number that is not positive.
        """
        return self.tuned_each(valid, [self.order], grid, sweeps)[self.order]

    def tuned_each(
        self, valid: Iterable[np.ndarray], orders: Sequence[int], grid: Sequence[float] = GRID, sweeps: int = 4
    ) -> dict[int, BackoffMarkov]:
        """For each order the same counts with the strengths that make that order best; see `tuned`, whose errors it raises.

        Args:
            valid: arrays of bases.
            orders: which orders to tune for.
            grid: strengths to choose from.
            sweeps: joint searches after the greedy one; they end early when nothing changes, and look at 2 million bases at most.
        """
        grid = [_checked_strengths(a, 0)[0] for a in grid]
        bases = _joined(valid)
        known = bases < UNKNOWN
        if not known.any():
            raise ValueError("valid holds no known base (A, C, G or T); strengths are chosen on held-out data")
        if not grid:
            raise ValueError("grid is empty; give at least one positive strength")
        top = max(self._checked(order) for order in orders)
        blocks = [seen for _, seen in _seen(bases, self.order)]
        q, strengths, counts = np.full(known.sum(), 0.25), [], []
        for order in range(self.order + 1):
            pairs = [_of_next(self._counts.after(seen, order), seen.bases) for seen in blocks]
            n_x, n = (np.concatenate(parts)[known] for parts in zip(*pairs))
            steps = [(n_x + a * q) / (n + a) for a in grid]
            best = int(np.argmax([np.log(step).sum() for step in steps]))
            q = steps[best]
            strengths.append(grid[best])
            if sweeps and order <= top:
                every = -(-len(n) // _SWEPT)
                counts.append(
                    (n_x[::every].astype(np.float32), n[::every].astype(np.float32))
                )  # counts to 2^24 are exact, enough to choose
        lower = {order: _swept(strengths[: order + 1], counts[: order + 1], grid, sweeps) for order in orders}
        return {order: self.with_strengths(chosen + strengths[order + 1 :]) for order, chosen in lower.items()}

    def log_prob_rows(self, bases: np.ndarray, order: int | None = None) -> np.ndarray:
        """log q_order(. | the bases before it) of all four bases at each position: (L, 4), natural logarithms, at unknown bases too."""
        check_bases(bases)
        strengths = self.strengths[: self._checked(order) + 1]
        rows = np.empty((len(bases), 4))
        for here, seen in _seen(bases, self.order):
            q = np.full((len(seen.bases), 4), 0.25)
            for k, a in enumerate(strengths):
                n = self._counts.after(seen, k)
                q = (n + a * q) / (n.sum(1, keepdims=True) + a)
            rows[here] = np.log(q)
        return rows

    def log_probs(self, bases: np.ndarray, order: int | None = None) -> np.ndarray:
        """log q_order(x_l | the bases before it) of each base of one held-out sequence: (L,), natural logarithms, NaN at unknown bases.

        At the start and after an unknown base the context is as long as what is known. The model is frozen: nothing is counted.
        """
        check_bases(bases)
        strengths = self.strengths[: self._checked(order) + 1]
        log_probs = np.empty(len(bases))
        for here, seen in _seen(bases, self.order):
            q = np.full(len(seen.bases), 0.25)
            for k, a in enumerate(strengths):
                n_x, n = _of_next(self._counts.after(seen, k), seen.bases)
                q = (n_x + a * q) / (n + a)
            log_probs[here] = np.where(seen.bases < UNKNOWN, np.log(q), np.nan)
        return log_probs

    def adaptive_log_probs(self, bases: np.ndarray, order: int | None = None, both_strands: bool = True) -> np.ndarray:
        """As `log_probs`, but each base is counted once it has been scored, on top of the counts of training.

        What has been seen before position l is what a decoder knows there. With `both_strands` each window also counts as its
        reverse complement. Orders up to 12 count into tables, block after block: 0.4 GB for all of them beside 16 bytes a base. Higher ones
        sort the whole sequence twice each, in 100 bytes a base.
        """
        check_bases(bases)
        strengths, q = self.strengths[: self._checked(order) + 1], np.full(len(bases), 0.25)
        running = [_Running(k, both_strands) for k in range(min(len(strengths) - 1, _RUNNING_ORDER) + 1)]
        for here, seen in _seen(bases, self.order):
            for k, (so_far, a) in enumerate(zip(running, strengths)):
                n_x, n = so_far.add(seen.stretch[self.order - k :])
                if self.num_bases:
                    frozen_x, frozen = _of_next(self._counts.after(seen, k), seen.bases)
                    n_x += frozen_x
                    n += frozen
                q[here] = (n_x + a * q[here]) / (n + a)
        for k, a in enumerate(strengths[len(running) :], start=len(running)):
            n_x, n = _counts_so_far(bases, k, both_strands)
            for here, seen in _seen(bases, self.order) if self.num_bases else ():
                frozen_x, frozen = _of_next(self._counts.after(seen, k), seen.bases)
                n_x[here] += frozen_x
                n[here] += frozen
            q = (n_x + a * q) / (n + a)
        return np.where(bases < UNKNOWN, np.log(q), np.nan)

    def _checked(self, order: int | None) -> int:
        if order is None:
            return self.order
        if not 0 <= order <= self.order:
            raise ValueError(f"order is {order}; this model holds orders 0..{self.order}: fit one of a higher order")
        return order


def choose_strengths(
    train: Iterable[np.ndarray], valid: Iterable[np.ndarray], order: int, grid: Sequence[float] = GRID
) -> tuple[float, ...]:
    """a_0 .. a_order of highest likelihood on `valid` for counts of `train`; `BackoffMarkov.tuned` when the counts exist already."""
    return BackoffMarkov.fit(train, order).tuned(valid, grid).strengths


def _swept(strengths: list[float], counts: Sequence[tuple[np.ndarray, np.ndarray]], grid: Sequence[float], sweeps: int) -> list[float]:
    """The strengths after `sweeps` of coordinate search for the highest likelihood of the highest order.

    q_top is linear in q_k: q_top = rest + factor q_k with factor the product of a_j / (n_j + a_j) over j > k, so that one pass down the
    orders prepares a sweep and trying a strength is one line.
    """
    strengths = list(strengths)
    for _ in range(sweeps):
        before = list(strengths)
        above = [(np.float32(0), np.float32(1))]  # (rest, factor) of the orders above k, the highest order first
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


class _Seen:
    """A stretch of bases with what precedes each of them.

    `index` is the code of the last bases, a place in a table. The `words` read backwards from each position, the base just before it
    as the highest of `order` digits in radix 5 (4 is unknown): contexts that agree in their last k bases are neighbours in
    sorted order, for every k at once.
    """

    def __init__(self, stretch: np.ndarray, order: int):
        """`stretch` opens with the `order` bases that precede the first one of interest."""
        self.stretch, self.order = stretch, order
        self.bases = stretch[order:]  # (L,)
        position = np.arange(len(stretch))
        after_unknown = np.maximum.accumulate(np.concatenate([[0], np.where(stretch[:-1] < UNKNOWN, 0, position[1:])]))
        self.known = (position - after_unknown)[order:]  # (L,) known bases in a row before each position, `order` at most
        digits = min(order, _TABLE_ORDER)
        self.index = codes(stretch[:-1], digits)[0][order - digits :].view(np.int64) if digits else np.zeros(len(self.bases), np.int64)

    def words(self) -> np.ndarray:
        """(L,) uint64, not kept: counting needs them once, unsorted."""
        words = np.zeros(len(self.bases), np.uint64)
        for distance in range(1, self.order + 1):
            words *= np.uint64(5)
            words += self.stretch[self.order - distance : len(self.stretch) - distance]
        return words

    @cached_property
    def sorted_words(self) -> tuple[np.ndarray, np.ndarray]:
        """The words in ascending order and the position of each: searching for neighbours in turn reads neighbouring memory."""
        words = self.words()
        position = np.argsort(words)
        return words[position], position


class _Counts:
    """n(c, x) of every order: tables for short contexts, one sorted array of windows (next base, context backwards) for long ones."""

    def __init__(self, bases: np.ndarray, order: int):
        self.order = order
        self.num_bases = int((bases < UNKNOWN).sum())
        self._tables = [spectrum([bases], k + 1, both_strands=True).reshape(-1, 4) for k in range(min(order, _TABLE_ORDER) + 1)]
        self._windows = np.empty(2 * self.num_bases if order > _TABLE_ORDER else 0, np.uint64)
        filled = 0
        for strand in (bases, reverse_complement(bases)) if order > _TABLE_ORDER else ():
            for _, seen in _seen(strand, order):
                known = seen.bases < UNKNOWN
                words = seen.words()[known] + seen.bases[known] * _digit(order)
                self._windows[filled : filled + len(words)] = words
                filled += len(words)
        self._windows.sort()

    def after(self, seen: _Seen, order: int) -> np.ndarray:
        """How often each base followed the last `order` bases before each position: (L, 4) int64, zero where those are not all known."""
        if order <= _TABLE_ORDER:
            return np.where(seen.known[:, None] >= order, self._tables[order][seen.index & (4**order - 1)], 0)
        words, position = seen.sorted_words
        known = seen.known[position] >= order
        words, position = words[known], position[known]
        width = _digit(self.order - order)
        first = words - words % width
        counts = np.zeros((len(seen.bases), 4), np.int64)
        for x in range(4):
            low = first + np.uint64(x) * _digit(self.order)
            counts[position, x] = np.searchsorted(self._windows, low + width) - np.searchsorted(self._windows, low)
        return counts


def _digit(place: int) -> np.uint64:
    return np.uint64(5**place)


def _seen(bases: np.ndarray, order: int) -> Iterator[tuple[slice, _Seen]]:
    """The sequence in blocks, each with the `order` bases before it; nothing precedes the first."""
    padded = np.concatenate([np.full(order, UNKNOWN, np.uint8), bases])
    for start in range(0, len(bases), _BLOCK):
        stretch = padded[start : start + _BLOCK + order]
        yield slice(start, start + len(stretch) - order), _Seen(stretch, order)


def _of_next(counts: np.ndarray, bases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """n(c, x) for the base x that comes next, and n(c): both (L,); at unknown bases the first means nothing."""
    return counts[np.arange(len(bases)), bases & 3], counts.sum(1)


class _Running:
    """n(c, x) of one order for a sequence that is read block by block: counts of the blocks before in a table, ranks within a block."""

    def __init__(self, order: int, both_strands: bool):
        self.order, self.both_strands = order, both_strands
        self._table = np.zeros(4 ** (order + 1), np.int32)

    def add(self, stretch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """n(c, x) and n(c), both (L,) int64, at each of the L bases of a block that follows `order` bases; then the block is counted."""
        words, valid = codes(stretch, self.order + 1)
        where = np.flatnonzero(valid)
        events, strands = _events(words[where], self.order + 1, self.both_strands)
        n_x, n = np.zeros((2, len(stretch) - self.order), np.int64)
        contexts = self._table.reshape(-1, 4)
        n[where] = _before(events >> np.uint64(2), lambda c: contexts[c].sum(1))[::strands]
        n_x[where] = _before(events, lambda c: self._table[c], self._count)[::strands]
        return n_x, n

    def _count(self, words: np.ndarray, times: np.ndarray) -> None:
        self._table[words] += times.astype(np.int32)


def _events(words: np.ndarray, k: int, both_strands: bool) -> tuple[np.ndarray, int]:
    """The windows in the order in which they become known, and how many at once: with both strands the forward one stands first, so
    that its own reverse is not yet counted."""
    strands = [words, reverse_complement_codes(words, k)] if both_strands else [words]
    return np.stack(strands, axis=1).ravel(), len(strands)


def _before(
    events: np.ndarray, earlier: Callable[[np.ndarray], np.ndarray], count: Callable[[np.ndarray, np.ndarray], None] | None = None
) -> np.ndarray:
    """For each event how many equal ones stand before it: here, and `earlier(values)` of them; `count(values, times)` hears of those here.

    One sort of (value, place) in a single integer, which is unique: several times faster than a stable sort of places.
    """
    shift = np.uint64(max(len(events) - 1, 1).bit_length())
    key = events << shift | np.arange(len(events), dtype=np.uint64)
    key.sort()
    place, value = (key & np.uint64((1 << int(shift)) - 1)).view(np.int64), (key >> shift).view(np.int64)
    first = np.flatnonzero(np.append(True, value[1:] != value[:-1])[: len(value)])
    times = np.diff(np.append(first, len(value)))
    rank = np.empty(len(events), np.int64)
    rank[place] = np.arange(len(events)) + np.repeat(earlier(value[first]) - first, times)
    if count is not None:
        count(value[first], times)
    return rank


def _counts_so_far(bases: np.ndarray, order: int, both_strands: bool) -> tuple[np.ndarray, np.ndarray]:
    """n(c, x) and n(c) at each position, counted over the windows that end before it: both (L,) int64."""
    words, valid = codes(bases, order + 1)
    start = np.flatnonzero(valid)
    words = words[start]
    events, strands = _events(words, order + 1, both_strands)
    n_x, n = np.zeros((2, len(bases)), np.int64)
    n_x[start + order] = _earlier_equals(events)[::strands]
    n[start + order] = _earlier_equals(events >> np.uint64(2))[::strands]
    return n_x, n


def _earlier_equals(values: np.ndarray) -> np.ndarray:
    """For each value, how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    ordered, place = values[order], np.arange(len(values))
    first = np.maximum.accumulate(np.where(np.append(True, ordered[1:] != ordered[:-1])[: len(values)], place, 0))
    rank = np.empty(len(values), np.int64)
    rank[order] = place - first
    return rank


def _joined(sequences: Iterable[np.ndarray]) -> np.ndarray:
    """All sequences in one array, an unknown base between them, so that no context crosses from one into the next."""
    parts = [part for bases in checked(sequences) for part in (bases, np.array([UNKNOWN], np.uint8))]
    return np.concatenate(parts[:-1] or [np.empty(0, np.uint8)])


def _checked_order(order: int) -> int:
    if not 0 <= order <= MAX_ORDER:
        raise ValueError(f"order is {order}; it must lie in 0..{MAX_ORDER}")
    return order


def _checked_strengths(strength: float | Sequence[float] | None, order: int) -> tuple[float, ...]:
    if strength is None:
        strength = DEFAULT_STRENGTH
    strengths = (strength,) * (order + 1) if np.ndim(strength) == 0 else tuple(strength)
    if len(strengths) != order + 1:
        raise ValueError(f"strength has {len(strengths)} numbers; order {order} needs {order + 1}, one for each of the orders 0..{order}")
    if not all(a > 0 for a in strengths):
        raise ValueError(f"strength is {strength}; every number must be positive, or a context never seen has no law")
    return tuple(map(float, strengths))
