"""Rows of variants as a file has them, each allele as an edit of the genome with its REF checked,
and both alleles in windows of equal length, on either strand."""

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


_COMPLEMENT = np.array(TOKENIZER.vocab.complement, np.uint8)
Ids = NDArray[np.uint8]
Places = NDArray[np.int64]


class Pair(NamedTuple):
    """Both alleles of a variant, each in its window of L bases, on the strand that is read.

    For alleles of equal length the windows differ at the variant alone. For an insertion or
    deletion the window of the shorter allele has further bases of the genome at one end, as many as
    the alleles differ in length.

    Attributes:
        ref, alt: (L,) token ids.
        ref_start, alt_start: place of the allele in its window.
        ref_len, alt_len: bases of the alleles.
        ends_right: whether these further bases are at the right end.
    """

    ref: Ids
    alt: Ids
    ref_start: int
    alt_start: int
    ref_len: int
    alt_len: int
    ends_right: bool

    @property
    def equal(self) -> bool:
        """Whether both alleles have the same length."""
        return self.ref_len == self.alt_len

    def reverse_complement(self) -> Pair:
        """The same pair, read on the other strand."""
        length = len(self.ref)
        return Pair(
            _COMPLEMENT[self.ref[::-1]],
            _COMPLEMENT[self.alt[::-1]],
            length - self.ref_start - self.ref_len,
            length - self.alt_start - self.alt_len,
            self.ref_len,
            self.alt_len,
            not self.ends_right,
        )

    def aligned(self, flank: int | None) -> tuple[Places, Places] | None:
        """Places in both windows that belong together, (n,) each: up to `flank` bases on each side
        of the alleles, and the alleles.

        The surplus bases of the longer allele are paired with the end bases that only the window of
        the shorter one has, so that both lists hold equally many bases. Bases that are not known
        (N) on both sides are left out. None if such an end base is not known: then there is nothing
        to compare the surplus bases with.

        Args:
            flank: None is as many as there are.
        """
        length, shared, surplus = (
            len(self.ref),
            min(self.ref_len, self.alt_len),
            abs(self.ref_len - self.alt_len),
        )
        ends = np.arange(length - surplus, length) if self.ends_right else np.arange(surplus)
        places = []
        for (left, right), start, size in zip(
            self.flanks(flank), (self.ref_start, self.alt_start), (self.ref_len, self.alt_len)
        ):
            rest = np.arange(start + shared, start + size) if size > shared else ends
            places.append(np.concatenate([left, np.arange(start, start + shared), rest, right]))
        known = [_known(ids[place]) for ids, place in zip((self.ref, self.alt), places)]
        if not (known[0] == known[1]).all():
            return None
        return places[0][known[0]], places[1][known[1]]

    def flanks(self, flank: int | None) -> list[tuple[Places, Places]]:
        """Places on the left and on the right of the allele in each window, at most `flank` of
        them, the same bases in both."""
        left = min(self.ref_start, self.alt_start)
        right = len(self.ref) - max(self.ref_start + self.ref_len, self.alt_start + self.alt_len)
        if flank is not None:
            left, right = min(left, flank), min(right, flank)
        ends = (
            (self.ref_start, self.ref_start + self.ref_len),
            (self.alt_start, self.alt_start + self.alt_len),
        )
        return [
            (np.arange(start - left, start), np.arange(end, end + right)) for start, end in ends
        ]


def _known(ids: Ids) -> NDArray[np.bool_]:
    return TOKENIZER.bases(ids) < 4


def pair(reference: Reference, edit: Edit, window: int, reverse: bool = False) -> Pair:
    """Both alleles of a variant with the context that fits into a window, shorter where the record
    is.

    Further bases of the shorter allele's window are at its end in the direction of reading, or at
    its beginning near the end of the record.

    Args:
        reverse: read the reverse complement.

    Raises:
        ValueError: if the record is too short for windows of equal length.
    """
    length = reference.lengths[edit.record]
    if not edit.has_windows(length):
        raise ValueError(
            f"{edit.name}: {edit.record} is too short for windows of equal length around this "
            "variant; remove it"
        )
    has_right, has_left = edit.surplus <= length - edit.end, edit.surplus <= edit.start
    ends_right = not has_left if reverse else has_right
    low, high = _interval(length, edit, window, ends_right)
    extra = (0, edit.surplus) if ends_right else (edit.surplus, 0)
    windows, starts = [], []
    for allele, other in ((edit.ref, edit.alt), (edit.alt, edit.ref)):
        before, after = extra if len(allele) < len(other) else (0, 0)
        left = _cut(reference, edit.record, low - before, edit.start)
        windows.append(
            np.concatenate(
                [left, ids_of_allele(allele), _cut(reference, edit.record, edit.end, high + after)]
            )
        )
        starts.append(len(left))
    forward = Pair(
        windows[0], windows[1], starts[0], starts[1], len(edit.ref), len(edit.alt), ends_right
    )
    return forward.reverse_complement() if reverse else forward


def _interval(length: int, edit: Edit, window: int, ends_right: bool) -> tuple[int, int]:
    """The interval of the genome in the window of the longer allele, with room for the further
    bases of the other on one side."""
    start, size = edit.start if ends_right else length - edit.end, len(edit.ref)
    bases = edit.window_length(length, window) + size - edit.longest  # of the genome
    # Alleles of equal length are read in the same window on both strands.
    low = start - (bases - size + (0 if ends_right or edit.surplus else 1)) // 2
    low = min(max(low, 0, start + size - bases), length - edit.surplus - bases, start)
    return (low, low + bases) if ends_right else (length - low - bases, length - low)


def _cut(reference: Reference, record: str, start: int, end: int) -> Ids:
    return reference.window(record, start, end) if end > start else np.zeros(0, np.uint8)
