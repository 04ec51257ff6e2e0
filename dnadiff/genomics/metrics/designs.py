"""Designs read back from their FASTA file: rewards and likelihoods, the Pareto front, diversity,
composition compared with real sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from dnadiff.data.kmers import UNKNOWN
from dnadiff.formats.sequences import iter_sequences
from dnadiff.genomics.metrics.composition import (
    KMER_LENGTHS,
    MAX_SEQUENCES,
    Distance,
    RandomSets,
    designed_bases,
    evenly_spaced,
    gc_content,
    jensen_shannon,
    kmer_counts,
    wasserstein,
)
from dnadiff.genomics.metrics.memorization import cut, read_bases

_COLUMNS = ("reward", "log_prob", "log_weight", "longest_match", "judge")
_NUM_SPLITS = 40  # random sets of real sequences
_MIN_REAL = 4
_FEW_SPLITS = 10  # of unguided samples


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


def real_windows(path: str, length: int) -> list[ndarray]:
    """At most 2,000 windows of the records of a FASTA file, evenly spaced, without unknown bases; a
    ValueError if there are fewer than 4."""
    found = cut(read_bases(path), length, max_unknown=0)
    if len(found) < _MIN_REAL:
        raise ValueError(
            f"real {path} has {len(found)} windows of {length:,} bases, the length of the samples; "
            f"give at least {_MIN_REAL}"
        )
    return [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]


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
