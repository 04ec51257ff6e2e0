"""k-mer frequencies and GC content of samples, compared with real windows and with a real-vs-real
baseline; and designs read back from their FASTA file: rewards and likelihoods, the Pareto front,
diversity, composition compared with real sequences.

Real windows differ from one another too. The baseline measures by how much: random sets of real
windows, as large as the set of samples, are compared with the remaining real windows, and the
samples with the same remainder. Random sets of n out of N real windows overlap: their values vary
with 1/n - 1/N, and have the error of the N in common. The value of an independent set, such as
samples of a model, differs from the mean of the N with 1/n + 1/N (`independent_range`)."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike

from dnadiff.data.kmers import UNKNOWN, spectrum
from dnadiff.diffusion.bootstrap import student_t
from dnadiff.formats.nucleotides import FIRST_BASE, ids_of
from dnadiff.formats.sequences import Record, iter_sequences

KMER_LENGTHS = (1, 2, 3, 4, 5, 6)
MAX_SEQUENCES = 2000  # sequences that are kept in memory, and points that are drawn


def widening(number: int, total: int) -> float:
    """How much wider the range of independent sets is than that of random sets of `number` out of
    `total` windows."""
    return math.sqrt((total + number) / (total - number))


def independent_range(values: ndarray, number: int, total: int) -> ndarray:
    """The range of 95 % of independent sets, (2, ...), from `values (sets, ...)` of random sets of
    `number` out of `total` windows."""
    mean = values.mean(0)
    return mean + widening(number, total) * (np.quantile(values, [0.025, 0.975], axis=0) - mean)


Statistic = Callable[
    [ndarray, ndarray], float
]  # of two sets, arrays with one row for each sequence
_DESIGNED = re.compile(r"(?:^|\s)designed=(\d+)-(\d+)(?:\s|$)")
_COLUMNS = ("reward", "log_prob", "log_weight", "longest_match", "judge")
_NUM_SPLITS = 40  # random sets of real sequences
_FEW_SPLITS = 10  # of unguided samples
_MIN_FOR_QUANTILES = 40  # the 2.5 % quantile of 20 values has 4 to 5 % below it


@dataclass(frozen=True)
class Distance:
    """The distance of samples from real windows, with the distance of real windows from each other
    as the baseline.

    Attributes:
        samples: mean distance of the samples.
        baseline, low, high: mean distance of sets of as many real windows, and the range of 95 % of
            these sets.
        interval: 95 % interval of `samples` (`bootstrap_interval`); NaN where there is none.
    """

    samples: float
    baseline: float
    low: float
    high: float
    interval: tuple[float, float] = (math.nan, math.nan)

    @property
    def above_baseline(self) -> bool:
        """Whether the samples are farther away than 97.5 % of the sets of real windows."""
        return self.samples > self.high

    @property
    def below_baseline(self) -> bool:
        """Whether the samples are closer than 97.5 % of the sets of real windows: less varied than
        real windows."""
        return self.samples < self.low


@dataclass(frozen=True)
class RandomSets:
    """Random sets of samples, and of as many real windows for the real-vs-real baseline.

    Attributes:
        samples: indices of the samples of each set.
        real: of each set, the indices of the real windows that take the place of the samples, and
            of those that both are compared with.
    """

    samples: Sequence[ndarray]
    real: Sequence[Sequence[ndarray]]

    @classmethod
    def draw(
        cls, num_samples: int, num_real: int, num_sets: int, seed: int, most: int | None = None
    ) -> RandomSets:
        """Sets of all samples, or of half of the real windows if these are fewer; `most` are the
        real windows that are used for one of them, None is all."""
        number = min(num_samples, num_real // 2)
        rng = np.random.default_rng(seed)
        real = [np.split(rng.permutation(num_real)[:most], [number]) for _ in range(num_sets)]
        return cls([rng.permutation(num_samples)[:number] for _ in range(num_sets)], real)

    def distance(
        self,
        statistic: Statistic,
        samples: ndarray,
        real: ndarray,
        num_sets: int | None = None,
        is_independent: bool = False,
    ) -> Distance:
        """A statistic of samples `(S, ...)` and real windows `(R, ...)` in the first `num_sets`
        (None is all), with its real-vs-real baseline.

        The range of 95 % of the sets is that of their quantiles, or with too few of them the
        prediction interval of Student's t; with `is_independent` it is the range for a set that is
        independent of the real windows (`independent_range`).
        """
        pairs = list(zip(self.samples, self.real))[:num_sets]
        ours = [statistic(samples[chosen], real[rest]) for chosen, (_, rest) in pairs]
        theirs = np.array([statistic(real[chosen], real[rest]) for _, (chosen, rest) in pairs])
        n = len(theirs)
        mean = float(theirs.mean())
        low, high = map(float, np.quantile(theirs, [0.025, 0.975]))
        if n < _MIN_FOR_QUANTILES:
            half = student_t(n - 1) * float(theirs.std(ddof=1)) * math.sqrt(1 + 1 / n)
            low = mean - half
            high = mean + half
        if is_independent:
            wider = widening(len(self.samples[0]), len(real))
            low, high = (mean + wider * (limit - mean) for limit in (low, high))
        return Distance(float(np.mean(ours)), mean, low, high)


def as_bases(sequence: str | bytes) -> ndarray:
    """A sequence of nucleotides as a uint8 array: 0 A, 1 C, 2 G, 3 T or U, 4 for an ambiguity
    code."""
    return ids_of(sequence) - np.uint8(FIRST_BASE)  # of N: `UNKNOWN`


def designed_bases(record: Record) -> ndarray:
    """The bases of the part of a record that its header calls `designed=first-last` (1-based): of
    all, if the header does not say it, or if that is outside the record."""
    bases = as_bases(record.sequence)
    if found := _DESIGNED.search(record.description):
        first, last = map(int, found.groups())
        return bases[first - 1 : last] if 1 <= first <= last <= len(bases) else bases
    return bases


def common_length(samples: Sequence[ndarray], real: Sequence[ndarray]) -> int:
    """The length of all sequences; raises ValueError if their lengths differ."""
    lengths = {len(bases) for bases in samples}, {len(bases) for bases in real}
    if len(lengths[0]) > 1 or lengths[0] != lengths[1]:
        ours, theirs = (", ".join(map(str, sorted(each)[:4])) for each in lengths)
        raise ValueError(
            f"samples have length {ours} and real windows {theirs}; all sequences must have the "
            "same length, so cut both to it"
        )
    return lengths[0].pop()


def kmer_counts(
    sequences: Sequence[ndarray] | ndarray, k: int, both_strands: bool, dtype: DTypeLike = np.int64
) -> ndarray:
    """Counts of each k-mer in each sequence: (S, 4**k)."""
    counts = np.empty((len(sequences), 4**k), dtype)
    for row, bases in zip(counts, sequences):
        row[:] = spectrum([bases], k, both_strands)
    return counts


def _frequencies(counts: ndarray) -> ndarray:
    total = counts.sum(
        0, dtype=np.float64
    )  # divergences are small differences of entropies: float32 would lose them
    return total / max(total.sum(), 1)


def gc_content(sequences: Sequence[ndarray] | ndarray, name: str) -> ndarray:
    """GC fraction of each sequence, (S,); raises ValueError if one has no known base."""
    known = np.array([(bases < UNKNOWN).sum() for bases in sequences])
    if (known == 0).any():
        raise ValueError(f"sequence {int(np.argmin(known))} of {name} has no A, C, G or T")
    return np.array([((bases == 1) | (bases == 2)).sum() for bases in sequences]) / known


def bootstrap_interval(
    statistic: Statistic,
    samples: ndarray,
    real: ndarray,
    center: float,
    num_resamples: int = 100,
    seed: int = 0,
    halves: bool = False,
) -> tuple[float, float]:
    """95 % interval of a statistic of the samples, `center` +- t se, with the real windows fixed.

    The standard error is the spread over bootstrap replicates of the samples. Only their spread is
    used, not their mean: repeated items bias a replicate, k-mer divergences above all. With
    `halves` the replicates are random halves without repeated items, whose spread is as large as
    the standard error of the complete set: for statistics that train on one part of a set and
    validate on another.
    """
    n = len(samples)
    rng = np.random.default_rng(seed)
    replicates = [
        rng.permutation(n)[: n // 2] if halves else rng.integers(n, size=n)
        for _ in range(num_resamples)
    ]
    spread = float(np.std([statistic(samples[chosen], real) for chosen in replicates], ddof=1))
    half = student_t(n - 1) * spread * math.sqrt(n / (n - 1))
    return center - half, center + half


def jensen_shannon(a: ndarray, b: ndarray) -> float:
    """Jensen-Shannon divergence in bits between the k-mer frequencies of two sets, from counts (S,
    W) and (R, W): 0 to 1 (Lin 1991).

    `scipy.spatial.distance.jensenshannon` is the square root of it, and NaN where rounding makes
    the divergence of close sets negative.
    """
    from scipy.special import rel_entr

    p = _frequencies(a)
    q = _frequencies(b)
    mean = (p + q) / 2
    return max(float((rel_entr(p, mean) + rel_entr(q, mean)).sum()) / (2 * math.log(2)), 0.0)


def wasserstein(a: ndarray, b: ndarray) -> float:
    """Wasserstein-1 distance between two sets of values (S,) and (R,), each represented by 200
    interpolated quantiles."""
    from scipy.stats import wasserstein_distance

    levels = (np.arange(200) + 0.5) / 200
    return float(wasserstein_distance(np.quantile(a, levels), np.quantile(b, levels)))


def evenly_spaced(number: int, maximum: int) -> ndarray:
    """At most `maximum` of the indices of `number` items, evenly spaced."""
    return np.unique(np.linspace(0, number - 1, min(maximum, number)).astype(int))


@dataclass(frozen=True)
class DesignTable:
    """The designs of a file.

    Attributes:
        names: of the N records.
        columns: (N,) of each number in the headers: reward, log_prob, log_weight, longest_match,
            judge; NaN where there is none.
        lengths: (N,) bases that were designed, or of the whole record if the header does not say
            which.
        num_distinct: different sequences.
        counts: (L, 5) of A, C, G, T and unknown bases at each position; None if the lengths differ.
        sequences: at most 2,000 of them, evenly spaced, as uint8 arrays of bases.
    """

    names: list[str]
    columns: Mapping[str, ndarray]
    lengths: ndarray
    num_distinct: int
    counts: ndarray | None
    sequences: list[ndarray]

    @classmethod
    def read(cls, path: Path, number: int) -> DesignTable:
        """The first `number` records of a FASTA file of designs, with one in memory at a time
        besides the 2,000."""
        kept = set(evenly_spaced(number, MAX_SEQUENCES).tolist())
        names = []
        sequences = []
        rows = []
        lengths = []
        digests: set[bytes] = set()
        counts: ndarray | None = None
        for i, record in zip(range(number), iter_sequences(path)):
            about = header_facts(record.description)
            bases = designed_bases(record)
            names.append(record.name)
            rows.append([float(about.get(name, "nan")) for name in _COLUMNS])
            lengths.append(len(bases))
            digests.add(hashlib.blake2b(bases.tobytes(), digest_size=16).digest())
            if i == 0:
                counts = np.zeros((len(bases), UNKNOWN + 1), np.int64)
            if counts is not None and len(bases) == len(counts):
                counts[np.arange(len(bases)), bases] += 1
            else:
                counts = None
            if i in kept:
                sequences.append(bases)
        columns = dict(zip(_COLUMNS, np.array(rows, float).T))
        return cls(names, columns, np.array(lengths), len(digests), counts, sequences)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def gc(self) -> float:
        """The mean GC fraction of `sequences`; a ValueError if one has no known base."""
        return float(gc_content(self.sequences, "the designs").mean())

    @property
    def hamming(self) -> float | None:
        """The mean Hamming distance over all pairs of designs, from the counts of letters at each
        position; None for a single one, or if the lengths differ."""
        if self.counts is None or len(self) < 2:
            return None
        same = self.counts * (self.counts - 1.0) / (len(self) * (len(self) - 1.0))
        return float((1 - same.sum(1)).sum())


def header_facts(description: str) -> dict[str, str]:
    """The `key=value` pairs of a header; a later one replaces an earlier one of the same name,
    which may be inside a label."""
    return {
        key: value
        for key, found, value in (word.partition("=") for word in description.split())
        if found
    }


def sixmer_distance(
    designs: Sequence[ndarray], unguided: Sequence[ndarray], seed: int
) -> tuple[float, float] | None:
    """Jensen-Shannon divergence in bits of the 6-mers of designs from unguided samples, and that of
    as many unguided samples from the others; None for fewer than 4 or for shorter ones."""
    if len(unguided) < 4 or min(map(len, [*designs, *unguided])) < KMER_LENGTHS[-1]:
        return None
    sets = RandomSets.draw(len(designs), len(unguided), _FEW_SPLITS, seed)
    ours, theirs = (kmer_counts(x, KMER_LENGTHS[-1], False) for x in (designs, unguided))
    found = sets.distance(jensen_shannon, ours, theirs)
    return found.samples, found.baseline


def compare_designs(
    designs: Sequence[ndarray], real: Sequence[ndarray], both_strands: bool, seed: int = 0
) -> dict[str, Distance]:
    """Compare designs with real sequences, which need not have the same length.

    Args:
        designs: uint8 arrays of bases.
        real: four or more; preferably more than twice as many.
        both_strands: count each k-mer on both strands.

    Returns:
        Jensen-Shannon divergences of k-mer frequencies in bits, for each k up to the shortest
        sequence, then the Wasserstein-1 distance of the GC content in points, by their names, with
        real-vs-real baselines.

    Raises:
        ValueError: if a sequence has no known base.
    """
    sets = RandomSets.draw(len(designs), len(real), _NUM_SPLITS, seed)
    shortest = min(map(len, [*designs, *real]))
    found = {}
    for k in KMER_LENGTHS:
        if k <= shortest:
            ours, theirs = (
                kmer_counts(each, k, both_strands, np.float32) for each in (designs, real)
            )
            found[f"{k}-mers, bits"] = sets.distance(jensen_shannon, ours, theirs)
    ours, theirs = gc_content(designs, "the designs"), gc_content(real, "real")
    gc = sets.distance(wasserstein, 100 * ours, 100 * theirs)
    return found | {"GC content, points": gc}
