"""Alleles as edits of a genome with their REF checked, and both alleles in windows of equal length,
on either strand. Rows of files are read by `dnadiff.formats.regions`; all variants of regions are
made here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.alignment import Alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer, encoded
from dnadiff.diffusion.vocab import COMPLEMENT
from dnadiff.formats.nucleotides import ids_of
from dnadiff.formats.regions import Region, Row, VariantSource, records_of
from dnadiff.store.disk import json_hash

_NUCLEOTIDES = re.compile("[ACGTURYKMSWBDHVN]+")
_BASES = "ACGT"
_PLAIN = re.compile(f"[{_BASES}]+")
_SHOWN = 20  # letters of an allele in a message
# bases that are read together
_FEW = 16
_PIECE = 1 << 16
_PLACEMENTS = 16
TOKENIZER = DNATokenizer()
_COMPLEMENT = np.array(TOKENIZER.vocab.complement, np.uint8)
Ids = NDArray[np.integer]
Places = NDArray[np.int64]
WindowColumns = NDArray[np.float32]  # (L, CHANNELS) of a window of an alignment


class Sequences:
    """A genome in memory, for Python: `{name: letters}`; errors as `encoded`, naming the record."""

    def __init__(self, records: Mapping[str, str]) -> None:
        self.ids = {
            str(name): encoded(TOKENIZER, letters, f"genome: record {name}")
            for name, letters in records.items()
        }
        self.lengths = {name: len(ids) for name, ids in self.ids.items()}
        self.names = list(self.ids)

    @property
    def digest(self) -> str:
        """SHA-256 of the names and bases."""
        return json_hash({name: ids.tobytes().hex() for name, ids in self.ids.items()})

    def window(self, record: str, start: int, end: int) -> Ids:
        """Token ids of `[start, end)`."""
        return self.ids[record][start:end]


Reference = Genome | Sequences


class Edit(NamedTuple):
    """An allele: the bases `[start, start + len(ref))` of a record become `alt`. Common ends are
    left out, so that one of both may be empty.

    Attributes:
        start: 0-based.
        ref, alt: upper-case letters.
        differs: REF is not what the genome has there.
        reverse: a stranded network reads the other strand (`Row.reverse`).
        shifts: places besides this one at which an insertion or deletion has the same result, as in
            a repeat; half of them, rounded down, are on the left.
    """

    record: str
    start: int
    ref: str
    alt: str
    differs: bool = False
    reverse: bool = False
    shifts: int = 0

    @property
    def kind(self) -> str:
        """SNVs, MNVs (other replacements of equal length) or indels."""
        return "indels" if self.surplus else "SNVs" if len(self.ref) == 1 else "MNVs"

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


def shown(allele: str) -> str:
    """An allele in a message."""
    if len(allele) > _SHOWN:
        return f"{allele[:_SHOWN]}... ({len(allele)} bases)"
    return allele or "-"


@dataclass(frozen=True)
class Alleles:
    """Turns rows into edits.

    Args:
        reference: the genome.
        window: bases that the network reads; 0: there is no network, and no allele is too long.
        skip_mismatches: leave out rows whose REF differs from the genome, instead of marking their
            edits.
        fixed_length: leave out alleles whose windows have fewer than `window` bases, which the
            network does not accept.
        filters: leave out rows of VCF whose FILTER has none of these; `.` is PASS. Empty: all rows.
        check: refuses a row that is not valid for another reason.
    """

    reference: Reference
    window: int
    skip_mismatches: bool = False
    fixed_length: bool = False
    filters: Collection[str] = ()
    check: Callable[[Row], object] = id

    def record(self, chrom: str, where: str) -> str:
        """The record that a name means; ValueError if the genome has none."""
        known = self.reference.lengths
        return records_of([chrom], known, f"{where}: the genome lacks a contig")[chrom]

    def edits(self, row: Row) -> tuple[list[Edit | Skipped], str]:
        """Each alternative allele of a row, and a message if its REF differs from the genome.

        Raises:
            ValueError: naming file and line, for an unknown contig, a position outside of it, or an
                allele that is not one of nucleotides.
        """
        record = self.record(row.chrom, row.where)
        self.check(row)
        if self.filters:
            text = row.text.split("\t", 7)[6]
            given_filters = {"PASS"} if text == "." else {*text.split(";")}
            if not given_filters & {*self.filters}:
                return [Skipped(f"FILTER is {text}")] * len(row.alts), ""
        start = row.pos - 1
        ref = row.ref.upper()
        length = self.reference.lengths[record]
        _check_letters(row, "REF", ref)
        if start < 0 or start + len(ref) > length:
            reasons = list(map(_no_bases, row.alts))
            if row.pos in (0, length + 1) and all(reasons):  # VCF: at a telomere
                return list(map(Skipped, reasons)), ""
            hint = "is it a different assembly?" if row.pos else "positions are counted from 1"
            raise ValueError(
                f"{row.where}: REF {shown(ref)} at position {row.pos} is not inside {record} "
                f"(1-{length}); {hint}"
            )
        here = TOKENIZER.decode(self.reference.window(record, start, start + len(ref)))
        known = ((a, b) for a, b in zip(ref, here) if a in _BASES and b in _BASES)
        differs = any(a != b for a, b in known)  # N says nothing
        found: list[Edit | Skipped] = []
        for alt in row.alts:
            given = Edit(record, start, ref, alt.upper(), differs, row.reverse)
            edit = self.edit_of(row, given, here)
            found.append(Skipped(edit, differs) if isinstance(edit, str) else edit)
        place = f"{row.where}: {row.chrom}:{row.pos}"
        message = f"{place} has REF {shown(ref)}, the genome {shown(here)}"
        return found, message if differs else ""

    def edit_of(self, row: Row, given: Edit, here: str) -> Edit | str:
        """The edit of an allele as it is `given`, where the genome has the bases `here`, or why it
        is skipped."""
        if reason := _no_bases(given.alt):
            return reason
        _check_letters(row, "ALT", given.alt)
        if given.alt == given.ref:
            return "ALT equals REF"
        if given.differs and self.skip_mismatches:
            return "REF differs from the genome"
        edit = trimmed(given)
        if not _PLAIN.fullmatch(edit.ref + edit.alt):
            return "an allele with N or another ambiguity code"
        replaced = here[edit.start - given.start : edit.end - given.start]
        if not _PLAIN.fullmatch(replaced or edit.alt):
            return "N in the genome at REF"
        window = self.window or edit.longest
        if edit.longest > window:
            return f"longer than the window of {window:,} bases"
        if replaced == edit.ref:
            edit = normalized(self.reference, edit)
        length = self.reference.lengths[edit.record]
        if not edit.has_windows(length):
            return "the record is too short for windows of equal length"
        if self.fixed_length and edit.window_length(length, window) < window:
            return "the record is too short for a head of fixed length"
        return edit


def _check_letters(row: Row, column: str, allele: str) -> None:
    if not _NUCLEOTIDES.fullmatch(allele):
        hint = "; write a deletion or an insertion with the base before it, as in REF=CA ALT=C"
        raise ValueError(
            f"{row.where}: {column} {shown(allele)!r} is not an allele of nucleotides (A, C, "
            f"G, T){hint if allele in ('-', '') else ''}"
        )


def _no_bases(alt: str) -> str:
    """What an ALT is that has no bases, whatever REF is; empty if it has."""
    if alt == "*":
        return "* (a deletion in another row)"
    if alt == ".":
        return "no ALT (.)"
    if alt.startswith("<"):
        return "a symbolic allele"
    is_single = alt.startswith(".") or alt.endswith(".")  # a breakend without a mate, as G. or .G
    return "a breakend" if "[" in alt or "]" in alt or is_single else ""


def trimmed(edit: Edit) -> Edit:
    """The same edit without the bases that both alleles share at their ends: first those on the
    right, then those on the left."""
    right = _shared(edit.ref[::-1], edit.alt[::-1])
    ref = edit.ref[: len(edit.ref) - right]
    alt = edit.alt[: len(edit.alt) - right]
    left = _shared(ref, alt)
    return edit._replace(start=edit.start + left, ref=ref[left:], alt=alt[left:])


def _shared(ref: str, alt: str) -> int:
    differ = (place for place, (a, b) in enumerate(zip(ref, alt)) if a != b)
    return next(differ, min(len(ref), len(alt)))


def normalized(reference: Reference, edit: Edit) -> Edit:
    """An insertion or deletion at the middle one of all places at which it has the same result,
    because the bases beside it repeat those that it adds or removes; other edits have one place.

    They are the places from the leftmost one, as `bcftools norm` writes it, to the rightmost one
    (A. Tan, G. R. Abecasis and H. M. Kang, Bioinformatics 31, 2202, 2015).
    """
    letters = edit.ref or edit.alt
    reach = _FEW
    if edit.ref and edit.alt:
        return edit
    left = right = reach
    while max(left, right) == reach:  # most edits are in no long repeat
        reach *= 2
        before = clipped(reference, edit.record, edit.start - reach, edit.start)
        after = clipped(reference, edit.record, edit.end, edit.end + reach)
        unit = ids_of(letters)
        left = _repeated(before[::-1], unit[::-1])
        right = _repeated(after, unit)
    by = (right - left) // 2
    first = by % len(letters)
    moved = letters[first:] + letters[:first]
    ref, alt = (moved if allele else "" for allele in (edit.ref, edit.alt))
    return edit._replace(start=edit.start + by, ref=ref, alt=alt, shifts=left + right)


def _repeated(bases: Ids, unit: Ids) -> int:
    """How many of the first bases repeat a unit."""
    same = bases == np.resize(unit, len(bases))
    return len(bases) if same.all() else int(same.argmin())


def clipped(reference: Reference, record: str, start: int, end: int) -> Ids:
    """Token ids of `[start, end)`, as far as they are in the record."""
    start = max(start, 0)
    end = min(end, reference.lengths[record])
    return reference.window(record, start, end) if end > start else np.zeros(0, np.uint8)


class Pair(NamedTuple):
    """Both alleles of a variant, each in its window of L bases, on the strand that is read.

    For alleles of equal length the windows differ at the variant alone. For an insertion or
    deletion the window of the shorter allele has further bases of the genome at one end, as many as
    the alleles differ in length.

    Attributes:
        ref, alt: (L,) token ids.
        starts: place of each allele in its window.
        sizes: bases of the alleles.
        ends_right: whether these further bases are at the right end.
        shifts: by how many bases both alleles can be moved to the left and to the right.
        columns: of an alignment, for both windows; None without one.
    """

    ref: Ids
    alt: Ids
    starts: tuple[int, int]
    sizes: tuple[int, int]
    ends_right: bool
    shifts: tuple[int, int]
    columns: tuple[WindowColumns, WindowColumns] | None

    @property
    def equal(self) -> bool:
        """Whether both alleles have the same length."""
        return self.sizes[0] == self.sizes[1]

    def reverse_complement(self) -> Pair:
        """The same pair, read on the other strand."""
        ref, alt = (_COMPLEMENT[ids[::-1]] for ids in (self.ref, self.alt))
        first, second = (len(ref) - s - size for s, size in zip(self.starts, self.sizes))
        columns = None
        if self.columns is not None:
            columns = self.columns[0][::-1, COMPLEMENT], self.columns[1][::-1, COMPLEMENT]
        shifts = self.shifts[::-1]
        ends_right = not self.ends_right
        return Pair(ref, alt, (first, second), self.sizes, ends_right, shifts, columns)

    def placements(self) -> list[Pair]:
        """The same windows with the alleles at each equivalent place in them, or at `_PLACEMENTS`
        of them at equal distances."""
        low = min(self.starts)
        high = len(self.ref) - max(map(sum, zip(self.starts, self.sizes)))
        left = min(self.shifts[0], low)
        right = min(self.shifts[1], high)
        count = min(left + right + 1, _PLACEMENTS)
        first, second = self.starts
        return [
            self._replace(starts=(first + by, second + by))
            for by in np.linspace(-left, right, count).round().astype(int).tolist()
        ]

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
        shared, longest = sorted(self.sizes)
        surplus = longest - shared
        length = len(self.ref)
        ends = np.arange(length - surplus, length) if self.ends_right else np.arange(surplus)
        places = []
        for (left, right), start, size in zip(self.flanks(flank), self.starts, self.sizes):
            rest = np.arange(start + shared, start + size) if size > shared else ends
            places.append(np.concatenate([left, np.arange(start, start + shared), rest, right]))
        ref, alt = places
        known = TOKENIZER.bases(self.ref[ref]) < 4
        if not np.array_equal(known, TOKENIZER.bases(self.alt[alt]) < 4):
            return None
        return ref[known], alt[known]

    def flanks(self, flank: int | None) -> list[tuple[Places, Places]]:
        """Places on the left and on the right of the allele in each window, at most `flank` of
        them, the same bases in both."""
        spans = [(start, start + size) for start, size in zip(self.starts, self.sizes)]
        left = min(start for start, _ in spans)
        right = len(self.ref) - max(end for _, end in spans)
        if flank is not None:
            left = min(left, flank)
            right = min(right, flank)
        return [
            (np.arange(start - left, start), np.arange(end, end + right)) for start, end in spans
        ]


def pair(
    reference: Reference,
    edit: Edit,
    window: int,
    reverse: bool = False,
    alignment: Alignment | None = None,
) -> Pair:
    """Both alleles of a variant with the context that fits into a window, shorter where the record
    is.

    Further bases of the shorter allele's window are at its end in the direction of reading, or at
    its beginning near the end of the record.

    Args:
        edit: for which there are such windows (`Edit.has_windows`).
        reverse: read the reverse complement.
        alignment: of the genome. A base of the genome has its column in both windows, and one that
            replaces it too, counted in the direction of reading. Inserted bases have zeros.
    """
    length = reference.lengths[edit.record]
    size = len(edit.ref)
    ends_right = edit.surplus > edit.start if reverse else edit.surplus <= length - edit.end
    # The interval of the genome in the window of the longer allele, with room for the further bases
    # of the other on one side, which counts from its other end.
    start = edit.start if ends_right else length - edit.end
    bases = edit.window_length(length, window) + size - edit.longest
    # Alleles of equal length are read in the same window on both strands.
    low = start - (bases - size + (0 if ends_right or edit.surplus else 1)) // 2
    low = min(max(low, 0, start + size - bases), length - edit.surplus - bases, start)
    if not ends_right:
        low = length - low - bases

    windows = []
    starts = []
    columns = []
    for allele in (edit.ref, edit.alt):
        extra = edit.longest - len(allele)
        first, last = (0, extra) if ends_right else (extra, 0)
        left = clipped(reference, edit.record, low - first, edit.start)
        right = clipped(reference, edit.record, edit.end, low + bases + last)
        windows.append(np.concatenate([left, ids_of(allele), right]))
        starts.append(len(left))
        if alignment is not None:
            here = alignment.columns(edit.record, edit.start - len(left), edit.end + len(right))
            kept = min(size, len(allele))
            before, after = (0, size - kept) if reverse else (kept, size)
            new = np.zeros((len(allele) - kept, here.shape[1]), here.dtype)
            parts = here[: len(left) + before], new, here[len(left) + after :]
            columns.append(np.concatenate(parts))
    ref, alt = windows
    sizes = (size, len(edit.alt))
    shifts = (edit.shifts // 2, edit.shifts - edit.shifts // 2)
    of_both = (columns[0], columns[1]) if columns else None
    forward = Pair(ref, alt, (starts[0], starts[1]), sizes, ends_right, shifts, of_both)
    return forward.reverse_complement() if reverse else forward


def sides(
    pairs: Sequence[Pair],
) -> Iterator[tuple[list[Ids], Sequence[WindowColumns] | None]]:
    """The windows of all REF alleles with their columns, and those of all ALT alleles."""
    columns = [pair.columns for pair in pairs if pair.columns is not None]
    ref, alt = zip(*columns) if columns else (None, None)
    yield [pair.ref for pair in pairs], ref
    yield [pair.alt for pair in pairs], alt


@dataclass(eq=False)
class Saturation(VariantSource):
    """Every SNV of some regions, and every deletion of one base if requested; positions with N are
    left out.

    A deletion is written with the base before it, as in VCF, or at the first position with the base
    after it. Overlapping regions give their variants repeatedly.

    Args:
        stranded: a network reads the variants on the strand of their region.
    """

    name = "saturate"

    regions: Sequence[Region]
    reference: Reference
    deletions: bool = False
    stranded: bool = False

    def __iter__(self) -> Iterator[Row]:
        for chrom, start, end, _, strand, *_ in self.regions:
            for first in range(start, end, _PIECE):
                for row in self._rows(chrom, first, min(first + _PIECE, end)):
                    yield row._replace(reverse=self.stranded and strand == "-")

    def _rows(self, chrom: str, start: int, end: int) -> Iterator[Row]:
        length = self.reference.lengths[chrom]
        low = max(start - 1, 0)
        letters = TOKENIZER.decode(self.reference.window(chrom, low, min(end + 1, length)))
        for place in range(start, end):
            at = place - low
            where = f"saturate: {chrom}:{place + 1}"
            base = letters[at]
            if base not in _BASES:
                continue
            if self.deletions and length > 1:  # first: VCF must be sorted by position
                first = max(at - 1, 0)
                kept = letters[first] if place else letters[1]
                ref = letters[first : first + 2]
                yield Row(where, chrom, max(place, 1), ".", ref, (kept,))
            yield Row(where, chrom, place + 1, ".", base, tuple(b for b in _BASES if b != base))
