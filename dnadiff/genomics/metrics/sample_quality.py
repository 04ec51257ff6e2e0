"""Samples compared with real windows of the same number and length: every metric with its
real-vs-real baseline.

The baseline: random disjoint sets of held-out windows, as large as the set of samples, are
evaluated as the samples are. A *distance* above the range of the baseline means that samples and
real windows are distinguishable. A distance below it is a warning: samples that are closer to a set
of real windows than other real windows vary too little, or copy some of that set.

Beyond k-mers there are the mutual information between distant bases, the three-base period of
codons and open reading frames, and what small models learn from samples: to discriminate them from
real windows, and to predict real windows. A set of windows is an array (S, L) uint8 of bases as in
`dnadiff.genomics.kmers`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from dnadiff.fields import Json
from dnadiff.genomics.kmers import UNKNOWN
from dnadiff.genomics.markov import BackoffMarkov
from dnadiff.genomics.metrics.composition import (
    KMER_LENGTHS,
    Distance,
    Statistic,
    bootstrap_interval,
    common_length,
    distance,
    evenly_spaced,
    gc_content,
    independent_range,
    jensen_shannon,
    kmer_counts,
    wasserstein,
)
from dnadiff.genomics.metrics.memorization import TrainingIndex

_STOPS = ((3, 0, 0), (3, 0, 2), (3, 2, 0))  # TAA, TAG, TGA


def pair_counts(windows: np.ndarray, max_distance: int) -> np.ndarray:
    """Counts of base a at d positions before base b: (S, max_distance, 16) int32 for d = 1 ..
    max_distance, indexed by 4 a + b.

    Pairs with an unknown base are not counted.
    """
    number, length = windows.shape
    counts = np.zeros((number, max_distance, 16), np.int32)
    row = np.arange(number)[:, None] * 17
    for d in range(1, min(max_distance, length - 1) + 1):
        first, second = windows[:, :-d].astype(np.int64), windows[:, d:]
        pair = np.where((first < UNKNOWN) & (second < UNKNOWN), 4 * first + second, 16)
        counts[:, d - 1] = np.bincount((pair + row).ravel(), minlength=17 * number).reshape(
            number, 17
        )[:, :16]
    return counts


def mutual_information(counts: np.ndarray) -> np.ndarray:
    """Mutual information in bits of two bases at distance d: (D,), from `pair_counts` of a set (S,
    D, 16) summed over its windows.

    The estimate is biased: with N pairs, independent bases give about 9/(2 N ln 2). Compare only
    sets of the same size.
    """
    joint = counts.sum(0).reshape(-1, 4, 4) / np.maximum(counts.sum((0, 2)), 1)[:, None, None]
    product = joint.sum(2)[:, :, None] * joint.sum(1)[:, None, :]
    ratio = np.divide(joint, product, where=joint > 0, out=np.ones_like(joint))
    return (joint * np.log2(ratio)).sum((1, 2))


def period_three(windows: np.ndarray) -> np.ndarray:
    """Spectral power at a period of three bases, for each window, (S,): 1 on average for
    independent bases, more in coding sequence.

    The sum of the squared Fourier coefficients at frequency 1/3 of the four base indicators,
    divided by its mean over shuffles of the window (after Tiwari et al., CABIOS 13, 263, 1997).
    """
    wave = np.exp(2j * np.pi * np.arange(windows.shape[1]) / 3)
    is_base = windows[:, :, None] == np.arange(4)  # (S, L, 4)
    number = is_base.sum(1)
    total = np.maximum(number.sum(1), 1)
    centered = (
        np.einsum("slb,l->sb", is_base, wave)
        - number / total[:, None] * ((windows < UNKNOWN) @ wave)[:, None]
    )
    expected = total - (number**2).sum(1) / total
    return (np.abs(centered) ** 2).sum(1) / np.maximum(expected, 1e-12)


def longest_orf(windows: np.ndarray) -> np.ndarray:
    """Length in bases of the longest open reading frame of each window, in any of six frames: (S,).

    A frame is a run of codons without a stop (TAA, TAG, TGA). It needs no start codon and may
    extend past both ends of a window, because genes are longer than windows; a codon with an
    unknown base ends it.
    """
    other = np.where(windows < UNKNOWN, 3 - windows.astype(np.int16), UNKNOWN)[:, ::-1]
    return np.max(
        [_longest(strand[:, start:]) for strand in (windows, other) for start in range(3)], axis=0
    )


def _longest(strand: np.ndarray) -> np.ndarray:
    """`longest_orf` in the frame of the first base."""
    codons = strand[:, : strand.shape[1] // 3 * 3].reshape(len(strand), -1, 3)
    if not codons.shape[1]:
        return np.zeros(len(strand), np.int64)
    ends = (codons == UNKNOWN).any(2)
    for stop in _STOPS:
        ends |= (codons == stop).all(2)
    place = np.arange(codons.shape[1])
    last = np.maximum.accumulate(
        np.where(ends, place, -1), axis=1
    )  # the last stop at or before each codon
    return 3 * (place - last).max(1)


_FOLDS = 5


def cross_validated_scores(
    samples: np.ndarray, real: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Cross-validated scores of logistic regressions that discriminate samples from real windows.

    Five folds. Features are the square roots of k-mer frequencies from the counts `samples (S, W)`
    and `real (R, W)`, each scaled to unit variance. Returns scores (S + R,) float and labels (S +
    R,) bool, True for samples.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.concatenate([samples, real]).astype(float)
    features = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    labels = np.arange(len(counts)) < len(samples)
    scores = np.empty(len(counts))
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(
        features, labels
    ):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)).fit(
            features[train], labels[train]
        )
        decision = model.decision_function(features[test])
        scores[test] = decision - decision.mean()  # each fold has its own intercept
    return scores, labels


def auroc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve of `scores (N,)` for `labels (N,)` bool; ties count half
    (Mann-Whitney U)."""
    from scipy.stats import rankdata

    positive = int(labels.sum())
    above = rankdata(scores)[labels].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (len(labels) - positive)))


def discriminator_auroc(samples: np.ndarray, real: np.ndarray) -> float:
    """AUROC of `cross_validated_scores`: 0.5 is chance, 1 separates samples from real windows
    perfectly."""
    return auroc(*cross_validated_scores(samples, real))


def train_on_samples_bits(samples: np.ndarray, real: np.ndarray, order: int) -> float:
    """Bits per base of the real windows `real (R, L)` under a Markov model trained on
    `samples (S, L)` only.

    Counts come from four fifths of the samples, and the back-off strengths from the last fifth:
    real windows are only tested on.
    """
    num_tuning = max(1, len(samples) // 5)
    model = BackoffMarkov.fit(list(samples[num_tuning:]), order).tuned(list(samples[:num_tuning]))
    gap = np.full((len(real), 1), UNKNOWN, np.uint8)
    return float(-np.nanmean(model.log_probs(np.hstack([real, gap]).ravel())) / np.log(2))


MAX_REAL = (
    20_000  # real windows, or four times the samples if that is more: a 6-mer spectrum is 16 KiB
)
MAX_DISTANCE = 100  # bases between two positions whose mutual information is computed
_MIN_SAMPLES = 10  # for a cross-validated discriminator
_DISCRIMINATOR_K = 4
_NUM_SLOW = 20  # splits and resamples of metrics that train a model each time
log = logging.getLogger("dnadiff")
TOO_SIMILAR = "WARNING: closer than real windows are to each other (too similar)"


@dataclass(frozen=True)
class QualityMetric:
    """One metric of the samples with its real-vs-real baseline.

    Attributes:
        key: its key in JSON.
        is_distance: whether it compares two sets (small is similar), or describes one.
    """

    key: str
    name: str
    unit: str
    is_distance: bool
    distance: Distance

    @property
    def verdict(self) -> str:
        """The samples compared with the baseline, in words."""
        if self.distance.above_baseline:
            return "farther than real windows" if self.is_distance else "higher than real windows"
        if self.distance.below_baseline:
            return TOO_SIMILAR if self.is_distance else "lower than real windows"
        return "as real windows"

    @property
    def warns(self) -> bool:
        """Whether samples are too similar to real windows."""
        return self.is_distance and self.distance.below_baseline


@dataclass(frozen=True)
class SampleQuality:
    """All metrics of a set of samples.

    Attributes:
        metrics: in the order of the table.
        num_compared: sequences in each set.
        information: mutual information in bits at each distance: of a set of samples (D,), and the
            range of 95 % of sets of real windows that are independent of these (2, D).
    """

    metrics: tuple[QualityMetric, ...]
    num_compared: int
    length: int
    information: tuple[np.ndarray, np.ndarray]

    def __getitem__(self, key: str) -> QualityMetric:
        """A metric by its key."""
        return next(metric for metric in self.metrics if metric.key == key)

    def warnings(self) -> list[str]:
        """One line for each distance below the baseline, and one for copies of the training
        part."""
        lines = [
            f"too similar: {m.name}: {m.distance.samples:.4g} {m.unit}, real windows "
            f"{m.distance.low:.4g} or more"
            for m in self.metrics
            if m.warns
        ]
        copied = [m for m in self.metrics if m.key == "seen" and m.distance.above_baseline]
        return lines + [
            f"copies: {m.distance.samples:.1f} % of {m.name}, of real windows "
            f"{m.distance.high:.1f} % or less; longest exact match "
            f"{self['longest_match'].distance.samples:.0f} of {self.length} bases"
            for m in copied
        ]

    def content(self) -> dict[str, Json]:
        """Plain values for JSON."""
        rows = {
            m.key: {
                "name": m.name,
                "unit": m.unit,
                "is_distance": m.is_distance,
                "samples": m.distance.samples,
                "low": m.distance.interval[0],
                "high": m.distance.interval[1],
                "baseline": m.distance.baseline,
                "baseline_low": m.distance.low,
                "baseline_high": m.distance.high,
                "verdict": m.verdict,
            }
            for m in self.metrics
        }
        ours, (low, high) = self.information
        curve = {"samples": ours.tolist(), "real_low": low.tolist(), "real_high": high.tolist()}
        sizes = {"num_compared": self.num_compared, "length": self.length}
        return sizes | {"findings": rows, "mutual_information": curve, "warnings": self.warnings()}


class QualityPart(NamedTuple):
    """Metrics that are computed together; `information` as in `SampleQuality`, of one part
    alone."""

    metrics: Sequence[QualityMetric]
    information: tuple[np.ndarray, np.ndarray] | None = None


class SampleQualityEvaluator:
    """Compares a set of samples with real windows.

    Args:
        samples: uint8 arrays of bases of one length (`composition.as_bases`).
        real: held-out windows of that length, preferably more than twice as many; of more than
            `MAX_REAL`, evenly spaced ones are used.
        training: index of the training part, to search for copies; None skips the search.
        both_strands: count k-mers on both strands; False for strand-oriented data.
        order: of the Markov models that are trained on the samples.
        num_splits: random sets of real windows.

    Raises:
        ValueError: if there are too few sequences, or they are too short or of several lengths.
    """

    def __init__(
        self,
        samples: Sequence[np.ndarray],
        real: Sequence[np.ndarray],
        training: TrainingIndex | None = None,
        both_strands: bool = True,
        order: int = 6,
        num_splits: int = 100,
        seed: int = 0,
    ) -> None:
        self.length = common_length(samples, real)
        self.number = min(len(samples), len(real) // 2)
        if self.number < _MIN_SAMPLES:
            raise ValueError(
                f"{len(samples)} samples and {len(real)} real windows of {self.length} bases are "
                "too few to compare; "
                f"give at least {_MIN_SAMPLES} and {2 * _MIN_SAMPLES}"
            )
        longest = max(*KMER_LENGTHS, training.k if training else 0)
        if self.length < longest:
            raise ValueError(
                f"sequences of {self.length} bases are shorter than the {longest}-mers that are "
                "counted; give longer ones"
            )
        kept = evenly_spaced(len(real), max(MAX_REAL, 4 * self.number))
        if len(kept) < len(real):
            log.info(f"{len(kept):,} of {len(real):,} real windows are compared, evenly spaced")
        self.samples, self.real, self.training = (
            np.stack(samples),
            np.stack([real[i] for i in kept]),
            training,
        )
        self.both_strands, self.order, self.seed = both_strands, order, seed
        rng = np.random.default_rng(seed)
        self.real_sets = [
            np.split(rng.permutation(len(self.real))[: 2 * self.number], 2)
            for _ in range(num_splits)
        ]
        self.sample_sets = [rng.permutation(len(samples))[: self.number] for _ in range(num_splits)]

    def __call__(self) -> SampleQuality:
        """Compute all metrics."""
        return self.joined(part() for part in self.parts())

    def parts(self) -> list[Callable[[], QualityPart]]:
        """Functions that compute the metrics, which do not depend on each other."""
        found: list[Callable[[], QualityPart]] = [partial(self._kmers, k) for k in KMER_LENGTHS]
        found += [self._gc, self._mutual_information, self._coding]
        found += [] if self.training is None else [self._memorization]
        return [*found, self._discriminator, self._train_on_samples]

    def joined(self, parts: Iterable[QualityPart]) -> SampleQuality:
        """All metrics, given the results of all `parts` in their order."""
        done = list(parts)
        information = next(part.information for part in done if part.information is not None)
        return SampleQuality(
            tuple(metric for part in done for metric in part.metrics),
            self.number,
            self.length,
            information,
        )

    def _metric(
        self,
        key: str,
        name: str,
        unit: str,
        statistic: Statistic,
        data: Sequence[np.ndarray],
        is_distance: bool = True,
        slow: bool = False,
    ) -> QualityMetric:
        """A statistic of two sets, with its baseline and its interval; `data` are the rows of
        samples and of real windows."""
        samples, real = data
        num_sets = _NUM_SLOW if slow else len(self.real_sets)
        found = distance(
            statistic, samples, real, self.sample_sets[:num_sets], self.real_sets[:num_sets]
        )
        chosen, (_, rest) = samples[self.sample_sets[0]], self.real_sets[0]
        num_resamples = _NUM_SLOW if slow else 100
        low, high = bootstrap_interval(
            statistic, chosen, real[rest], found.samples, num_resamples, self.seed, halves=slow
        )
        interval = (max(low, 0.0), high) if is_distance else (low, high)
        return QualityMetric(key, name, unit, is_distance, replace(found, interval=interval))

    def _value(
        self,
        key: str,
        name: str,
        unit: str,
        of: Callable[[np.ndarray], float],
        data: Sequence[np.ndarray],
    ) -> QualityMetric:
        found = self._metric(key, name, unit, lambda a, b: float(of(a)), data, is_distance=False)
        return replace(
            found, distance=found.distance.of_an_independent_set(self.number, len(self.real))
        )

    def _both(self, of: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        """What is computed of the samples and of the real windows."""
        return [of(self.samples), of(self.real)]

    def _kmers(self, k: int) -> QualityPart:
        counts = self._both(lambda x: kmer_counts(list(x), k, self.both_strands, np.float32))
        name = f"{k}-mers, Jensen-Shannon divergence"
        return QualityPart([self._metric(f"js_{k}", name, "bits", jensen_shannon, counts)])

    def _gc(self) -> QualityPart:
        gc = [
            100 * gc_content(list(windows), name)
            for windows, name in ((self.samples, "samples"), (self.real, "real"))
        ]
        name = "GC content, variance between windows"
        return QualityPart(
            [self._value("gc_variance", name, "points^2", lambda a: a.var(ddof=1), gc)]
        )

    def _mutual_information(self) -> QualityPart:
        reach = min(MAX_DISTANCE, self.length - 1)
        pairs = self._both(lambda x: pair_counts(x, MAX_DISTANCE)[:, :reach])
        curves = np.array([mutual_information(pairs[1][chosen]) for chosen, _ in self.real_sets])
        ours, limits = (
            mutual_information(pairs[0][self.sample_sets[0]]),
            independent_range(curves, self.number, len(self.real)),
        )

        def gap(a: np.ndarray, b: np.ndarray) -> float:
            return float(np.abs(mutual_information(a) - mutual_information(b)).mean())

        name = f"mutual information, mean up to {reach} bases"
        mean = self._value(
            "mutual_information", name, "bits", lambda a: mutual_information(a).mean(), pairs
        )
        curve = self._metric(
            "mutual_information_gap",
            "mutual information, mean difference of curves",
            "bits",
            gap,
            pairs,
        )
        return QualityPart([mean, curve], (ours, np.maximum(limits, 0.0)))

    def _coding(self) -> QualityPart:
        periods, frames = self._both(period_three), self._both(longest_orf)
        period = self._value(
            "period_three", "three-base period, power", "x shuffled", np.mean, periods
        )
        frame = self._value(
            "longest_frame", "longest open reading frame, mean", "bases", np.mean, frames
        )
        gap = self._metric(
            "longest_frame_gap",
            "longest open reading frame, Wasserstein-1",
            "bases",
            wasserstein,
            frames,
        )
        return QualityPart([period, frame, gap])

    def _memorization(self) -> QualityPart:
        training = self.training
        assert training is not None
        seen, match = self._both(training.seen), self._both(training.longest_match)

        def percent(a: np.ndarray) -> float:
            return 100 * a[:, 0].sum() / max(a[:, 1].sum(), 1)

        metrics = [
            self._value("seen", f"{training.k}-mers seen in training", "%", percent, seen),
            self._value(
                "longest_match_mean", "longest match with training, mean", "bases", np.mean, match
            ),
        ]
        # A maximum has no useful standard error.
        longest = distance(
            lambda a, b: float(a.max()), match[0], match[1], self.sample_sets, self.real_sets
        )
        name, independent = (
            "longest match with training, maximum",
            longest.of_an_independent_set(self.number, len(self.real)),
        )
        return QualityPart(
            [*metrics, QualityMetric("longest_match", name, "bases", False, independent)]
        )

    def _discriminator(self) -> QualityPart:
        counts = self._both(lambda x: kmer_counts(list(x), _DISCRIMINATOR_K, self.both_strands))
        found = distance(
            discriminator_auroc,
            counts[0],
            counts[1],
            self.sample_sets[:_NUM_SLOW],
            self.real_sets[:_NUM_SLOW],
        )
        scores, labels = cross_validated_scores(
            counts[0][self.sample_sets[0]], counts[1][self.real_sets[0][1]]
        )
        # The replicates resample the scores: nothing is trained again.
        replicates = np.random.default_rng(self.seed).integers(
            self.number, size=(200, 2, self.number)
        )
        areas = [
            auroc(np.concatenate([scores[a], scores[self.number + b]]), labels)
            for a, b in replicates
        ]
        half = 1.96 * float(np.std(areas, ddof=1))
        found = replace(
            found, interval=(max(found.samples - half, 0.0), min(found.samples + half, 1.0))
        )
        name = f"discriminator on {_DISCRIMINATOR_K}-mers"
        return QualityPart([QualityMetric("discriminator_auroc", name, "AUROC", True, found)])

    def _train_on_samples(self) -> QualityPart:
        def bits(a: np.ndarray, b: np.ndarray) -> float:
            return train_on_samples_bits(a, b, self.order)

        name = f"real windows, order-{self.order} Markov model of samples"
        data = self.samples, self.real
        return QualityPart(
            [self._metric("train_on_samples_bits", name, "bits per base", bits, data, slow=True)]
        )
