"""Samples compared with real windows of the same number and length: every metric with its
real-vs-real baseline.

The baseline: random disjoint sets of held-out windows, as large as the set of samples, are
evaluated as the samples are. A *distance* above the range of the baseline means that samples and
real windows are distinguishable. A distance below it is a warning: samples that are closer to a set
of real windows than other real windows vary too little, or copy some of that set.

Beyond k-mers there are the mutual information between distant bases, the three-base period of
codons and open reading frames, and what small models learn from samples: to discriminate them from
real windows, and to predict real windows. A set of windows is an array (S, L) uint8 of bases as in
`dnadiff.data.kmers`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike
from pydantic import TypeAdapter

from dnadiff.data.kmers import UNKNOWN
from dnadiff.fields import Json, JsonDict, JsonMap
from dnadiff.genomics.markov import BackoffMarkov
from dnadiff.genomics.metrics.composition import (
    KMER_LENGTHS,
    Distance,
    RandomSets,
    Statistic,
    bootstrap_interval,
    common_length,
    evenly_spaced,
    gc_content,
    independent_range,
    jensen_shannon,
    kmer_counts,
    wasserstein,
)
from dnadiff.genomics.metrics.memorization import TrainingIndex
from dnadiff.jobs.job import Job, Result
from dnadiff.plot import BAND, MODEL, figure, legend_below, rendered
from dnadiff.progress import log, table
from dnadiff.store.disk import write_bytes, write_json

_CODON = np.array((16, 4, 1))  # what each base of a codon counts in its number
_STOPS = (48, 50, 56)  # TAA, TAG, TGA


def pair_counts(windows: ndarray, max_distance: int) -> ndarray:
    """Counts of base a at d positions before base b: (S, max_distance, 16) int32 for d = 1 ..
    max_distance, indexed by 4 a + b.

    Pairs with an unknown base are not counted.
    """
    counts = np.zeros((len(windows), max_distance, 4, 4), np.int32)
    is_base = (windows[:, :, None] == np.arange(4)).astype(np.float32)
    for d in range(1, min(max_distance, windows.shape[1] - 1) + 1):
        counts[:, d - 1] = is_base[:, :-d].swapaxes(1, 2) @ is_base[:, d:]  # exact below 2^24
    return counts.reshape(len(windows), max_distance, 16)


def mutual_information(counts: ndarray) -> ndarray:
    """Mutual information in bits of two bases at distance d: (D,), from `pair_counts` of a set (S,
    D, 16) summed over its windows.

    The estimate is biased: with N pairs, independent bases give about 9/(2 N ln 2). Compare only
    sets of the same size.
    """
    from scipy.special import rel_entr

    joint = counts.sum(0).reshape(-1, 4, 4) / np.maximum(counts.sum((0, 2)), 1)[:, None, None]
    product = joint.sum(2)[:, :, None] * joint.sum(1)[:, None, :]
    return rel_entr(joint, product).sum((1, 2)) / math.log(2)


def period_three(windows: ndarray) -> ndarray:
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


def longest_orf(windows: ndarray) -> ndarray:
    """Length in bases of the longest open reading frame of each window, in any of six frames: (S,).

    A frame is a run of codons without a stop (TAA, TAG, TGA). It needs no start codon and may
    extend past both ends of a window, because genes are longer than windows; a codon with an
    unknown base ends it.
    """
    other = np.where(windows < UNKNOWN, 3 - windows.astype(np.int16), UNKNOWN)[:, ::-1]
    longest = np.zeros(len(windows), np.int64)
    for frame in (strand[:, start:] for strand in (windows, other) for start in range(3)):
        number = frame.shape[1] // 3
        codons = frame[:, : 3 * number].reshape(len(frame), number, 3)
        if number:
            ends = (codons == UNKNOWN).any(2) | np.isin(codons @ _CODON, _STOPS)
            place = np.arange(number)
            # The last stop at or before each codon.
            last = np.maximum.accumulate(np.where(ends, place, -1), axis=1)
            longest = np.maximum(longest, 3 * (place - last).max(1))
    return longest


_FOLDS = 5


def cross_validated_scores(samples: ndarray, real: ndarray) -> tuple[ndarray, ndarray]:
    """Cross-validated scores of logistic regressions that discriminate samples from real windows.

    Five folds. Features are the square roots of k-mer frequencies from the counts `samples (S, W)`
    and `real (R, W)`, each scaled to unit variance. Returns scores (S + R,) float and labels (S +
    R,) bool, True for samples.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.concatenate([samples, real]).astype(float)
    features = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    labels = np.arange(len(counts)) < len(samples)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    scores = cross_val_predict(model, features, labels, cv=folds, method="decision_function")
    for _, test in folds.split(features, labels):
        scores[test] -= scores[test].mean()  # each fold has its own intercept
    return scores, labels


def discriminator_auroc(samples: ndarray, real: ndarray) -> float:
    """AUROC of `cross_validated_scores`: 0.5 is chance, 1 separates samples from real windows
    perfectly."""
    from sklearn.metrics import roc_auc_score

    scores, labels = cross_validated_scores(samples, real)
    return float(roc_auc_score(labels, scores))


def train_on_samples_bits(samples: ndarray, real: ndarray, order: int) -> float:
    """Bits per base of the real windows `real (R, L)` under a Markov model trained on
    `samples (S, L)` only.

    Counts come from four fifths of the samples, and the back-off strengths from the last fifth:
    real windows are only tested on.
    """
    num_tuning = max(1, len(samples) // 5)
    fitted = BackoffMarkov.fit(list(samples[num_tuning:]), order)
    model = fitted.tuned_each(list(samples[:num_tuning]), [order], sweeps=0)[order]
    gap = np.full((len(real), 1), UNKNOWN, np.uint8)
    return float(-np.nanmean(model.log_probs(np.hstack([real, gap]).ravel())) / np.log(2))


MAX_REAL = (
    20_000  # real windows, or four times the samples if that is more: a 6-mer spectrum is 16 KiB
)
MAX_DISTANCE = 100  # bases between two positions whose mutual information is computed
_MIN_SAMPLES = 10  # for a cross-validated discriminator
_DISCRIMINATOR_K = 4
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


Curves = tuple[list[float], tuple[list[float], list[float]]]


@dataclass(frozen=True)
class SampleQuality:
    """All metrics of a set of samples.

    Attributes:
        metrics: in the order of the table.
        num_compared: sequences in each set.
        information: mutual information in bits at each distance: of a set of samples (D,), and the
            range of 95 % of sets of real windows that are independent of these (2, D).
    """

    metrics: Sequence[QualityMetric]
    num_compared: int
    length: int
    information: Curves

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

    def content(self) -> JsonDict:
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
        curve = {"samples": ours, "real_low": low, "real_high": high}
        sizes = {"num_compared": self.num_compared, "length": self.length}
        return sizes | {"findings": rows, "mutual_information": curve, "warnings": self.warnings()}


@dataclass(frozen=True)
class QualityPart:
    """Metrics that are computed together; `information` as in `SampleQuality`, of one part
    alone."""

    metrics: list[QualityMetric]
    information: Curves | None = None


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
        num_slow: sets and replicates of metrics that train a model each time.

    Raises:
        ValueError: if there are too few sequences, or they are too short or of several lengths.
    """

    def __init__(
        self,
        samples: Sequence[ndarray],
        real: Sequence[ndarray],
        training: TrainingIndex | None = None,
        both_strands: bool = True,
        order: int = 6,
        num_splits: int = 100,
        seed: int = 0,
        num_slow: int = 20,
    ) -> None:
        self.length = common_length(samples, real)
        self.number = min(len(samples), len(real) // 2)
        if self.number < _MIN_SAMPLES:
            raise ValueError(
                f"{len(samples)} samples and {len(real)} real windows of {self.length} bases are "
                f"too few to compare; give at least {_MIN_SAMPLES} and {2 * _MIN_SAMPLES}"
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
        self.samples = np.stack(samples)
        self.real = np.stack([real[i] for i in kept])
        self.training = training
        self.both_strands = both_strands
        self.order = order
        self.seed = seed
        self.num_slow = num_slow
        self.sets = RandomSets.draw(len(samples), len(self.real), num_splits, seed, 2 * self.number)

    def __call__(self) -> SampleQuality:
        """Compute all metrics."""
        return self.joined(part() for part in self.parts())

    def parts(self) -> list[Callable[[], QualityPart]]:
        """Functions that compute the metrics, which do not depend on each other."""
        training = self.training
        return [
            *(partial(self._kmers, k) for k in KMER_LENGTHS),
            self._gc,
            self._mutual_information,
            self._coding,
            *([] if training is None else [partial(self._memorization, training)]),
            self._discriminator,
            self._train_on_samples,
        ]

    def joined(self, parts: Iterable[QualityPart]) -> SampleQuality:
        """All metrics, given the results of all `parts` in their order."""
        done = list(parts)
        information = next(part.information for part in done if part.information is not None)
        metrics = [metric for part in done for metric in part.metrics]
        return SampleQuality(metrics, self.number, self.length, information)

    def _metric(
        self,
        about: tuple[str, str, str],
        statistic: Statistic,
        data: Sequence[ndarray],
        is_distance: bool = True,
        slow: bool = False,
    ) -> QualityMetric:
        """A statistic of two sets, with its baseline and its interval; `about` is its key, name and
        unit, and `data` are the rows of samples and of real windows."""
        samples, real = data
        num_sets = self.num_slow if slow else None
        found = self.sets.distance(statistic, samples, real, num_sets, not is_distance)
        low, high = bootstrap_interval(
            statistic,
            samples[self.sets.samples[0]],
            real[self.sets.real[0][1]],
            found.samples,
            self.num_slow if slow else 100,
            self.seed,
            halves=slow,
        )
        interval = (max(low, 0.0), high) if is_distance else (low, high)
        return QualityMetric(*about, is_distance, replace(found, interval=interval))

    def _value(
        self, about: tuple[str, str, str], of: Callable[[ndarray], float], data: Sequence[ndarray]
    ) -> QualityMetric:
        return self._metric(about, lambda a, b: float(of(a)), data, is_distance=False)

    def _both(self, of: Callable[[ndarray], ndarray]) -> list[ndarray]:
        """What is computed of the samples and of the real windows."""
        return [of(self.samples), of(self.real)]

    def _counts(self, k: int, dtype: DTypeLike = np.int64) -> list[ndarray]:
        return self._both(lambda windows: kmer_counts(windows, k, self.both_strands, dtype))

    def _kmers(self, k: int) -> QualityPart:
        about = (f"js_{k}", f"{k}-mers, Jensen-Shannon divergence", "bits")
        return QualityPart([self._metric(about, jensen_shannon, self._counts(k, np.float32))])

    def _gc(self) -> QualityPart:
        gc = [100 * gc_content(self.samples, "samples"), 100 * gc_content(self.real, "real")]
        about = ("gc_variance", "GC content, variance between windows", "points^2")
        return QualityPart([self._value(about, lambda a: a.var(ddof=1), gc)])

    def _mutual_information(self) -> QualityPart:
        reach = min(MAX_DISTANCE, self.length - 1)
        pairs = self._both(lambda x: pair_counts(x, MAX_DISTANCE)[:, :reach])
        curves = np.array([mutual_information(pairs[1][chosen]) for chosen, _ in self.sets.real])
        ours = mutual_information(pairs[0][self.sets.samples[0]])
        limits = independent_range(curves, self.number, len(self.real))

        def mean(a: ndarray) -> float:
            return mutual_information(a).mean()

        def gap(a: ndarray, b: ndarray) -> float:
            return float(np.abs(mutual_information(a) - mutual_information(b)).mean())

        key = "mutual_information"
        name = "mutual information, mean"
        metrics = [
            self._value((key, f"{name} up to {reach} bases", "bits"), mean, pairs),
            self._metric((f"{key}_gap", f"{name} difference of curves", "bits"), gap, pairs),
        ]
        low, high = np.maximum(limits, 0.0).tolist()
        return QualityPart(metrics, (ours.tolist(), (low, high)))

    def _coding(self) -> QualityPart:
        period = self._both(period_three)
        frames = self._both(longest_orf)
        of_period = ("period_three", "three-base period, power", "x shuffled")
        key = "longest_frame"
        name = "longest open reading frame"
        unit = "bases"
        far = (f"{key}_gap", f"{name}, Wasserstein-1", unit)
        return QualityPart(
            [
                self._value(of_period, np.mean, period),
                self._value((key, f"{name}, mean", unit), np.mean, frames),
                self._metric(far, wasserstein, frames),
            ]
        )

    def _memorization(self, training: TrainingIndex) -> QualityPart:
        seen = self._both(training.seen)
        match = self._both(training.longest_match)

        def percent(a: ndarray) -> float:
            return 100 * a[:, 0].sum() / max(a[:, 1].sum(), 1)

        key = "longest_match"
        name = "longest match with training"
        unit = "bases"
        # A maximum has no useful standard error.
        longest = self.sets.distance(
            lambda a, b: float(a.max()), match[0], match[1], is_independent=True
        )
        of_seen = ("seen", f"{training.k}-mers seen in training", "%")
        return QualityPart(
            [
                self._value(of_seen, percent, seen),
                self._value((f"{key}_mean", f"{name}, mean", unit), np.mean, match),
                QualityMetric(key, f"{name}, maximum", unit, False, longest),
            ]
        )

    def _discriminator(self) -> QualityPart:
        from sklearn.metrics import roc_auc_score

        samples, real = self._counts(_DISCRIMINATOR_K)
        found = self.sets.distance(discriminator_auroc, samples, real, self.num_slow)
        chosen = self.sets.samples[0]
        rest = self.sets.real[0][1]
        scores, labels = cross_validated_scores(samples[chosen], real[rest])
        # The replicates resample the scores: nothing is trained again.
        rng = np.random.default_rng(self.seed)
        replicates = rng.integers(self.number, size=(200, 2, self.number))
        areas = [
            roc_auc_score(labels, np.concatenate([scores[a], scores[self.number + b]]))
            for a, b in replicates
        ]
        half = 1.96 * float(np.std(areas, ddof=1))
        interval = max(found.samples - half, 0.0), min(found.samples + half, 1.0)
        name = f"discriminator on {_DISCRIMINATOR_K}-mers"
        found = replace(found, interval=interval)
        return QualityPart([QualityMetric("discriminator_auroc", name, "AUROC", True, found)])

    def _train_on_samples(self) -> QualityPart:
        def bits(a: ndarray, b: ndarray) -> float:
            return train_on_samples_bits(a, b, self.order)

        name = f"real windows, order-{self.order} Markov model of samples"
        about = ("train_on_samples_bits", name, "bits per base")
        data = (self.samples, self.real)
        return QualityPart([self._metric(about, bits, data, slow=True)])


def overview(quality: SampleQuality) -> bytes:
    """A PNG file with both pictures in a row."""
    with figure(8, 3.1, 1, 2) as (made, (left, right)):
        made.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        draw_divergences(left, KMER_LENGTHS, [quality[f"js_{k}"].distance for k in KMER_LENGTHS])
        draw_information(right, quality)
    return rendered(made, "png")


def draw_divergences(
    axes: Any, lengths: Sequence[int], found: Sequence[Distance], name: str = "samples"
) -> None:
    """The distances of k-mer frequencies of these lengths from real windows; the band is the 95 %
    range of independent sets of real windows."""
    samples, low, high = np.array([(d.samples, d.low, d.high) for d in found]).T
    reach = np.abs(np.array([d.interval for d in found]).T - samples)
    reach[0] = np.minimum(reach[0], 0.9 * samples)  # the axis is logarithmic
    axes.fill_between(lengths, low, high, label="real vs. real, 95 %", **BAND)
    points: Json = {"fmt": "o-", "ms": 4, "lw": 1.3, "capsize": 2}
    axes.errorbar(lengths, samples, reach, color=MODEL, label=name, **points)
    axes.set(
        title="k-mers, distance from real windows",
        xlabel="k",
        ylabel="Jensen-Shannon divergence, bits",
        yscale="log",
    )
    axes.yaxis.set_major_formatter("{x:g}")
    legend_below(axes)


def draw_information(axes: Any, quality: SampleQuality) -> None:
    """Mutual information of two bases against the distance between them; the band is the 95 % range
    of independent sets of real windows."""
    samples, (low, high) = quality.information
    at = np.arange(1, len(samples) + 1)
    axes.fill_between(at, low, high, label="real windows, 95 %", **BAND)
    axes.plot(at, samples, color=MODEL, lw=1.3, label="samples")
    axes.set(title="Mutual information", xlabel="distance, bases", ylabel="bits", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    legend_below(axes)


@dataclass(eq=False)
class JudgeJob(Job):
    """All metrics of an evaluator, as a JSON file and a picture. Items are groups of metrics.

    Args:
        about: what the JSON file says before the metrics.
        options: of the evaluator.
        searched: digest of the data that are searched for copies.
    """

    stream = "metrics"
    label = "judge"

    evaluator: SampleQualityEvaluator
    output: Path
    about: JsonMap
    options: JsonMap
    searched: str | None

    def __post_init__(self) -> None:
        self.picture = self.output.with_name(f"{self.output.name.removesuffix('.json')}.png")
        self.side_files = (self.picture,)
        windows = {"samples": self.evaluator.samples, "real": self.evaluator.real}
        digests = {key: hashlib.sha256(x.tobytes()).hexdigest() for key, x in windows.items()}
        self.settings = {**self.options, **digests, "searched": self.searched}
        self.content: JsonDict = {}

    def starts(self) -> list[int]:
        return list(range(len(self.evaluator.parts()) + 1))

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for part in self.evaluator.parts()[start + skip :]:
            content = asdict(part())
            self.report(1, 0)
            yield Result(1, json.dumps(content).encode())

    def write(self, results: Iterator[Result]) -> None:
        """Write the picture, then the JSON file, which says that both are complete; nothing before
        both are known."""
        read = TypeAdapter(QualityPart).validate_json
        self.quality = self.evaluator.joined(read(result.content) for result in results)
        self.content = {**self.about, **self.quality.content()}
        write_bytes(self.picture, overview(self.quality))
        write_json(self.output, self.content)

    def closing(self, seconds: float) -> str:
        quality = self.quality
        rows = list[tuple[str, ...]]()
        for m in quality.metrics:
            found, (low, high) = m.distance, m.distance.interval
            rows.append(
                (
                    m.name,
                    m.unit,
                    f"{found.samples:.4g}",
                    "" if math.isnan(low) else f"{low:.4g} to {high:.4g}",
                    f"{found.baseline:.4g}",
                    f"{found.low:.4g} to {found.high:.4g}",
                    "WARNING: too similar" if m.warns else m.verdict,
                )
            )
        columns = ("metric", "unit", "samples", "95 % interval", "real", "95 % of real sets")
        return "\n".join(
            [
                table(rows, (*columns, "the samples are")),
                f"sets of {quality.num_compared:,} sequences of {quality.length:,} bases; "
                "distances are between a set and as many real windows",
                *(f"WARNING: {line}" for line in quality.warnings()),
                f"files are in {self.output} and {self.picture}",
            ]
        )
