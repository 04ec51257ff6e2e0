"""Regions and variants of a genome: BED, GTF and GFF files and strings such as chr1:1,001-2,000;
VCF and BCF files, tables of variants, and rows in memory.

Regions are 0-based and half-open, whatever the convention of the file. `record_of` is the rule by
which names in files mean the records of a genome: `chr1` is `1`, and `chrM` is `MT`. Each source of
variants is read as a stream, as often as needed, and checks its rows by itself; they are not
compared with a genome. VCF files are read without another package; BCF needs pysam.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import closing, contextmanager
from itertools import chain, islice, takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.formats.table import check_delimiter, delimited
from dnadiff.progress import log
from dnadiff.store.address import refuse_controls, shortened
from dnadiff.store.files import bare_name, check_bgzip, is_file, open_binary, open_text, resolve
from dnadiff.store.objects import optional_package

_MITOCHONDRION = {"M": "MT", "MT": "M"}


def record_of(name: str, records: Container[str]) -> str | None:
    """The record that a name means: the one of this name, or else with or without `chr`, or else
    with M for MT or MT for M, always after the same label as in `human:chr1`; None if there is
    none, or two of them fit equally."""
    label, colon, last = name.rpartition(":")
    bare = last.removeprefix("chr")
    for each in (bare, _MITOCHONDRION.get(bare, bare)):
        both = (f"{label}{colon}{each}", f"{label}{colon}chr{each}")
        found = [record for record in both if record in records]
        if name in found:
            return name
        if len(found) == 1:
            return found[0]
    return None


def records_of(
    names: Iterable[str], known: Collection[str], where: str, skip_unknown: bool = False
) -> dict[str, str]:
    """The record that each name means (`record_of`).

    With `skip_unknown` some names may be unknown, which gives a warning, but not all of them.

    Raises:
        ValueError: if a name means none of the `known` records; the message begins with `where` and
            lists both.
    """
    among = known if isinstance(known, Mapping) else set(known)
    meant = {name: record_of(name, among) for name in names}
    found = {name: record for name, record in meant.items() if record is not None}
    if unknown := [name for name in meant if name not in found]:
        message = (
            f"{where}: no record is called {listing(unknown)}; the records are {listing(known)}"
        )
        if found:
            message += f"; found were {listing(found)}"
        if not (found and skip_unknown):
            raise ValueError(message)
        log.warning(f"{message}; rows of other records are left out")
    return found


def listing(names: Collection[str], maximum: int = 8) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(islice(names, maximum)) + (
        f" and {len(names) - maximum} more" if len(names) > maximum else ""
    )


_GENE_ID = re.compile(r'(?:^|;)\s*(?:gene_id "([^"]*)"|ID=([^;]*))')
_GENE_NAME = re.compile(r'(?:^|;)\s*(?:gene(?:_name)? "([^"]+)"|(?:Name|gene|gene_name)=([^;]+))')
_TRANSCRIPT = re.compile(r'(?:^|;)\s*(?:transcript_id "([^"]+)"|Parent=([^;]+))')
_CIRCULAR = re.compile(r"(?:^|;)\s*Is_circular=true\s*(?:;|$)")
_GFF = (".gtf", ".gff", ".gff3")
_UNKNOWN_STRAND = "?"  # of GFF3: the feature has a strand, which is not known
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_PLACE = re.compile(r"(.+):(\d[\d,]*)-(\d[\d,]*)(?::([+-])|\(([+-])\))?")


class Region(NamedTuple):
    """An interval of one record, by name, or a spliced transcript: blocks of it, without what is
    between them."""

    chrom: str  # name of the record
    start: int  # first base, counting from 0
    end: int  # one past the last base
    name: str = ""  # fourth column of a BED file, gene_id or ID of a GTF or GFF file
    strand: str = "."  # "+", "-" or "." (not given)
    blocks: tuple[tuple[int, int], ...] = ()  # of a spliced transcript, ascending; else none

    @property
    def size(self) -> int:
        """Its number of bases, without introns."""
        return sum(end - start for start, end in self.pieces())

    def pieces(self, start: int = 0, end: float = math.inf) -> list[tuple[int, int]]:
        """The intervals of the record that its bases `start` to `end` are in, in their order;
        counted from 0 on its strand, without introns."""
        reverse = self.strand == "-"
        found = []
        for low, high in sorted(self.blocks or [(self.start, self.end)], reverse=reverse):
            first, last = max(start, 0), int(min(end, high - low))
            if first < last:
                found.append((high - last, high - first) if reverse else (low + first, low + last))
            start, end = start - (high - low), end - (high - low)
        return found

    def part(self, start: int, end: int) -> Region:
        """Its bases `start` to `end`, as `pieces`."""
        found = tuple(sorted(self.pieces(start, end)))
        blocks = found if self.blocks else ()
        return self._replace(start=found[0][0], end=found[-1][1], blocks=blocks)

    def joined(self, cut: Callable[[str, int, int, str], NDArray[Any]]) -> NDArray[Any]:
        """What `cut(chrom, start, end, strand)` returns for its pieces, one after the other."""
        found = [cut(self.chrom, *piece, self.strand) for piece in self.pieces()]
        return found[0] if len(found) == 1 else np.concatenate(found)


def read_bed(
    path: str | Path,
    lengths: Mapping[str, int] | None = None,
    skip_unknown: bool = False,
    spliced: bool = False,
) -> list[Region]:
    """Read a BED file with three or more columns, plain or gzip, in the order of the file.

    Args:
        lengths: record name to length; if given, regions must be inside these records, and have
            their names (`record_of`).
        skip_unknown: skip rows of other records with a warning that names them. It is still an
            error if all rows are of other records.
        spliced: read the blocks of BED12, columns 10 to 12.

    Raises:
        ValueError: naming file and line, if a row has fewer than three columns or fewer than the
            first row, positions that are not integers, an end that is not after the start, a strand
            other than "+", "-" and ".", or is not inside a record of `lengths`; or blocks that do
            not cover both ends of the row.
    """

    def region(columns: list[str]) -> Region:
        if len(columns) < 3:
            raise ValueError(
                f"has {len(columns)} columns; BED needs chrom, start and end, separated by tabs"
            )
        name = columns[3] if len(columns) > 3 else ""
        strand = columns[5] if len(columns) > 5 else "."
        start, end = integers(columns[1:3])
        blocks = blocks_of(columns, start, end) if spliced else ()
        return Region(columns[0], start, end, name, strand, blocks)

    return _read(path, region, lengths, skip_unknown)


def blocks_of(columns: list[str], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The blocks of a row of BED12."""
    if len(columns) < 12:
        raise ValueError(
            f"has {len(columns)} columns, and spliced=true reads the blocks of BED12, columns 10 "
            "to 12; leave spliced out"
        )
    (count,) = integers(columns[9:10])
    sizes, starts = (integers(cell.strip().rstrip(",").split(",")) for cell in columns[10:12])
    found = tuple((start + first, start + first + size) for first, size in zip(starts, sizes))
    edges = list(chain(*found))
    counts = {count, len(sizes), len(starts)}
    if len(counts) > 1 or edges != sorted(edges) or (edges[0], edges[-1]) != (start, end):
        raise ValueError(
            f"has the blocks {' '.join(columns[9:12])!r}, which are not {count} ascending blocks "
            "from the start of the row to its end"
        )
    return found


def read_gtf(
    path: str | Path,
    feature: str | None = None,
    lengths: Mapping[str, int] | None = None,
    spliced: bool = False,
    types: bool = False,
    symbols: bool = False,
) -> list[Region]:
    """Read a GTF or GFF3 file (1-based, inclusive) as 0-based half-open regions: 5..8 becomes [4,
    8). The strand "?" becomes ".".

    Records are read as linear. Features that cross the end of a record that a row before them
    declares circular (`Is_circular=true`) are skipped with a warning.

    Args:
        feature: keep only rows with this third column ("CDS", "exon", ...); None keeps all.
        lengths: as in `read_bed`.
        spliced: join the rows of each transcript_id or Parent to one region with this name, at the
            place of the first of them; without a `feature` the exons.
        types: name regions by the third column, and skip those of other records with a warning.
        symbols: name genes by gene_name, gene or Name, if they have one: thrA, not an identifier.

    Raises:
        ValueError: as `read_bed`; or for a transcript on both strands.
    """
    known = lengths or {}
    feature = feature or ("exon" if spliced else None)
    circular = set[str]()
    skipped = list[Region]()
    others = dict[str, None]()

    def region(columns: list[str]) -> Region | None:
        if len(columns) < 8:
            raise ValueError(f"has {len(columns)} tab-separated columns; GTF and GFF have nine")
        attributes = (*columns, "")[8]
        if _CIRCULAR.search(attributes):
            circular.add(columns[0])
        if feature is not None and columns[2] != feature:
            others[columns[2]] = None
            return None
        first, last = integers(columns[3:5])
        match = (symbols and _GENE_NAME.search(attributes)) or _GENE_ID.search(attributes)
        name = columns[2] if types else (match[1] or match[2] or "") if match else ""
        if spliced:
            match = _TRANSCRIPT.search(attributes)
            if match is None:
                raise ValueError(
                    f"has no transcript_id or Parent, by which spliced=true joins {feature} rows"
                )
            name = match[1] or match[2]
        strand = "." if columns[6] == _UNKNOWN_STRAND else columns[6]
        found = Region(columns[0], first - 1, last, name, strand)
        length = known.get(found.chrom, found.end)
        if found.chrom in circular and 0 <= found.start < length < found.end:
            skipped.append(found)
            return None
        return found

    def why_none() -> str:
        if not others or skipped:
            return ""
        return (
            f"{path} has no row with the feature {feature!r} in its third column; it has "
            f"{listing(others)}"
        )

    regions = _read(path, region, lengths, types, first=1, why_none=why_none)
    if skipped:
        chrom, start, end, *_ = skipped[0]
        log.warning(
            f"{path}: {len(skipped):,} features cross the end of a circular record and are left "
            f"out, the first at {chrom}:{start + 1}-{end} "
            f"({known[chrom]} bases); records are read as linear"
        )
    return _transcripts(path, regions, skipped) if spliced else regions


def _transcripts(
    path: str | Path, exons: Iterable[Region], skipped: Iterable[Region]
) -> list[Region]:
    """The transcripts of exons with their names; without those of `skipped` exons. In GFF an exon
    may have several, separated by commas."""
    members: dict[tuple[str, str], list[Region]] = {}
    for exon in exons:
        for name in exon.name.split(","):
            members.setdefault((exon.chrom, name), []).append(exon)
    for exon in skipped:
        for name in exon.name.split(","):
            members.pop((exon.chrom, name), None)
    found = []
    for (chrom, name), parts in members.items():
        blocks = tuple(sorted({(part.start, part.end) for part in parts}))
        strand, *others = {part.strand for part in parts}
        if others:
            raise ValueError(
                f"{path}: the transcript {name} has exons on several strands; correct or remove it"
            )
        end = max(part.end for part in parts)
        found.append(Region(chrom, blocks[0][0], end, name, strand, blocks))
    return found


def read_regions(
    what: str | Path | Sequence[str],
    lengths: Mapping[str, int],
    feature: str | None = None,
    spliced: bool = False,
) -> list[Region]:
    """Regions from a BED, GTF or GFF file, a string such as `chr1:1001-2000`, the name of a record,
    or a list of these.

    Strings are 1-based and inclusive, as in genome browsers and samtools; `chr1:1001-2000:-` is the
    reverse strand.

    Args:
        lengths: record name to length; regions must be inside these records.
        feature: keep only rows of a GTF or GFF file with this third column; None: all. Other
            members of a list are kept.
        spliced: read transcripts without their introns, from the rows of GTF and GFF files
            (`read_gtf`) and the blocks of BED12.

    Raises:
        FileNotFoundError, ValueError: naming the file and line, or the string; or if there is a
            `feature`, and no GTF or GFF file.
    """
    members = list(_members(what))
    regions = list[Region]()
    if feature is not None and members and not any(map(is_gff, members)):
        kind = "BED" if _is_bed(members[0]) else "not a file"
        raise ValueError(
            f"feature {feature!r} chooses rows of a GTF or GFF file, and {members[0]} is {kind}; "
            "leave feature out"
        )
    if spliced and not any(is_gff(text) or _is_bed(text) for text in members):
        raise ValueError(
            f"spliced=true joins exons of GTF, GFF and BED12 files, not of {members[0]}; leave "
            "spliced out"
        )
    for text in members:
        if is_gff(text):
            regions += read_gtf(text, feature, lengths, spliced)
        elif _is_bed(text):
            regions += read_bed(text, lengths, spliced=spliced)
        else:
            regions.append(region_of(text, lengths))
    return regions


def _members(what: str | Path | Sequence[str]) -> Iterator[str]:
    """The files and strings in a list of these, or the only one; ValueError for anything else."""
    if isinstance(what, int) and not isinstance(what, bool):
        what = str(what)  # YAML reads 20 as a number, and Ensembl's chromosomes have such names
    if isinstance(what, list | tuple):
        for one in what:
            yield from _members(one)
    elif isinstance(what, str | Path):
        yield str(what)
    else:
        raise ValueError(
            f"{what!r} is no region; give a file, chrom:first-last or a record's name, or a list "
            "of these"
        )


def is_gff(text: str) -> bool:
    """Whether a file or an address has the name of a GTF or GFF file."""
    return bare_name(text).endswith(_GFF)


def _is_bed(text: str) -> bool:
    return bare_name(text).endswith(".bed") or is_file(text)


def region_of(text: str, lengths: Mapping[str, int]) -> Region:
    """The region of a string: `chrom:first-last`, 1-based and inclusive, with `:-` for the reverse
    strand, or `chrom` alone.

    Raises:
        ValueError: if it cannot be parsed, or is not inside a record.
    """
    if (record := record_of(text, lengths)) is not None:
        return Region(record, 0, lengths[record])
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a file, a region chrom:first-last or the name of a record; write "
            "chr1:1001-2000"
        )
    chrom, *numbers, strand, bracketed = match.groups()
    record = records_of([chrom], lengths, repr(text))[chrom]
    try:
        first, last = integers([number.replace(",", "") for number in numbers])
        region = Region(record, first - 1, last, strand=strand or bracketed or ".")
        check_region(region, lengths, first=1)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}; write chrom:first-last") from None
    return region


def names_of(regions: Iterable[Region]) -> list[str]:
    """A different name for each region: `chrom:first-last(strand)`, 1-based, with `_2` for the
    second of the same region."""
    seen: Counter[str] = Counter()
    names = []
    for chrom, start, end, _, strand, *_ in regions:
        name = f"{chrom}:{start + 1}-{end}" + (f"({strand})" if strand != "." else "")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def integers(columns: list[str]) -> list[int]:
    """The positions in some cells; ValueError if one is no plain integer."""
    # int() also reads +1, 1_000 and digits of other scripts
    if not all(_INTEGER.fullmatch(c.strip()) for c in columns):
        raise ValueError(f"has the positions {' '.join(columns)!r}, which are not integers")
    return [int(c) for c in columns]


def filled_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, without their ends, with their numbers."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.rstrip("\r\n")


def _read(
    path: str | Path,
    parse: Callable[[list[str]], Region | None],
    lengths: Mapping[str, int] | None,
    skip_unknown: bool = False,
    first: int = 0,
    why_none: Callable[[], str] = str,
) -> list[Region]:
    """The regions that `parse` makes of the rows of a file; `first` is the number of a record's
    first base in it: 0 in BED, 1 in GTF and GFF."""
    regions: list[Region] = []
    line_of_chrom: dict[str, int] = {}
    num_columns = 0
    with open_text(path) as handle:
        # GFF3 may contain the sequences at the end, after ##FASTA or, from some programs, without
        # it.
        ends = ("##FASTA", ">") if first else ()
        lines = takewhile(lambda line: not line.startswith(ends), handle)
        for number, line in filled_lines(lines):
            columns = line.split("\t") if "\t" in line else line.split()
            # of BED for genome browsers, unless a contig has this name
            is_header = not first and columns[0].split()[:1] in (["track"], ["browser"])
            if is_header and len(columns) > 2:
                is_header = not all(_INTEGER.fullmatch(c.strip()) for c in columns[1:3])
            if is_header or line.startswith("#"):
                continue
            if lengths is not None:
                columns[0] = record_of(columns[0], lengths) or columns[0]
            try:
                region = parse(columns)
                num_columns = num_columns or len(columns)
                if len(columns) < num_columns:
                    raise ValueError(f"has {len(columns)} columns, the first row has {num_columns}")
                if region is None:
                    continue
                check_region(region, lengths, first)
            except ValueError as error:
                raise ValueError(
                    f"{path}: line {number} {error}; correct the line or remove it"
                ) from None
            refuse_controls(f"{path}: line {number}", region.chrom, region.name)
            line_of_chrom.setdefault(region.chrom, number)
            regions.append(region)
    if not regions:
        raise ValueError(
            why_none() or f"{path} contains no region; give a file with at least one row"
        )
    if lengths is not None:
        if unknown := [line for chrom, line in line_of_chrom.items() if chrom not in lengths]:
            records_of(line_of_chrom, lengths, f"{path}: line {unknown[0]}", skip_unknown)
        return [region for region in regions if region.chrom in lengths]
    return regions


def check_region(region: Region, lengths: Mapping[str, int] | None, first: int = 0) -> None:
    """Refuse a region that is not inside a record; `first` is the number of a record's first base
    in messages."""
    place = f"{region.chrom}:{region.start + first}-{region.end}"
    if region.start < 0:
        raise ValueError(f"has the region {place}, which starts before the record")
    if region.end <= region.start:
        raise ValueError(f"has the region {place}, whose end is not after its start")
    if region.strand not in ("+", "-", "."):
        raise ValueError(f"has the strand {region.strand!r}; '+', '-' and '.' are allowed")
    if region.end > (length := (lengths or {}).get(region.chrom, region.end)):
        raise ValueError(
            f"has the region {place}, which ends beyond {region.chrom} ({length} bases); records "
            "are read as linear"
        )


_FIELD = re.compile(r'[<,]([^=,<>"]+)=\s*("(?:[^"\\]|\\.)*"|[^,>]*)')
_POSITION = re.compile(r"[0-9]{1,10}")
_FIXED = ("#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO")
_COLUMNS = ("chrom", "pos", "ref", "alt")


class Row(NamedTuple):
    """One row of variants.

    Attributes:
        where: file and line, for messages.
        pos: position of the first base of REF, counted from 1.
        text: the line of a VCF file; empty for other sources.
        reverse: the variant is read on strand -; its alleles are always those of strand +.
    """

    where: str
    chrom: str
    pos: int
    id: str
    ref: str
    alts: tuple[str, ...]
    text: str = ""
    reverse: bool = False

    @property
    def info(self) -> dict[str, list[str]]:
        """The values of each key of INFO in a line of a VCF file."""
        cells = (cell.partition("=") for cell in self.text.split("\t")[7].split(";"))
        return {key: values.split(",") for key, _, values in cells}


def row_of(where: str, chrom: str, pos: str, name: str, ref: str, alt: str, text: str = "") -> Row:
    """A row from its cells; ValueError naming the line unless the position is one counted from 1,
    or 0, which VCF allows at a telomere."""
    if not _POSITION.fullmatch(pos):
        raise ValueError(
            f"{where}: the position {pos!r} is not an integer of at least 1; correct the line or "
            "remove it"
        )
    refuse_controls(where, chrom, name)
    return Row(where, chrom, int(pos), name, ref, tuple(alt.split(",")), text)


class VariantSource(ABC):
    """Variants that can be read repeatedly.

    Attributes:
        name: for messages.
        header: the lines of a VCF header without that of the columns, and that line; empty for
            other sources.
        contigs: the lengths that the header declares; 0 where it does not say.
    """

    name: str
    header: Sequence[str] = ()
    contigs: Mapping[str, int] = {}

    @abstractmethod
    def __iter__(self) -> Iterator[Row]:
        """The rows in their order; ValueError naming file and line."""

    def between(self, first: int, last: int | None = None) -> Iterator[Row]:
        """The rows from number `first` on, up to `last`, which is left out; None is all."""
        return islice(iter(self), first, last)


@contextmanager
def pysam_for(path: str, kind: str, other: str) -> Iterator[ModuleType]:
    """The package pysam, which prints nothing in this context, to read a file of this kind.

    Raises:
        ValueError: naming the file, and the `other` kind if the package is not installed; in place
            of the errors of pysam, whose texts name files that exist as missing.
    """
    pysam = optional_package("pysam", f"{path} is {kind}, which", "vcf", f", or convert to {other}")
    before = pysam.set_verbosity(0)
    try:
        yield pysam
    except (OSError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"{path} is damaged or cut short: pysam cannot read it; fetch or write it again"
        ) from error
    finally:
        pysam.set_verbosity(before)


def header_fields(line: str, kind: str) -> dict[str, str]:
    """The fields of a structured line of a VCF header, in any order, without quotes; none of a line
    of another kind."""
    found = _FIELD.findall(line) if line.startswith(f"##{kind}=<") else ()
    return {key.strip(): value.strip().strip('"') for key, value in found}


class VcfSource(VariantSource):
    """The lines of a VCF file: plain, gzip or bgzip.

    Raises:
        FileNotFoundError, ValueError: if it is not a complete VCF file.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        with closing(self._lines()) as lines:
            header = [next(lines, "").rstrip("\n")]
            if not header[0].startswith("##fileformat=VCF"):
                raise ValueError(
                    f"{path} does not begin with ##fileformat=VCF; give a VCF file with its header"
                )
            while header[-1].startswith("##"):
                header.append(next(lines, "").rstrip("\n"))
        if tuple(header[-1].split("\t")[:8]) != _FIXED:
            raise ValueError(
                f"{path}: the header ends without the line {' '.join(_FIXED)}, separated by tabs; "
                "complete the file"
            )
        self.header = header
        self.contigs = {}
        for line in header:
            found = header_fields(line, "contig")
            if "ID" in found:
                length = found.get("length", "")
                self.contigs[found["ID"]] = int(length) if _INTEGER.fullmatch(length) else 0

    def _lines(self) -> Generator[str]:
        with open_text(self.name) as file:
            yield from file

    def __iter__(self) -> Iterator[Row]:
        return self.between(0)

    def between(self, first: int, last: int | None = None) -> Iterator[Row]:
        columns = self.header[-1].count("\t") + 1
        lines = filled_lines(self._lines())
        rows = ((number, line) for number, line in lines if not line.startswith("#"))
        for number, line in islice(rows, first, last):  # rows before are not taken apart
            where = f"{self.name}: line {number}"
            cells = line.split("\t")
            if len(cells) != columns:
                raise ValueError(
                    f"{where} has {len(cells)} columns, the header has {columns}; correct the line "
                    "or remove it"
                )
            chrom, pos, name, ref, alt = cells[:5]
            yield row_of(where, chrom, pos, name, ref, alt, line)


class BcfSource(VcfSource):
    """A BCF file, read by pysam; ValueError if pysam is not installed."""

    def _lines(self) -> Generator[str]:
        path = resolve(self.name)
        with path.open("rb") as raw:
            check_bgzip(self.name, raw)
        with (
            pysam_for(self.name, "BCF", "VCF") as pysam,
            pysam.VariantFile(str(path)) as file,
        ):
            yield from str(file.header).splitlines(keepends=True)
            yield from map(str, file)


class TableSource(VariantSource):
    """A table with tabs whose header has chrom, pos, ref and alt (in either case), and possibly id;
    alt may list several alleles with commas."""

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        _, names = next(delimited(path, "\t"), (0, []))
        self.names = [name.strip().lstrip("#").lower() for name in names]
        if missing := [name for name in _COLUMNS if name not in self.names]:
            check_delimiter(path, self.names, "\t", missing[0])
            raise ValueError(
                f"{path} has no column {', '.join(missing)}; give a VCF or BCF file, or a table "
                f"with tabs and the columns {', '.join(_COLUMNS)}"
            )

    def __iter__(self) -> Iterator[Row]:
        for number, cells in islice(delimited(self.name, "\t"), 1, None):
            # the first column of a name counts
            found = dict(zip(reversed(self.names), map(str.strip, reversed(cells))))
            chrom, pos, ref, alt = (found[name] for name in _COLUMNS)
            where = f"{self.name}: line {number}"
            yield row_of(where, chrom, pos, found.get("id") or ".", ref, alt)


class Rows(VariantSource):
    """Variants in memory: (chrom, pos, ref, alt), or mappings with these keys and possibly id, with
    pos counted from 1. `alt` lists several alleles with commas, or is a list, tuple or array of
    them; there is none if it is empty or missing."""

    name = "variants"

    def __init__(self, variants: Iterable[Sequence[object] | Mapping[str, object]]) -> None:
        self.rows = [
            self._row(f"variant {number}", variant) for number, variant in enumerate(variants)
        ]

    def _row(self, where: str, variant: Sequence[object] | Mapping[str, object]) -> Row:
        import pandas

        def text(value: object) -> str:  # str() would make an allele of nucleotides of NaN
            if isinstance(value, bytes):
                return value.decode("utf-8", "surrogateescape")
            return "" if pandas.isna(value) is True else str(value)

        given: dict[str, Any] = {}
        if isinstance(variant, Mapping):  # keys as in the header of a file
            given = {str(key).lower().lstrip("#"): value for key, value in variant.items()}
        elif isinstance(variant, Sized) and not isinstance(variant, (str, bytes)):  # numpy.record
            given = dict(zip(_COLUMNS, variant)) if len(variant) == len(_COLUMNS) else {}
        chrom, pos, ref, name = (text(given.get(key)) for key in ("chrom", "pos", "ref", "id"))
        if absent := [k for k in _COLUMNS if not (text(given.get(k)) or k == "alt" in given)]:
            lacks = f" without {', '.join(absent)}" if given else ""
            raise ValueError(
                f"{where} is {variant!r}{lacks}; expected (chrom, pos, ref, alt), of which only "
                "alt may be empty"
            )
        alt = given["alt"]
        several = alt if pandas.api.types.is_list_like(alt) else [alt]
        alts = ",".join(text(each) or "." for each in several) or "."
        return row_of(where, chrom, pos, name or ".", ref, alts)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def open_source(path: str | Path) -> VariantSource:
    """The variants of a file, whose format is detected from its content.

    Raises:
        FileNotFoundError, ValueError: if there is no such file, or it is neither VCF, BCF nor a
            table.
    """
    path = shortened(str(path))
    with closing(_first_bytes(path)) as pieces:
        first = next(pieces).lstrip(b"\xef\xbb\xbf")
    if first.startswith(b"BCF"):
        return BcfSource(path)
    return (VcfSource if first.startswith((b"##", b"#CHROM\tPOS\tID")) else TableSource)(path)


# A generator, so that whoever stops early closes the file without reading the rest of it.
def _first_bytes(path: str | Path) -> Generator[bytes]:
    with open_binary(path) as content:
        yield content.read(16)
