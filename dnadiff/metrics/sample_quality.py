"""Samples against real windows of the same number and length, in every way this package knows, each beside a floor.

The floor is real against real: random disjoint sets of held-out windows, as many as are taken of the samples, are treated as the samples are.
A *distance* above the floor's range means that samples can be told from real windows; one below it is no success but a warning,
for samples that are closer to a set of real windows than other real windows are vary too little, or hold some of that set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnadiff.metrics.composition import (
    Distance,
    Measure,
    common_length,
    distance,
    gc_content,
    jensen_shannon,
    spread,
    wasserstein,
    word_counts,
)
from dnadiff.metrics.discriminator import auroc, held_out_scores, taught, told_apart
from dnadiff.metrics.memorization import TrainingSequence
from dnadiff.metrics.structure import longest_frame, mutual_information, pair_counts, period_three

WORDS = (1, 2, 3, 4, 5, 6)
FARTHEST = 100  # bases between two whose dependence is looked at
_FEWEST = 10  # samples that a cross-validated discriminator needs
_DISCRIMINATOR_WORDS = 4
_SLOW = 20  # splits and resamples of what trains a model each time
TOO_ALIKE = "WARNING: closer than real windows are to each other (too alike)"


@dataclass(frozen=True)
class Finding:
    """One number of the samples beside that of real windows.

    Attributes:
        key: its name in JSON.
        name: in words.
        unit: of all its numbers.
        is_distance: whether it lies between two sets (small is alike), or belongs to one.
        distance: the numbers.
    """

    key: str
    name: str
    unit: str
    is_distance: bool
    distance: Distance

    @property
    def verdict(self) -> str:
        """What the numbers say."""
        d = self.distance
        if self.is_distance:
            return "farther than real windows" if d.beyond_floor else TOO_ALIKE if d.below_floor else "as real windows"
        return "higher than real windows" if d.beyond_floor else "lower than real windows" if d.below_floor else "as real windows"

    @property
    def warns(self) -> bool:
        """Whether samples are too alike to real windows."""
        return self.is_distance and self.distance.below_floor


@dataclass(frozen=True)
class Judgement:
    """All findings.

    Attributes:
        findings: in the order of the table.
        num_compared: sequences in each set.
        length: bases in each sequence.
        information: bits of mutual information at each distance: of the samples (D,), and the range of 95 % of sets of real windows (2, D).
    """

    findings: tuple[Finding, ...]
    num_compared: int
    length: int
    information: tuple[np.ndarray, np.ndarray]

    def __getitem__(self, key: str) -> Finding:
        """A finding by its key."""
        return next(f for f in self.findings if f.key == key)

    def warnings(self) -> list[str]:
        """One line for each distance below the floor, and one for copies of the training part."""
        said = [
            f"too alike: {f.name}: {f.distance.samples:.4g} {f.unit}, real windows {f.distance.low:.4g} or more"
            for f in self.findings
            if f.warns
        ]
        copied = [f for f in self.findings if f.key == "seen" and f.distance.beyond_floor]
        return said + [
            f"copies: {f.distance.samples:.1f} % of {f.name}, of real windows {f.distance.high:.1f} % or less; longest exact match "
            f"{self['longest_match'].distance.samples:.0f} of {self.length} bases"
            for f in copied
        ]

    def content(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {
            f.key: {
                "name": f.name,
                "unit": f.unit,
                "is_distance": f.is_distance,
                "samples": f.distance.samples,
                "low": f.distance.interval[0],
                "high": f.distance.interval[1],
                "floor": f.distance.floor,
                "floor_low": f.distance.low,
                "floor_high": f.distance.high,
                "verdict": f.verdict,
            }
            for f in self.findings
        }
        ours, (low, high) = self.information
        curve = {"samples": ours.tolist(), "real_low": low.tolist(), "real_high": high.tolist()}
        return {
            "num_compared": self.num_compared,
            "length": self.length,
            "findings": rows,
            "mutual_information": curve,
            "warnings": self.warnings(),
        }


class Judge:
    """Holds a set of samples against real windows.

    Args:
        samples: arrays of bases of one length (`composition.as_bases`).
        real: held-out windows of that length, at best more than twice as many.
        training: the training part, to look for copies; None leaves that out.
        both_strands: count words on both strands; False for strand-oriented data.
        order: of the Markov models that are trained on samples and on real windows.
        num_splits: random sets of real windows.
        seed: of the sets and the bootstrap.

    Raises:
        ValueError: if there are too few sequences, or they are too short or of several lengths.
    """

    def __init__(
        self,
        samples: Sequence[np.ndarray],
        real: Sequence[np.ndarray],
        training: TrainingSequence | None = None,
        both_strands: bool = True,
        order: int = 6,
        num_splits: int = 100,
        seed: int = 0,
    ) -> None:
        self.length = common_length(samples, real)
        self.number = min(len(samples), len(real) // 2)
        if self.number < _FEWEST:
            raise ValueError(
                f"{len(samples)} samples and {len(real)} real windows of {self.length} bases are too few to judge; "
                f"give at least {_FEWEST} and {2 * _FEWEST}"
            )
        longest = max(*WORDS, training.k if training else 0)
        if self.length < longest:
            raise ValueError(
                f"sequences of {self.length} bases are shorter than the words of {longest} that are counted; judge longer ones"
            )
        self.samples, self.real, self.training = np.stack(samples), np.stack(real), training
        self.both_strands, self.order, self.seed = both_strands, order, seed
        rng = np.random.default_rng(seed)
        self.real_sets = [np.split(rng.permutation(len(real))[: 2 * self.number], 2) for _ in range(num_splits)]
        self.sample_sets = [rng.permutation(len(samples))[: self.number] for _ in range(num_splits)]

    def __call__(self) -> Judgement:
        """Everything."""
        pairs = [pair_counts(windows, FARTHEST) for windows in (self.samples, self.real)]
        reach = min(FARTHEST, self.length - 1)
        pairs = [counts[:, :reach] for counts in pairs]
        curves = np.array([mutual_information(pairs[1][chosen]) for chosen, _ in self.real_sets])
        information = mutual_information(pairs[0][self.sample_sets[0]]), np.quantile(curves, [0.025, 0.975], axis=0)
        findings = tuple(finding for part in self._parts(pairs) for finding in part)
        return Judgement(findings, self.number, self.length, information)

    def _parts(self, pairs: list[np.ndarray]) -> Iterator[Iterator[Finding]]:
        yield self._words()
        yield self._variety()
        yield self._information(pairs)
        yield self._genes()
        if self.training is not None:
            yield self._copies(self.training)
        yield self._learned()

    def _finding(
        self, key: str, name: str, unit: str, measure: Measure, samples: np.ndarray, real: np.ndarray, is_distance: bool, slow: bool = False
    ) -> Finding:
        """A measure of two sets, with its floor and its interval."""
        some = _SLOW if slow else len(self.real_sets)
        found = distance(measure, samples, real, self.sample_sets[:some], self.real_sets[:some])
        mine, (_, rest) = samples[self.sample_sets[0]], self.real_sets[0]
        low, high = spread(measure, mine, real[rest], found.samples, _SLOW if slow else 100, self.seed, halves=slow)
        interval = (max(low, 0.0), high) if is_distance else (low, high)
        return Finding(key, name, unit, is_distance, replace(found, interval=interval))

    def _value(self, key: str, name: str, unit: str, of: Callable[[np.ndarray], float], samples: np.ndarray, real: np.ndarray) -> Finding:
        """A number of one set."""
        found = self._finding(key, name, unit, lambda a, b: float(of(a)), samples, real, is_distance=False)
        return replace(found, distance=self._of_a_new_set(found.distance))

    def _of_a_new_set(self, found: Distance) -> Distance:
        """The same with the range of a number in a set that is not part of the real windows, as samples are not.

        Sets of n out of N real windows share windows: their numbers vary with 1/n - 1/N, and hold the error of the N in common. A new set
        differs from the mean of the N with 1/n + 1/N.
        """
        wider = math.sqrt((len(self.real) + self.number) / (len(self.real) - self.number))
        return replace(found, low=found.floor - wider * (found.floor - found.low), high=found.floor + wider * (found.high - found.floor))

    def _words(self) -> Iterator[Finding]:
        for k in WORDS:
            counts = [word_counts(list(windows), k, self.both_strands).astype(np.float32) for windows in (self.samples, self.real)]
            yield self._finding(f"js_{k}", f"words of {k}, Jensen-Shannon", "bits", jensen_shannon, *counts, is_distance=True)

    def _variety(self) -> Iterator[Finding]:
        gc = [100 * gc_content(list(windows), name) for windows, name in ((self.samples, "samples"), (self.real, "real"))]
        yield self._value("gc_variance", "GC, variance between windows", "points^2", lambda a: a.var(ddof=1), *gc)

    def _information(self, pairs: list[np.ndarray]) -> Iterator[Finding]:
        reach = pairs[0].shape[1]

        def gap(a: np.ndarray, b: np.ndarray) -> float:
            return float(np.abs(mutual_information(a) - mutual_information(b)).mean())

        yield self._value(
            "mutual_information", f"mutual information, mean to {reach} bases", "bits", lambda a: mutual_information(a).mean(), *pairs
        )
        yield self._finding("mutual_information_gap", "mutual information, mean gap of curves", "bits", gap, *pairs, is_distance=True)

    def _genes(self) -> Iterator[Finding]:
        rhythm = [period_three(windows) for windows in (self.samples, self.real)]
        frames = [longest_frame(windows) for windows in (self.samples, self.real)]
        yield self._value("period_three", "period of three, power", "x shuffled", np.mean, *rhythm)
        yield self._value("longest_frame", "longest open frame, mean", "bases", np.mean, *frames)
        yield self._finding("longest_frame_gap", "longest open frame, Wasserstein-1", "bases", wasserstein, *frames, is_distance=True)

    def _copies(self, training: TrainingSequence) -> Iterator[Finding]:
        seen = [training.seen(windows) for windows in (self.samples, self.real)]
        match = [training.longest_match(windows) for windows in (self.samples, self.real)]

        def share(a: np.ndarray) -> float:
            return 100 * a[:, 0].sum() / max(a[:, 1].sum(), 1)

        yield self._value("seen", f"{training.k}-mers seen in training", "%", share, *seen)
        yield self._value("longest_match_mean", "longest match with training, mean", "bases", np.mean, *match)
        longest = distance(lambda a, b: float(a.max()), *match, self.sample_sets, self.real_sets)  # a maximum has no useful spread
        yield Finding("longest_match", "longest match with training, of all", "bases", False, self._of_a_new_set(longest))

    def _learned(self) -> Iterator[Finding]:
        counts = [word_counts(list(windows), _DISCRIMINATOR_WORDS, self.both_strands) for windows in (self.samples, self.real)]
        found = distance(told_apart, *counts, self.sample_sets[:_SLOW], self.real_sets[:_SLOW])
        scores, labels = held_out_scores(counts[0][self.sample_sets[0]], counts[1][self.real_sets[0][1]])
        worlds = np.random.default_rng(self.seed).integers(
            self.number, size=(200, 2, self.number)
        )  # scores are resampled, nothing trained anew
        half = 1.96 * float(np.std([auroc(np.concatenate([scores[a], scores[self.number + b]]), labels) for a, b in worlds], ddof=1))
        found = replace(found, interval=(max(found.samples - half, 0.0), min(found.samples + half, 1.0)))
        yield Finding("auroc", f"discriminator on words of {_DISCRIMINATOR_WORDS}", "AUROC", True, found)

        def bits(a: np.ndarray, b: np.ndarray) -> float:
            return taught(a, b, self.order)

        name = f"real windows, Markov order {self.order} of samples"
        yield self._finding("taught", name, "bits per base", bits, self.samples, self.real, is_distance=True, slow=True)
