"""Where variants come from: VCF and BCF files, tables, rows in memory; `saturation` has all
variants of regions.

Each source is read as a stream, as often as needed, and checks its rows by itself; `variant`
compares them with a genome. VCF files are read without another package; BCF needs pysam.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice, repeat
from pathlib import Path

from typing_extensions import override

from dnadiff.formats.regions import Region
from dnadiff.genomics.variants.variant import TOKENIZER, Reference, Row, record_of
from dnadiff.store.files import check_bgzip, open_binary, open_text, resolve

_CONTIG = re.compile(r"##contig=<(?:.*,)?ID=([^,>]+)(?:.*?,length=(\d+))?")
_POSITION = re.compile(r"[0-9]{1,10}")
_FIXED = ("#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO")
_COLUMNS = ("chrom", "pos", "ref", "alt")
_MAX_BLANK = 1_000_000


class VariantSource(ABC):
    """Variants that can be read repeatedly.

    Attributes:
        name: for messages.
        header: the lines of a VCF header without that of the columns, and that line; empty for
            other sources.
    """

    name: str
    header: tuple[str, ...] = ()

    @abstractmethod
    def __iter__(self) -> Iterator[Row]:
        """The rows in their order; ValueError naming file and line."""

    def other_lengths(self, lengths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """The contigs whose length in the source differs from that in the genome: both lengths.

        Args:
            lengths: of the genome, record name to length.
        """
        return {}

    def between(self, first: int, last: int | None = None) -> Iterator[Row]:
        """The rows from number `first` on, up to `last`, which is left out; None is all."""
        return islice(iter(self), first, last)

    def num_alleles(self) -> Iterator[tuple[int, int]]:
        """For each row, in order, its alternative alleles and the characters of its text."""
        return ((len(row.alts), len(row.text)) for row in self)


class VcfSource(VariantSource):
    """The lines of a VCF file: plain, gzip or bgzip.

    Raises:
        FileNotFoundError, ValueError: if it is not a complete VCF file with a line for each contig.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        with closing(self._lines()) as lines:
            header = list(self._header(lines))
        self.header = tuple(header)
        self.contigs = {
            found[1]: int(found[2] or 0) for line in header if (found := _CONTIG.match(line))
        }
        if not self.contigs:
            raise ValueError(
                f"{path} has no ##contig lines, so its assembly cannot be checked; add them with "
                "bcftools reheader --fai genome.fa.fai"
            )

    def _lines(self) -> Generator[str]:
        yield from _text_lines(self.name)

    def _header(self, lines: Iterator[str]) -> Iterator[str]:
        first = next(lines, "").rstrip("\n")
        if not first.startswith("##fileformat=VCF"):
            raise ValueError(
                f"{self.name} does not begin with ##fileformat=VCF; give a VCF file with its header"
            )
        yield first
        for line in lines:
            line = line.rstrip("\n")
            if not line.startswith("##"):
                if tuple(line.split("\t")[:8]) != _FIXED:
                    raise ValueError(
                        f"{self.name}: the header ends without the line {' '.join(_FIXED)}, "
                        "separated by tabs; complete the file"
                    )
                yield line
                return
            yield line
        raise ValueError(
            f"{self.name}: the header ends without the line {' '.join(_FIXED)}; complete the file"
        )

    @override
    def other_lengths(self, lengths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        known = (
            (contig, length, record_of(contig, lengths))
            for contig, length in self.contigs.items()
            if length
        )
        return {
            contig: (length, lengths[here])
            for contig, length, here in known
            if here is not None and lengths[here] != length
        }

    @override
    def __iter__(self) -> Iterator[Row]:
        return self.between(0)

    @override
    def between(self, first: int, last: int | None = None) -> Iterator[Row]:
        columns = self.header[-1].count("\t") + 1
        for number, line in islice(self._numbered(), first, last):
            yield self._row(line.rstrip("\n"), f"{self.name}: line {number}", columns)

    def _numbered(self) -> Iterator[tuple[int, str]]:
        return (
            (number, line)
            for number, line in _filled(self.name, self._lines())
            if not line.startswith("#")
        )

    @override
    def num_alleles(self) -> Iterator[tuple[int, int]]:
        for _, line in self._numbered():  # lines are not checked here
            cells, text = line.split("\t", 5), line.rstrip("\n")
            yield cells[4].count(",") + 1 if len(cells) > 4 else 1, len(text)

    def _row(self, line: str, where: str, columns: int) -> Row:
        cells = line.split("\t")
        if len(cells) != columns:
            raise ValueError(
                f"{where} has {len(cells)} columns, the header has {columns}; correct the line or "
                "remove it"
            )
        chrom, pos, name, ref, alt = cells[:5]
        if chrom not in self.contigs:
            raise ValueError(
                f"{where}: the header has no ##contig line of {chrom}; add it, as with bcftools "
                "reheader --fai genome.fa.fai"
            )
        return Row(where, chrom, position_of(pos, where), name, ref, tuple(alt.split(",")), line)


class BcfSource(VcfSource):
    """A BCF file, read by pysam; ValueError if pysam is not installed."""

    @override
    def _lines(self) -> Generator[str]:
        try:
            import pysam
        except ImportError:
            raise ValueError(
                f"{self.name} is BCF, which is read by pysam; install it: pip install -e '.[vcf]' "
                "in the checkout, or convert to VCF"
            ) from None
        path = resolve(self.name)
        with path.open("rb") as raw:
            check_bgzip(self.name, raw)
        before = pysam.set_verbosity(0)
        try:
            with pysam.VariantFile(str(path)) as file:
                yield from str(file.header).splitlines(keepends=True)
                yield from map(str, file)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.name} is damaged or cut short ({error}); fetch or compress it again"
            ) from error
        finally:
            pysam.set_verbosity(before)


class TableSource(VariantSource):
    """A table with tabs whose header has chrom, pos, ref and alt (in either case), and possibly id;
    alt may list several alleles with commas."""

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        with closing(_text_lines(path)) as lines:
            names = [
                name.strip().lstrip("#").lower()
                for name in next(lines, "").rstrip("\n").split("\t")
            ]
        if missing := [name for name in _COLUMNS if name not in names]:
            raise ValueError(
                f"{path} has no column {', '.join(missing)}; give a VCF or BCF file, or a table "
                f"with tabs and the columns {', '.join(_COLUMNS)}"
            )
        self.width, self.place = (
            len(names),
            {name: names.index(name) for name in (*_COLUMNS, "id") if name in names},
        )

    @override
    def __iter__(self) -> Iterator[Row]:
        for number, line in _filled(self.name, _text_lines(self.name)):
            if number > 1:
                cells, where = (
                    [cell.strip() for cell in line.rstrip("\n").split("\t")],
                    f"{self.name}: line {number}",
                )
                if len(cells) != self.width:
                    raise ValueError(
                        f"{where} has {len(cells)} columns, the header has {self.width}; correct "
                        "the line or remove it"
                    )
                values = {name: cells[place] for name, place in self.place.items()}
                alts = tuple(values["alt"].split(","))
                yield Row(
                    where,
                    values["chrom"],
                    position_of(values["pos"], where),
                    values.get("id") or ".",
                    values["ref"],
                    alts,
                )


class SomeRows(VariantSource):
    """The rows `first` to `last` (left out) of another source."""

    def __init__(self, source: VariantSource, first: int, last: int) -> None:
        self.name, self.header, self.source, self.place = (
            source.name,
            source.header,
            source,
            (first, last),
        )

    @override
    def __iter__(self) -> Iterator[Row]:
        return self.source.between(*self.place)

    @override
    def other_lengths(self, lengths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return self.source.other_lengths(lengths)


class Rows(VariantSource):
    """Variants in memory: (chrom, pos, ref, alt), or mappings with these keys and possibly id, with
    pos counted from 1."""

    def __init__(self, variants: Iterable[Sequence[object] | Mapping[str, object]]) -> None:
        self.name = "variants"
        self.rows = [self._row(number, variant) for number, variant in enumerate(variants)]

    def _row(self, number: int, variant: Sequence[object] | Mapping[str, object]) -> Row:
        where = f"variant {number}"
        if isinstance(variant, Mapping):
            variant = {
                str(name).lower().lstrip("#"): value for name, value in variant.items()
            }  # as in the header of a file
        rest = (
            list(variant) if isinstance(variant, Iterable) and not isinstance(variant, str) else []
        )
        values = [variant.get(name) for name in _COLUMNS] if isinstance(variant, Mapping) else rest
        if len(values) != len(_COLUMNS) or any(map(_is_missing, values)):
            raise ValueError(f"{where} is {variant!r}; expected (chrom, pos, ref, alt)")
        chrom, pos, ref, alt = values
        name = variant.get("id") if isinstance(variant, Mapping) else None
        name = name if isinstance(name, str) and name else "."
        return Row(
            where,
            str(chrom),
            position_of(str(pos), where),
            name,
            str(ref),
            tuple(str(alt).split(",")),
        )

    @override
    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def _is_missing(value: object) -> bool:
    """Whether it is None, NaN or pandas.NA; str() would make an allele of nucleotides of NaN."""
    import pandas

    return pandas.api.types.is_scalar(value) and bool(pandas.isna(value))


def open_source(path: str | Path) -> VariantSource:
    """The variants of a file, whose format is detected from its content.

    Raises:
        FileNotFoundError, ValueError: if there is no such file, or it is neither VCF, BCF nor a
            table.
    """
    with closing(_first_bytes(path)) as pieces:
        first = next(pieces)
    if first.startswith(b"BCF"):
        return BcfSource(path)
    return (
        VcfSource(path)
        if first.lstrip(b"\xef\xbb\xbf").startswith((b"##", b"#CHROM\tPOS\tID"))
        else TableSource(path)
    )


# Generators, so that whoever stops early closes the file without reading the rest of it.
def _text_lines(path: str | Path) -> Generator[str]:
    with open_text(path) as file:
        yield from file


def _first_bytes(path: str | Path) -> Generator[bytes]:
    with open_binary(path) as content:
        yield content.read(16)


def _filled(name: str, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    num_blank = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line
            continue
        num_blank += 1
        if num_blank > _MAX_BLANK:  # gzip makes a gigabyte of line ends from a megabyte
            raise ValueError(
                f"{name} has more than {_MAX_BLANK:,} blank lines up to line {number:,}; remove "
                "them"
            )


def position_of(text: str, where: str) -> int:
    """A position counted from 1, or 0, which `Alleles.edits` refuses where VCF does; ValueError
    naming the line for anything else."""
    if not _POSITION.fullmatch(text):
        raise ValueError(
            f"{where}: the position {text!r} is not an integer of at least 1; correct the line or "
            "remove it"
        )
    return int(text)


_BASES = "ACGT"
_PIECE = 1 << 16  # bases that are read together


class Saturation(VariantSource):
    """Every SNV of some regions, and every deletion of one base if requested; positions with N are
    left out.

    A deletion is written with the base before it, as in VCF, or at the first position with the base
    after it. Overlapping regions give their variants repeatedly.
    """

    def __init__(
        self, regions: Sequence[Region], reference: Reference, deletions: bool = False
    ) -> None:
        self.name, self.regions, self.reference, self.deletions = (
            "saturate",
            list(regions),
            reference,
            deletions,
        )

    @override
    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(map(self._rows, self._pieces()))

    @override
    def between(self, first: int, last: int | None = None) -> Iterator[Row]:
        pieces, skip = self._pieces(), first
        for piece in pieces:
            if (number := self._num_bases(piece) * len(self._alleles(piece))) > skip:
                rest = chain(self._rows(piece), chain.from_iterable(map(self._rows, pieces)))
                return islice(rest, skip, None if last is None else last - first + skip)
            skip -= number
        return iter(())

    @override
    def num_alleles(self) -> Iterator[tuple[int, int]]:
        for piece in self._pieces():
            yield from chain.from_iterable(
                repeat([(number, 0) for number in self._alleles(piece)], self._num_bases(piece))
            )

    def _pieces(self) -> Iterator[Region]:
        """The regions, in pieces that fit into memory."""
        for region in self.regions:
            for first in range(region.start, region.end, _PIECE):
                yield region._replace(start=first, end=min(first + _PIECE, region.end))

    def _num_bases(self, piece: Region) -> int:
        letters = TOKENIZER.decode(self.reference.window(piece.chrom, piece.start, piece.end))
        return sum(map(letters.count, _BASES))

    def _alleles(self, piece: Region) -> tuple[int, ...]:
        """The alternative alleles of each row of a base."""
        snv = len(_BASES) - 1
        return (1, snv) if self.deletions and self.reference.lengths[piece.chrom] > 1 else (snv,)

    def _rows(self, piece: Region) -> Iterator[Row]:
        chrom, length = piece.chrom, self.reference.lengths[piece.chrom]
        low = max(piece.start - 1, 0)
        letters = TOKENIZER.decode(self.reference.window(chrom, low, min(piece.end + 1, length)))
        for place in range(piece.start, piece.end):
            base = letters[place - low]
            if base not in _BASES:
                continue
            where = f"saturate: {chrom}:{place + 1}"
            if (
                self.deletions and length > 1
            ):  # first: its POS is that of the base before, and VCF must be sorted
                yield self._deletion(chrom, place, letters, low, where)
            yield Row(where, chrom, place + 1, ".", base, tuple(b for b in _BASES if b != base))

    def _deletion(self, chrom: str, place: int, letters: str, low: int, where: str) -> Row:
        at = place - low
        if place:
            return Row(where, chrom, place, ".", letters[at - 1 : at + 1], (letters[at - 1],))
        return Row(where, chrom, 1, ".", letters[:2], (letters[1],))
