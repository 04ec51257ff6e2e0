"""Rows of variants: VCF and BCF files, tables, and rows in memory.

Each source is read as a stream, as often as needed, and checks its rows by itself; they are not
compared with a genome. VCF files are read without another package; BCF needs pysam.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from dnadiff.formats.regions import filled_lines
from dnadiff.store.files import check_bgzip, open_binary, open_text, resolve

_CONTIG = re.compile(r"##contig=<(?:.*,)?ID=([^,>]+)(?:.*?,length=(\d+))?")
_POSITION = re.compile(r"[0-9]{1,10}")
_FIXED = ("#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO")
_COLUMNS = ("chrom", "pos", "ref", "alt")


class Row(NamedTuple):
    """One row of variants.

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


def row_of(where: str, chrom: str, pos: str, name: str, ref: str, alt: str, text: str = "") -> Row:
    """A row from its cells; ValueError naming the line unless the position is one counted from 1,
    or 0, which VCF allows at a telomere."""
    if not _POSITION.fullmatch(pos):
        raise ValueError(
            f"{where}: the position {pos!r} is not an integer of at least 1; correct the line or "
            "remove it"
        )
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


class VcfSource(VariantSource):
    """The lines of a VCF file: plain, gzip or bgzip.

    Raises:
        FileNotFoundError, ValueError: if it is not a complete VCF file with a line for each contig.
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
        found = filter(None, map(_CONTIG.match, header))
        self.contigs = {match[1]: int(match[2] or 0) for match in found}
        if not self.contigs:
            raise ValueError(
                f"{path} has no ##contig lines, so its assembly cannot be checked; add them with "
                "bcftools reheader --fai genome.fa.fai"
            )

    def _lines(self) -> Generator[str]:
        return _text_lines(self.name)

    @override
    def __iter__(self) -> Iterator[Row]:
        return self.between(0)

    @override
    def between(self, first: int, last: int | None = None) -> Iterator[Row]:
        columns = self.header[-1].count("\t") + 1
        lines = filled_lines(self.name, self._lines())
        rows = ((number, line) for number, line in lines if not line.startswith("#"))
        for number, line in islice(rows, first, last):  # rows before are not taken apart
            where, cells = f"{self.name}: line {number}", line.split("\t")
            if len(cells) != columns:
                raise ValueError(
                    f"{where} has {len(cells)} columns, the header has {columns}; correct the line "
                    "or remove it"
                )
            if cells[0] not in self.contigs:
                raise ValueError(
                    f"{where}: the header has no ##contig line of {cells[0]}; add it, as with "
                    "bcftools reheader --fai genome.fa.fai"
                )
            chrom, pos, name, ref, alt = cells[:5]
            yield row_of(where, chrom, pos, name, ref, alt, line)


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
            names = next(lines, "").rstrip("\n").split("\t")
        self.names = [name.strip().lstrip("#").lower() for name in names]
        if missing := [name for name in _COLUMNS if name not in self.names]:
            raise ValueError(
                f"{path} has no column {', '.join(missing)}; give a VCF or BCF file, or a table "
                f"with tabs and the columns {', '.join(_COLUMNS)}"
            )

    @override
    def __iter__(self) -> Iterator[Row]:
        for number, line in filled_lines(self.name, _text_lines(self.name)):
            where, cells = f"{self.name}: line {number}", line.split("\t")
            if len(cells) != len(self.names):
                raise ValueError(
                    f"{where} has {len(cells)} columns, the header has {len(self.names)}; correct "
                    "the line or remove it"
                )
            if number > 1:  # the first column of a name counts
                found = dict(zip(reversed(self.names), map(str.strip, reversed(cells))))
                chrom, pos, ref, alt = (found[name] for name in _COLUMNS)
                yield row_of(where, chrom, pos, found.get("id") or ".", ref, alt)


class Rows(VariantSource):
    """Variants in memory: (chrom, pos, ref, alt), or mappings with these keys and possibly id, with
    pos counted from 1."""

    name = "variants"

    def __init__(self, variants: Iterable[Sequence[object] | Mapping[str, object]]) -> None:
        self.rows = [
            self._row(f"variant {number}", variant) for number, variant in enumerate(variants)
        ]

    def _row(self, where: str, variant: Sequence[object] | Mapping[str, object]) -> Row:
        import pandas

        values: list[object] = []
        name: object = None
        if isinstance(variant, Mapping):  # keys as in the header of a file
            variant = {str(key).lower().lstrip("#"): value for key, value in variant.items()}
            values, name = [variant.get(key) for key in _COLUMNS], variant.get("id")
        elif isinstance(variant, Iterable) and not isinstance(variant, str):
            values = list(variant)
        # str() would make an allele of nucleotides of NaN
        missing = [pandas.api.types.is_scalar(x) and pandas.isna(x) for x in values]
        if len(values) != len(_COLUMNS) or any(missing):
            raise ValueError(f"{where} is {variant!r}; expected (chrom, pos, ref, alt)")
        chrom, pos, ref, alt = map(str, values)
        return row_of(where, chrom, pos, name if isinstance(name, str) and name else ".", ref, alt)

    @override
    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def open_source(path: str | Path) -> VariantSource:
    """The variants of a file, whose format is detected from its content.

    Raises:
        FileNotFoundError, ValueError: if there is no such file, or it is neither VCF, BCF nor a
            table.
    """
    with closing(_first_bytes(path)) as pieces:
        first = next(pieces).lstrip(b"\xef\xbb\xbf")
    if first.startswith(b"BCF"):
        return BcfSource(path)
    return (VcfSource if first.startswith((b"##", b"#CHROM\tPOS\tID")) else TableSource)(path)


# Generators, so that whoever stops early closes the file without reading the rest of it.
def _text_lines(path: str | Path) -> Generator[str]:
    with open_text(path) as file:
        yield from file


def _first_bytes(path: str | Path) -> Generator[bytes]:
    with open_binary(path) as content:
        yield content.read(16)
