"""Back-off Markov models of both strands: the classical baseline that a network has to beat.

    q_k(x | c) = (n(c, x) + a_k q_{k-1}(x | c')) / (n(c) + a_k),    q_{-1} = 1/4,

where c is the k bases before x, c' is c without its first base, n counts the training sequences and their reverse complements,
and a_k > 0 is the *strength* of order k, chosen on validation data. A context that holds an unknown base has no counts, so the
formula itself falls back to the longest context that is known. Sequences are arrays of bases as in `dnadiff.kmers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dnadiff.kmers import UNKNOWN, check_bases, checked
from dnadiff.markov.counts import Counts, RunningCounts, counts_so_far, of_next, stretches

MAX_ORDER = 26  # 5^27 is the largest power of five that fits 64 bits
GRID = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
DEFAULT_STRENGTH = 256.0  # good for orders 6 to 12 on bacterial and human chromosomes; lower orders hardly depend on it
_SWEPT = 1 << 21  # bases that joint searches look at
_RUNNING_ORDER = 12  # adaptive counts of orders up to here are tables too: 268 MB for the highest


class BackoffMarkov:
    """A fitted model: counts of every order up to `order`, with one strength for each.

    Attributes:
        order: number of bases in the longest context.
        strengths: a_0 .. a_order.
        num_bases: known bases that were counted, on one strand.
    """

    def __init__(self, counts: Counts, strengths: Sequence[float]):
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
        return cls(Counts(bases, order), strengths)

    @classmethod
    def untrained(cls, order: int, strength: float | Sequence[float] | None = None) -> BackoffMarkov:
        """The model that has seen nothing: 1/4 for every base, the start of a purely adaptive code (`adaptive_log_probs`)."""
        return cls(Counts(np.empty(0, np.uint8), _checked_order(order)), _checked_strengths(strength, order))

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
        blocks = [seen for _, seen in stretches(bases, self.order)]
        q, strengths, counts = np.full(known.sum(), 0.25), [], []
        for order in range(self.order + 1):
            pairs = [of_next(self._counts.after(seen, order), seen.bases) for seen in blocks]
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
        for here, seen in stretches(bases, self.order):
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
        for here, seen in stretches(bases, self.order):
            q = np.full(len(seen.bases), 0.25)
            for k, a in enumerate(strengths):
                n_x, n = of_next(self._counts.after(seen, k), seen.bases)
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
        running = [RunningCounts(k, both_strands) for k in range(min(len(strengths) - 1, _RUNNING_ORDER) + 1)]
        for here, seen in stretches(bases, self.order):
            for k, (so_far, a) in enumerate(zip(running, strengths)):
                n_x, n = so_far.add(seen.stretch[self.order - k :])
                if self.num_bases:
                    frozen_x, frozen = of_next(self._counts.after(seen, k), seen.bases)
                    n_x += frozen_x
                    n += frozen
                q[here] = (n_x + a * q[here]) / (n + a)
        for k, a in enumerate(strengths[len(running) :], start=len(running)):
            n_x, n = counts_so_far(bases, k, both_strands)
            for here, seen in stretches(bases, self.order) if self.num_bases else ():
                frozen_x, frozen = of_next(self._counts.after(seen, k), seen.bases)
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
