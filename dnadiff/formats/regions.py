"""Regions of a genome from BED, GTF and GFF files, and from strings such as chr1:1,001-2,000.

Regions are 0-based and half-open, whatever the convention of the file. `check_names` compares names
of records in files with those of a genome.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dnadiff.store.files import bare_name, is_file, open_text

log = logging.getLogger("dnadiff")


def check_names(
    wanted: Iterable[str], known: Collection[str], where: str, skip_unknown: bool = False
) -> None:
    """Refuse names that no record has; the message lists both sets and points out `chr1` next to
    `1`.

    With `skip_unknown` some names may be unknown, which gives a warning. All of them may not, nor
    may `chr1` next to `1`.

    Raises:
        ValueError: if a name in `wanted` is not in `known`; the message begins with `where`.
    """
    wanted, among = list(dict.fromkeys(wanted)), known if isinstance(known, Mapping) else set(known)
    unknown = [name for name in wanted if name not in among]
    if not unknown:
        return
    shown = listing(list(known))
    message = f"{where}: no record is called {listing(unknown)}; the records are {shown}"
    bare = {name.removeprefix("chr") for name in known}
    if any(name.removeprefix("chr") in bare for name in unknown):
        message += " (one side writes 'chr1' where the other writes '1': rename one)"
    elif found := [name for name in wanted if name in among]:
        message += f"; found were {listing(found)}"
        if skip_unknown:
            log.warning(f"{message}; rows of other records are left out")
            return
    raise ValueError(message)


def listing(names: list[str], maximum: int = 8) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:maximum]) + (
        f" and {len(names) - maximum} more" if len(names) > maximum else ""
    )


_GENE_ID = re.compile(r'(?:^|;)\s*(?:gene_id "([^"]*)"|ID=([^;]*))')
_CIRCULAR = re.compile(r"(?:^|;)\s*Is_circular=true\s*(?:;|$)")
_GFF = (".gtf", ".gff", ".gff3")
_UNKNOWN_STRAND = "?"  # of GFF3: the feature has a strand, which is not known
_MAX_BLANK = 1_000_000
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_PLACE = re.compile(r"(.+):(\d[\d,]*)-(\d[\d,]*)(?::([+-])|\(([+-])\))?")


class Region(NamedTuple):
    """An interval of one record, by name."""

    chrom: str  # name of the record
    start: int  # first base, counting from 0
    end: int  # one past the last base
    name: str = ""  # fourth column of a BED file, gene_id or ID of a GTF or GFF file
    strand: str = "."  # "+", "-" or "." (not given)


def read_bed(
    path: str | Path, lengths: Mapping[str, int] | None = None, skip_unknown: bool = False
) -> list[Region]:
    """Read a BED file with three or more columns, plain or gzip, in the order of the file.

    Args:
        lengths: record name to length; if given, regions must be inside these records.
        skip_unknown: skip rows of other records with a warning that names them. It is still an
            error if all rows are of other records, or if one side writes `chr1` where the other
            writes `1`.

    Raises:
        ValueError: naming file and line, if a row has fewer than three columns or fewer than the
            first row, positions that are not integers, an end that is not after the start, a strand
            other than "+", "-" and ".", or is not inside a record of `lengths`.
    """

    def region(columns: list[str]) -> Region:
        if len(columns) < 3:
            raise ValueError(
                f"has {len(columns)} columns; BED needs chrom, start and end, separated by tabs"
            )
        name = columns[3] if len(columns) > 3 else ""
        strand = columns[5] if len(columns) > 5 else "."
        start, end = _integers(columns[1:3])
        return Region(columns[0], start, end, name, strand)

    return _read(path, region, lengths, skip_unknown)


def read_gtf(
    path: str | Path, feature: str | None = None, lengths: Mapping[str, int] | None = None
) -> list[Region]:
    """Read a GTF or GFF3 file (1-based, inclusive) as 0-based half-open regions: 5..8 becomes [4,
    8). The strand "?" becomes ".".

    Records are read as linear. Features that cross the end of a record that a row before them
    declares circular (`Is_circular=true`) are skipped with a warning.

    Args:
        feature: keep only rows with this third column ("CDS", "exon", ...); None keeps all.
        lengths: as in `read_bed`.

    Raises:
        ValueError: as `read_bed`.
    """
    known, circular, skipped, others = lengths or {}, set[str](), list[Region](), dict[str, None]()

    def region(columns: list[str]) -> Region | None:
        if len(columns) < 8:
            raise ValueError(f"has {len(columns)} tab-separated columns; GTF and GFF have nine")
        if len(columns) > 8 and _CIRCULAR.search(columns[8]):
            circular.add(columns[0])
        if feature is not None and columns[2] != feature:
            others[columns[2]] = None
            return None
        first, last = _integers(columns[3:5])
        match = _GENE_ID.search(columns[8]) if len(columns) > 8 else None
        name = (match[1] or match[2] or "") if match else ""
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
            f"{listing(list(others))}"
        )

    regions = _read(path, region, lengths, first=1, why_none=why_none)
    if skipped:
        chrom, start, end, *_ = skipped[0]
        log.warning(
            f"{path}: {len(skipped):,} features cross the end of a circular record and are left "
            f"out, the first at {chrom}:{start + 1}-{end} "
            f"({known[chrom]} bases); records are read as linear"
        )
    return regions


def read_regions(
    what: str | Path | Sequence[str], lengths: Mapping[str, int], feature: str | None = None
) -> list[Region]:
    """Regions from a BED, GTF or GFF file, a string such as `chr1:1001-2000`, the name of a record,
    or a list of these.

    Strings are 1-based and inclusive, as in genome browsers and samtools; `chr1:1001-2000:-` is the
    reverse strand.

    Args:
        lengths: record name to length; regions must be inside these records.
        feature: keep only rows of a GTF or GFF file with this third column; None: all. Other
            members of a list are kept.

    Raises:
        FileNotFoundError, ValueError: naming the file and line, or the string; or if there is a
            `feature`, and no GTF or GFF file.
    """
    members, regions = list(_members(what)), list[Region]()
    if feature is not None and members and not any(map(is_gff, members)):
        kind = "BED" if _is_bed(members[0]) else "not a file"
        raise ValueError(
            f"feature {feature!r} chooses rows of a GTF or GFF file, and {members[0]} is {kind}; "
            "leave feature out"
        )
    for text in members:
        if is_gff(text):
            regions += read_gtf(text, feature, lengths)
        else:
            regions += read_bed(text, lengths) if _is_bed(text) else [region_of(text, lengths)]
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
    if text in lengths:
        return Region(text, 0, lengths[text])
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a file, a region chrom:first-last or the name of a record; write "
            "chr1:1001-2000"
        )
    chrom, *numbers, strand, bracketed = match.groups()
    first, last = (int(number.replace(",", "")) for number in numbers)
    region = Region(chrom, first - 1, last, strand=strand or bracketed or ".")
    check_names([chrom], lengths, repr(text))
    try:
        _check(region, lengths, first=1)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}; write chrom:first-last") from None
    return region


def names_of(regions: Iterable[Region]) -> list[str]:
    """A different name for each region: `chrom:first-last(strand)`, 1-based, with `_2` for the
    second of the same region."""
    seen: Counter[str] = Counter()
    names = []
    for chrom, start, end, _, strand in regions:
        name = f"{chrom}:{start + 1}-{end}" + (f"({strand})" if strand != "." else "")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def _integers(columns: list[str]) -> list[int]:
    # int() also reads +1, 1_000 and digits of other scripts
    if not all(_INTEGER.fullmatch(c.strip()) for c in columns):
        raise ValueError(f"has the positions {' '.join(columns)!r}, which are not integers")
    return [int(c) for c in columns]


def filled_lines(path: str | Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, without their ends, with their numbers; ValueError if very many
    are blank: gzip makes a gigabyte of line ends from a megabyte."""
    num_blank = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.rstrip("\r\n")
            continue
        num_blank += 1
        if num_blank > _MAX_BLANK:
            raise ValueError(
                f"{path} has more than {_MAX_BLANK:,} blank lines up to line {number:,}; remove "
                "them"
            )


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
        for number, line in filled_lines(path, lines):
            columns = line.split("\t") if "\t" in line else line.split()
            # of BED for genome browsers, unless a contig has this name
            is_header = not first and columns[0].split()[:1] in (["track"], ["browser"])
            if is_header and len(columns) > 2:
                is_header = not all(_INTEGER.fullmatch(c.strip()) for c in columns[1:3])
            if is_header or line.startswith("#"):
                continue
            try:
                region = parse(columns)
                num_columns = num_columns or len(columns)
                if len(columns) < num_columns:
                    raise ValueError(f"has {len(columns)} columns, the first row has {num_columns}")
                if region is None:
                    continue
                _check(region, lengths, first)
            except ValueError as error:
                raise ValueError(
                    f"{path}: line {number} {error}; correct the line or remove it"
                ) from None
            line_of_chrom.setdefault(region.chrom, number)
            regions.append(region)
    if not regions:
        raise ValueError(
            why_none() or f"{path} contains no region; give a file with at least one row"
        )
    if lengths is not None:
        unknown = [chrom for chrom in line_of_chrom if chrom not in lengths]
        where = f"{path}: line {line_of_chrom[unknown[0]]}" if unknown else str(path)
        check_names(line_of_chrom, lengths, where, skip_unknown)
        if skip_unknown:
            return [region for region in regions if region.chrom in lengths]
    return regions


def _check(region: Region, lengths: Mapping[str, int] | None, first: int = 0) -> None:
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
