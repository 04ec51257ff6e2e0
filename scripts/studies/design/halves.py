"""The tables of the design study: measured promoters in two halves by genome position that share no
base and no 24-mer.

The tables are written to the folder of a run. They are derived from data that may not be
redistributed.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dnadiff.data.genome.genome import Genome
from dnadiff.data.kmers import KmerSet, codes, reverse_complement
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.store.disk import atomic_write
from dnadiff.store.files import open_text

ABSENT = -1
REPEATED = -2
SEED = 24  # bases that are looked up in an index; sequences are at least as long
HALVES = ("a", "b")
PARTS = ("train", "valid")
COLUMNS = ("sequence", "expression", "split", "start")


class Promoter(NamedTuple):
    """One measured sequence; `split` is the official part, train or test."""

    sequence: str
    expression: float
    split: str


def read_promoters(path: Path) -> list[Promoter]:
    """The rows of a table with the columns sequence, expression and split; ValueError if one is
    missing."""
    with open_text(path) as file:
        rows = list(csv.DictReader(file))
    missing = [name for name in Promoter._fields if not rows or name not in rows[0]]
    if missing:
        raise ValueError(
            f"{path} has no column {missing[0]!r} or no row; --tss expects sequence, expression "
            "and split"
        )
    return [
        Promoter(row["sequence"].upper(), float(row["expression"]), row["split"]) for row in rows
    ]


def bases_of(letters: Iterable[str]) -> list[np.ndarray]:
    """Bases, 0 to 3 and 4 for unknown, of each string."""
    tokenizer = DNATokenizer()
    return [tokenizer.bases(tokenizer.encode(each)) for each in letters]


def genome_bases(path: str) -> np.ndarray:
    """The bases of the longest record of a genome."""
    genome = Genome(path)
    name = max(genome.lengths, key=lambda record: genome.lengths[record])
    return DNATokenizer().bases(genome.window(name, 0, genome.lengths[name]))


def places(sequences: Sequence[np.ndarray], genome: np.ndarray) -> np.ndarray:
    """Start of the only occurrence of each sequence on either strand, (S,); `ABSENT` and `REPEATED`
    for none and for several."""
    values, known = codes(genome, SEED)
    order = np.flatnonzero(known)[np.argsort(values[known], kind="stable")]
    index = values[order]
    found = np.full(len(sequences), ABSENT)
    for number, bases in enumerate(sequences):
        starts = {
            start
            for strand in (bases, reverse_complement(bases))
            for start in _occurrences(strand, genome, order, index)
        }
        if starts:
            found[number] = starts.pop() if len(starts) == 1 else REPEATED
    return found


def _occurrences(
    bases: np.ndarray, genome: np.ndarray, order: np.ndarray, index: np.ndarray
) -> list[int]:
    values, known = codes(np.ascontiguousarray(bases[:SEED]), SEED)
    if not len(known) or not known[0]:
        return []
    low = np.searchsorted(index, values[0], "left")
    high = np.searchsorted(index, values[0], "right")
    return [
        start
        for start in order[low:high].tolist()
        if np.array_equal(genome[start : start + len(bases)], bases)
    ]


def divide(start: np.ndarray, length: int, size: int, guard: int, valid: float = 0.1) -> np.ndarray:
    """The half and the part of each sequence, (S,): `a train`, `a valid`, `b train`, `b valid`, or
    empty if it is near an edge.

    Each half is a stretch of the circular genome with the same number of sequences; its validation
    part is at its end.

    Args:
        start: (S,) of sequences of `length` bases in a genome of `size` bases.
        guard: bases on each side of an edge that no sequence may have.
        valid: fraction of a half.
    """
    cuts = np.quantile(start, [(1 - valid) / 2, 0.5, 1 - valid / 2]).astype(int)
    names = np.array([f"{half} {part}" for half in HALVES for part in PARTS])
    part = names[np.searchsorted(cuts, start, side="right")]
    near = np.any(
        [(edge + guard - start) % size < length + 2 * guard for edge in (0, *cuts)], axis=0
    )
    return np.where(near, "", part)


def overlaps(start: np.ndarray, other: np.ndarray, length: int) -> np.ndarray:
    """Whether a sequence shares a base with one of the others, (S,), from the starts of sequences
    of one length."""
    if not len(other):
        return np.zeros(len(start), bool)
    other = np.sort(other)
    after = np.searchsorted(other, start)
    nearest = [
        np.abs(start - other[np.clip(after + shift, 0, len(other) - 1)]) for shift in (-1, 0)
    ]
    return np.minimum(*nearest) < length


class Halves:
    """The two halves of the training part, and the test part of both.

    Args:
        rows: measured promoters of one length.
        genome: bases of the genome that they are from.
        guard: bases between parts.

    Attributes:
        part: (S,) of each row: `a train`, `a valid`, `b train`, `b valid`, `test`, or empty for
            those left out.
        counts: why rows were left out, and the sizes of the parts.
    """

    def __init__(self, rows: Sequence[Promoter], genome: np.ndarray, guard: int = 150) -> None:
        lengths = {len(row.sequence) for row in rows}
        if len(lengths) != 1 or min(lengths) < SEED:
            raise ValueError(
                f"promoters have {sorted(lengths)[:4]} bases; the study expects one length of at "
                f"least {SEED}"
            )
        self.rows = list(rows)
        self.length = lengths.pop()
        length = len(rows[0].sequence)
        bases = bases_of(row.sequence for row in rows)
        self.start = places(bases, genome)
        test = np.array([row.split == "test" for row in rows])
        placed = (self.start >= 0) & ~test
        at_test = placed & overlaps(self.start, self.start[test & (self.start >= 0)], length)
        used = np.flatnonzero(placed & ~at_test)
        if not len(used):
            raise ValueError(
                "no promoter of the training part occurs in the genome; give the genome that they "
                "are from"
            )
        self.part = np.full(len(rows), "", dtype="U7")
        self.part[used] = divide(self.start[used], length, len(genome), guard)
        near = int((self.part[used] == "").sum())
        shared = self._without_shared(bases)
        self.part[test] = "test"
        self.counts = {
            "absent": int(((self.start == ABSENT) & ~test).sum()),
            "repeated": int(((self.start == REPEATED) & ~test).sum()),
            "overlaps test": int(at_test.sum()),
            "near an edge": near,
            "shares a 24-mer": shared,
            **{name: count for name, count in sorted(Counter(self.part.tolist()).items()) if name},
        }

    def _without_shared(self, bases: Sequence[np.ndarray]) -> int:
        """Leave out the rows of half b that share a 24-mer with half a, on either strand; how many
        they are."""
        in_a, in_b = (np.flatnonzero(np.char.startswith(self.part, half)) for half in HALVES)
        known = KmerSet([bases[row] for row in in_a], SEED)
        shared = [row for row in in_b if known.hits(bases[row]).any()]
        self.part[shared] = ""
        return len(shared)

    def of(self, part: str) -> list[Promoter]:
        """The rows of a part."""
        return [self.rows[number] for number in np.flatnonzero(self.part == part)]

    def strongest(self, rows: Sequence[Promoter], fraction: float = 0.1) -> list[str]:
        """The sequences of the highest expression, the strongest first."""
        ordered = sorted(rows, key=lambda row: -row.expression)
        return [row.sequence for row in ordered[: max(round(fraction * len(ordered)), 1)]]

    def write(self, folder: Path) -> dict[str, str]:
        """Write `half_a.csv` and `half_b.csv`, each with the official test part; the SHA-256 of
        each."""
        folder.mkdir(parents=True, exist_ok=True)
        return {half: self._write(folder / f"half_{half}.csv", half) for half in HALVES}

    def _write(self, path: Path, half: str) -> str:
        lines = [",".join(COLUMNS)]
        for row, part, start in zip(self.rows, self.part.tolist(), self.start.tolist()):
            if part == "test" or part.startswith(half):
                lines.append(f"{row.sequence},{row.expression!r},{part.split()[-1]},{start}")
        content = ("\n".join(lines) + "\n").encode()
        with atomic_write(path, overwrite=True) as file:
            file.write(content)
        return hashlib.sha256(content).hexdigest()
