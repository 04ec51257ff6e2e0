"""Rows of variants as a file has them, and each allele as an edit of the genome, with its REF
checked."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import ids_of
from dnadiff.formats.regions import check_names

_NUCLEOTIDES = re.compile("[ACGTURYKMSWBDHVN]+")
_BASES = "ACGT"
_PLAIN = re.compile(f"[{_BASES}]+")
_SHOWN = 20  # letters of an allele in a message
MITOCHONDRION = ("M", "MT")
TOKENIZER = DNATokenizer()


class Reference(Protocol):
    """Named records of token ids, such as a `Genome`."""

    @property
    def lengths(self) -> dict[str, int]:
        """Record name to number of bases."""

    @property
    def digest(self) -> str:
        """A hash that changes with any base."""

    def window(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.uint8]:
        """Token ids of `[start, end)`, 0-based."""


class Row(NamedTuple):
    """One row of a file of variants.

    Attributes:
        where: file and line, for messages.
        pos: position of the first base of REF, counted from 1.
        text: the line of a VCF file; empty for other sources.
    """

    where: str
    chrom: str
    pos: int
    id: str
    ref: str
    alts: tuple[str, ...]
    text: str = ""


class Edit(NamedTuple):
    """An allele: the bases `[start, start + len(ref))` of a record become `alt`. Common ends are
    left out, so that one of both may be empty.

    Attributes:
        start: 0-based.
        ref, alt: upper-case letters.
        differs: REF is not what the genome has there.
    """

    record: str
    start: int
    ref: str
    alt: str
    differs: bool = False

    @property
    def is_snv(self) -> bool:
        """Whether it replaces one base."""
        return len(self.ref) == len(self.alt) == 1

    @property
    def is_indel(self) -> bool:
        """Whether both alleles have different lengths."""
        return len(self.ref) != len(self.alt)

    @property
    def end(self) -> int:
        """One past the last base of REF."""
        return self.start + len(self.ref)

    @property
    def longest(self) -> int:
        """Bases of the longer allele."""
        return max(len(self.ref), len(self.alt))

    @property
    def surplus(self) -> int:
        """Bases that the longer allele has more than the other."""
        return abs(len(self.ref) - len(self.alt))

    def has_windows(self, length: int) -> bool:
        """Whether a record of this length has windows of equal length for both alleles: the shorter
        one needs `surplus` more of its bases.

        They are on one side of the variant.
        """
        return self.surplus <= max(self.start, length - self.end)

    def window_length(self, length: int, window: int) -> int:
        """Bases in the windows of both alleles on a record of this length: fewer than `window` if
        one of the alleles has fewer."""
        return min(window, length - max(0, len(self.ref) - len(self.alt)))

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.record}:{self.start + 1} {shown(self.ref)}>{shown(self.alt)}"


class Skipped(NamedTuple):
    """An allele that has no effect to compute, and why."""

    reason: str
    differs: bool = False  # REF is not what the genome has


class Mismatch(NamedTuple):
    """A row whose REF is not what the genome has."""

    message: str


def shown(allele: str) -> str:
    """An allele in a message."""
    return (
        allele if len(allele) <= _SHOWN else f"{allele[:_SHOWN]}... ({len(allele)} bases)"
    ) or "-"


class Alleles:
    """Turns rows into edits.

    Args:
        reference: the genome.
        window: bases that the network reads.
        skip_mismatches: leave out rows whose REF differs from the genome, instead of marking their
            edits.
        fixed_length: leave out alleles whose windows have fewer than `window` bases, which the
            network does not accept.
    """

    def __init__(
        self,
        reference: Reference,
        window: int,
        skip_mismatches: bool = False,
        fixed_length: bool = False,
    ) -> None:
        self.reference, self.window, self.skip_mismatches, self.fixed_length = (
            reference,
            window,
            skip_mismatches,
            fixed_length,
        )
        self.lengths = reference.lengths
        self._record: dict[str, str] = {}

    def record(self, chrom: str, where: str) -> str:
        """The record of that name, with `chr` added or removed if needed; ValueError if the genome
        has none."""
        if chrom not in self._record:
            found = record_of(chrom, self.lengths)
            if found is None:
                check_names([chrom], self.lengths, f"{where}: the genome lacks a contig")
                raise AssertionError  # check_names has raised
            self._record[chrom] = found
        return self._record[chrom]

    def edits(self, row: Row) -> tuple[list[Edit | Skipped], Mismatch | None]:
        """Each alternative allele of a row, and whether its REF differs from the genome.

        Raises:
            ValueError: naming file and line, for an unknown contig, a position outside of it, or an
                allele that is not one of nucleotides.
        """
        record = self.record(row.chrom, row.where)
        start, ref, length = row.pos - 1, row.ref.upper(), self.lengths[record]
        self._check_letters(row, "REF", ref)
        if start < 0 or start + len(ref) > length:
            reasons = [_reason(alt) for alt in row.alts]
            if row.pos in (0, length + 1) and all(
                reasons
            ):  # VCF: breakends and symbolic alleles at a telomere
                return list(map(Skipped, reasons)), None
            hint = "is it a different assembly?" if row.pos else "positions are counted from 1"
            raise ValueError(
                f"{row.where}: REF {shown(ref)} at position {row.pos} is not inside {record} "
                f"(1-{length}); {hint}"
            )
        here = TOKENIZER.decode(self.reference.window(record, start, start + len(ref)))
        mismatch = None
        if ref != here and any(
            a != b for a, b in zip(ref, here) if a in _BASES and b in _BASES
        ):  # N says nothing
            mismatch = Mismatch(
                f"{row.where}: {row.chrom}:{row.pos} has REF {shown(ref)}, the genome {shown(here)}"
            )
        return [
            self._edit(row, Edit(record, start, ref, alt.upper(), mismatch is not None), here)
            for alt in row.alts
        ], mismatch

    def _edit(self, row: Row, given: Edit, here: str) -> Edit | Skipped:
        """The edit of an allele as it is `given`, where the genome has the bases `here`."""
        if reason := _reason(given.alt):
            return Skipped(reason, given.differs)
        self._check_letters(row, "ALT", given.alt)
        if given.alt == given.ref:
            return Skipped("ALT equals REF", given.differs)
        if given.differs and self.skip_mismatches:
            return Skipped("REF differs from the genome", given.differs)
        edit = trimmed(given)
        if not _PLAIN.fullmatch(edit.ref + edit.alt):
            return Skipped("an allele with N or another ambiguity code", given.differs)
        if not _PLAIN.fullmatch(
            here[edit.start - given.start : edit.end - given.start] or edit.alt
        ):
            return Skipped("N in the genome at REF", given.differs)
        if edit.longest > self.window:
            return Skipped(f"longer than the window of {self.window:,} bases", given.differs)
        if not edit.has_windows(self.lengths[edit.record]):
            return Skipped("the record is too short for windows of equal length", given.differs)
        if (
            self.fixed_length
            and edit.window_length(self.lengths[edit.record], self.window) < self.window
        ):
            return Skipped("the record is too short for a head of fixed length", given.differs)
        return edit

    def _check_letters(self, row: Row, column: str, allele: str) -> None:
        if not _NUCLEOTIDES.fullmatch(allele):
            hint = (
                "; write a deletion or an insertion with the base before it, as in REF=CA ALT=C"
                if allele in ("-", "")
                else ""
            )
            raise ValueError(
                f"{row.where}: {column} {shown(allele)!r} is not an allele of nucleotides (A, C, "
                f"G, T){hint}"
            )


def _reason(alt: str) -> str:
    """Why an ALT is skipped whatever REF is; empty if it is not."""
    if alt == "*":
        return "* (a deletion in another row)"
    if alt == ".":
        return "no ALT (.)"
    if alt.startswith("<"):
        return "a symbolic allele"
    is_single = alt.startswith(".") or alt.endswith(".")  # a breakend without a mate, as G. or .G
    return "a breakend" if "[" in alt or "]" in alt or is_single else ""


def other_names(chrom: str) -> list[str]:
    """The name of a record, and the same with or without `chr`; M and MT are the same."""
    bare = chrom.removeprefix("chr")
    names = [*MITOCHONDRION, bare] if bare in MITOCHONDRION else [bare]
    return [chrom, *(prefix + name for name in names for prefix in ("", "chr"))]


def record_of(chrom: str, records: Container[str]) -> str | None:
    """The record of that name, see `other_names`; None if there is none."""
    return next((name for name in other_names(chrom) if name in records), None)


def trimmed(edit: Edit) -> Edit:
    """The same edit without the bases that both alleles share at their ends: first those on the
    right, then those on the left."""
    ref, alt, start = edit.ref, edit.alt, edit.start
    while ref and alt and ref[-1] == alt[-1]:
        ref, alt = ref[:-1], alt[:-1]
    shared = 0
    while shared < min(len(ref), len(alt)) and ref[shared] == alt[shared]:
        shared += 1
    return edit._replace(start=start + shared, ref=ref[shared:], alt=alt[shared:])


class Sequences:
    """A genome in memory, for Python: `{name: letters}`; ValueError naming the record if a letter
    is not a nucleotide."""

    def __init__(self, records: dict[str, str]) -> None:
        self.ids = {}
        for name, letters in records.items():
            try:
                self.ids[name] = TOKENIZER.encode(letters)
            except ValueError as error:
                raise ValueError(f"genome: in {name}, {error}") from None

    @property
    def lengths(self) -> dict[str, int]:
        """Record name to number of bases."""
        return {name: len(ids) for name, ids in self.ids.items()}

    @property
    def digest(self) -> str:
        """A hash of all bases."""
        import hashlib

        return hashlib.sha256(
            b"".join(name.encode() + ids.tobytes() for name, ids in self.ids.items())
        ).hexdigest()

    def window(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.uint8]:
        """Token ids of `[start, end)`."""
        return self.ids[record][start:end]


def ids_of_allele(allele: str) -> NDArray[np.uint8]:
    """Token ids of the letters of an allele; an empty one has none."""
    return ids_of(allele) if allele else np.zeros(0, np.uint8)


def kinds(edits: Sequence[Edit]) -> dict[str, int]:
    """Numbers of SNVs, of other replacements of equal length (MNVs) and of indels."""
    snv, indel = sum(e.is_snv for e in edits), sum(e.is_indel for e in edits)
    return {"SNVs": snv, "MNVs": len(edits) - snv - indel, "indels": indel}
