"""What sequences are made of, samples beside real windows: frequencies of short words and GC content, with the floor of chance.

Even real windows differ from one another. The floor says by how much: random sets of real windows, as large as the set of
samples, are held against the remaining real windows, and the samples against the same remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dnadiff.bootstrap import student_t
from dnadiff.kmers import UNKNOWN, check_bases, reverse_complement_codes, spectrum

Measure = Callable[[np.ndarray, np.ndarray], float]
_LETTERS = "ACGT"
_NO_BASE = 255
_FEWEST_FOR_QUANTILES = 40  # the 2.5 % quantile of 20 values has 4 to 5 % below it


@dataclass(frozen=True)
class Distance:
    """How far the samples lie from real windows, beside how far real windows lie from each other.

    Attributes:
        samples: mean distance of the samples.
        floor, low, high: mean distance of as many real windows, and the range of 95 % of the random splits.
        interval: 95 % interval of `samples`, see `spread`; NaN where there is none.
    """

    samples: float
    floor: float
    low: float
    high: float
    interval: tuple[float, float] = (math.nan, math.nan)

    @property
    def beyond_floor(self) -> bool:
        """Whether the samples are farther away than 97.5 % of the sets of real windows."""
        return self.samples > self.high

    @property
    def below_floor(self) -> bool:
        """Whether they are closer than 97.5 % of the sets of real windows: too alike to be as varied as the real ones."""
        return self.samples < self.low


@dataclass(frozen=True)
class Composition:
    """Samples and real windows in numbers.

    Attributes:
        k: bases in a word.
        words: (W,) labels; with both strands a word and its reverse complement share one, such as `AAC/GTT`.
        sample_frequency, real_frequency: (W,) of each word; those with a shared label are the frequency of one of the two.
        word_low, word_high: (W,) range of 95 % of random sets of real windows.
        sample_gc, real_gc: (S,) and (R,) GC fraction of each sequence.
        num_compared: real windows in each random set.
        length: bases in each sequence.
        word_distance: total variation between the frequencies, 0 to 1.
        gc_distance: Wasserstein-1 between the distributions of GC fraction.
        gc_sets: (splits, num_compared) GC fractions of the random sets of real windows.
    """

    k: int
    words: tuple[str, ...]
    sample_frequency: np.ndarray
    real_frequency: np.ndarray
    word_low: np.ndarray
    word_high: np.ndarray
    sample_gc: np.ndarray
    real_gc: np.ndarray
    num_compared: int
    length: int
    word_distance: Distance
    gc_distance: Distance
    gc_sets: np.ndarray

    @property
    def unusual(self) -> np.ndarray:
        """(W,) bool: words whose frequency in the samples lies outside the range of real windows."""
        return (self.sample_frequency < self.word_low) | (self.sample_frequency > self.word_high)


def compare(
    samples: Iterable[str | bytes | np.ndarray],
    real: Iterable[str | bytes | np.ndarray],
    k: int = 3,
    both_strands: bool = True,
    num_splits: int = 200,
    seed: int = 0,
) -> Composition:
    """Words of k bases and GC content of samples against real windows of the same length.

    Args:
        samples: sequences as letters, or as uint8 arrays (0 A, 1 C, 2 G, 3 T, 4 unknown).
        real: windows of the genome of the samples' length; at least four, better many more than samples.
        k: length of the words.
        both_strands: count each word on both strands; False for strand-oriented data.
        num_splits: random splits of the real windows for the floor.
        seed: of the splits.

    Raises:
        ValueError: if there are too few sequences, their lengths differ, or one holds no known base or a letter that is none.
    """
    samples = [as_bases(sequence) for sequence in samples]
    real = [as_bases(sequence) for sequence in real]
    length = common_length(samples, real)
    sample_counts, real_counts = word_counts(samples, k, both_strands), word_counts(real, k, both_strands)
    sample_gc, real_gc = gc_content(samples, "samples"), gc_content(real, "real")
    number = min(len(samples), len(real) // 2)
    rng = np.random.default_rng(seed)
    real_sets = [np.split(rng.permutation(len(real)), [number]) for _ in range(num_splits)]
    sample_sets = [rng.permutation(len(samples))[:number] for _ in range(num_splits)]
    sets = np.array([_frequencies(real_counts[chosen]) for chosen, _ in real_sets])
    shown, words = _words(k, both_strands)
    low, high = np.quantile(sets, [0.025, 0.975], axis=0)[:, shown]
    return Composition(
        k=k,
        words=words,
        sample_frequency=_frequencies(sample_counts)[shown],
        real_frequency=_frequencies(real_counts)[shown],
        word_low=low,
        word_high=high,
        sample_gc=sample_gc,
        real_gc=real_gc,
        num_compared=number,
        length=length,
        word_distance=distance(total_variation, sample_counts, real_counts, sample_sets, real_sets),
        gc_distance=distance(wasserstein, sample_gc, real_gc, sample_sets, real_sets),
        gc_sets=np.array([real_gc[chosen] for chosen, _ in real_sets]),
    )


def as_bases(sequence: str | bytes | np.ndarray) -> np.ndarray:
    """Letters as bases, 0 A, 1 C, 2 G, 3 T (U) and 4 for the ambiguous ones; an array is checked and passed on.

    Raises:
        ValueError: if a letter is no nucleotide code.
    """
    if isinstance(sequence, np.ndarray):
        check_bases(sequence)
        return sequence
    raw = sequence.encode("latin-1", "replace") if isinstance(sequence, str) else bytes(sequence)
    bases = _base_of_letter()[np.frombuffer(raw, np.uint8)]
    if (bases == _NO_BASE).any():
        position = int(np.argmax(bases == _NO_BASE))
        raise ValueError(f"the sequence holds {sequence[position : position + 1]!r} at position {position}, which is no nucleotide code")
    return bases


def _base_of_letter() -> np.ndarray:
    table = np.full(256, _NO_BASE, np.uint8)
    for letters in (b"NRYKMSWBDHV", b"nrykmswbdhv"):
        table[list(letters)] = UNKNOWN
    for letters in (b"ACGTU", b"acgtu"):
        table[list(letters)] = [0, 1, 2, 3, 3]
    return table


def common_length(samples: Sequence[np.ndarray], real: Sequence[np.ndarray]) -> int:
    """The length of all sequences; raises ValueError if there are too few, or their lengths differ."""
    if len(samples) < 2 or len(real) < 4:
        raise ValueError(f"{len(samples)} samples and {len(real)} real windows are too few to compare; give at least 2 and 4")
    lengths = {len(bases) for bases in samples}, {len(bases) for bases in real}
    if len(lengths[0]) > 1 or lengths[0] != lengths[1]:
        ours, theirs = (", ".join(map(str, sorted(each)[:4])) for each in lengths)
        raise ValueError(
            f"samples have length {ours} and real windows {theirs}; GC content is comparable at one common length only, so cut both to it"
        )
    return lengths[0].pop()


def word_counts(sequences: Sequence[np.ndarray], k: int, both_strands: bool) -> np.ndarray:
    """How often each word of k bases occurs in each sequence: (S, 4**k)."""
    return np.stack([spectrum([bases], k, both_strands) for bases in sequences])


def _frequencies(counts: np.ndarray) -> np.ndarray:
    total = counts.sum(0, dtype=np.float64)  # divergences are small differences of entropies: float32 would eat them up
    return total / max(total.sum(), 1)


def gc_content(sequences: Sequence[np.ndarray], name: str) -> np.ndarray:
    """GC fraction of each sequence, (S,).

    Raises:
        ValueError: if one holds no known base.
    """
    known = np.array([(bases < UNKNOWN).sum() for bases in sequences])
    if (known == 0).any():
        raise ValueError(f"sequence {int(np.argmin(known))} of {name} holds no A, C, G or T")
    return np.array([((bases == 1) | (bases == 2)).sum() for bases in sequences]) / known


def _words(k: int, both_strands: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """The codes to show and their labels; with both strands one of each pair."""
    every = np.arange(4**k, dtype=np.uint64)
    other = reverse_complement_codes(every, k)
    shown = np.flatnonzero(every <= other) if both_strands else np.arange(4**k)
    pairs = [(int(code), int(other[code])) for code in shown]
    return shown, tuple(_spell(a, k) if a == b or not both_strands else f"{_spell(a, k)}/{_spell(b, k)}" for a, b in pairs)


def _spell(code: int, k: int) -> str:
    return "".join(_LETTERS[code >> 2 * place & 3] for place in reversed(range(k)))


def distance(
    measure: Measure, samples: np.ndarray, real: np.ndarray, sample_sets: Sequence[np.ndarray], real_sets: Sequence[Sequence[np.ndarray]]
) -> Distance:
    """Samples against real windows, and real ones against each other.

    Args:
        measure: of two sets, arrays whose rows are what is known of each sequence.
        samples: (S, ...) of all samples.
        real: (R, ...) of all real windows.
        sample_sets: which samples each split takes.
        real_sets: for each split the real windows that stand in for samples, and those that both are held against.
    """
    ours = [measure(samples[chosen], real[rest]) for chosen, (_, rest) in zip(sample_sets, real_sets)]
    floor = [measure(real[chosen], real[rest]) for chosen, rest in real_sets]
    return Distance(float(np.mean(ours)), float(np.mean(floor)), *_range(np.array(floor)))


def _range(values: np.ndarray) -> tuple[float, float]:
    """Where 95 % of such values lie: their quantiles, or where there are too few of them, mean -+ t deviations."""
    n = len(values)
    if n < _FEWEST_FOR_QUANTILES:
        half = student_t(n - 1) * float(values.std(ddof=1)) * math.sqrt(1 + 1 / n)
        return float(values.mean()) - half, float(values.mean()) + half
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def spread(
    measure: Measure, samples: np.ndarray, real: np.ndarray, around: float, num_resamples: int = 100, seed: int = 0, halves: bool = False
) -> tuple[float, float]:
    """95 % interval of a number of the samples: `around` -+ t se, real windows fixed.

    The error is the spread over samples drawn with replacement (bootstrap). A set that holds items twice lies elsewhere than one that does not, in
    divergences of words above all: its spread is used, not its place. With `halves` it is that over random halves, whose spread is as large as the
    error of the whole: for what trains on one part of a set and chooses on another, which repeated items would spoil.
    """
    n, rng = len(samples), np.random.default_rng(seed)
    worlds = [rng.permutation(n)[: n // 2] if halves else rng.integers(n, size=n) for _ in range(num_resamples)]
    half = student_t(n - 1) * float(np.std([measure(samples[chosen], real) for chosen in worlds], ddof=1)) * math.sqrt(n / (n - 1))
    return around - half, around + half


def total_variation(a: np.ndarray, b: np.ndarray) -> float:
    """Half the summed differences of two sets' frequencies, from counts (S, W) and (R, W): 0 to 1."""
    return float(np.abs(_frequencies(a) - _frequencies(b)).sum() / 2)


def jensen_shannon(a: np.ndarray, b: np.ndarray) -> float:
    """Bits by which two sets' frequencies differ from their mean, from counts (S, W) and (R, W): 0 to 1 (Lin 1991)."""
    p, q = _frequencies(a), _frequencies(b)
    return float(_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2)


def _entropy(p: np.ndarray) -> float:
    return float(-(p * np.log2(p, where=p > 0, out=np.zeros_like(p))).sum())


def wasserstein(a: np.ndarray, b: np.ndarray) -> float:
    """Wasserstein-1 between two distributions given as samples (S,) and (R,)."""
    levels = (np.arange(200) + 0.5) / 200
    return float(np.abs(np.quantile(a, levels) - np.quantile(b, levels)).mean())
