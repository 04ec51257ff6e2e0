"""Output of variant effects as VCF, table or Parquet, by the name of the file; each is written in
pieces that can be resumed."""

from __future__ import annotations

import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from dnadiff.genomics.variants.effects import PREDICTED_COLUMNS, AlleleEffect, Scored
from dnadiff.genomics.variants.sources import VariantSource
from dnadiff.genomics.variants.variant import Row
from dnadiff.store.disk import atomic_write
from dnadiff.store.files import open_text

PLACE = ("chrom", "pos", "id", "ref", "alt")
MISMATCH = "REF_mismatch"
_DESCRIBED = {
    "LLR": "log p(ALT) - log p(REF) under the model, nats",
    "SE": "Monte Carlo standard error of LLR, nats",
    "LLR_forward": "LLR of the given strand, nats",
    "LLR_reverse": "LLR of the reverse complement, nats",
    "entropy": "Entropy of the base at the site given the rest, nats",
    "information": "2 minus the entropy of the base at the site, bits",
    "predicted_REF": "Prediction for the window with REF",
    "predicted_ALT": "Prediction for the window with ALT",
    "difference": "predicted_ALT - predicted_REF",
    "SE_seeds": "Standard error of the difference over the seeds of fine-tuning",
    "L2": "Euclidean distance of the mean embeddings of both windows",
}
# Log-likelihoods have a scale of their own; predictions may be numbers of any size.
_NATS_FORMAT, _PREDICTED_FORMAT, _PREDICTED = ".6f", ".6g", frozenset(PREDICTED_COLUMNS)
_ROW_GROUP = 1 << 16
log = logging.getLogger("dnadiff")

Result = Mapping[str, str | int | float]  # one allele, as `read` returns it


class Writer(ABC):
    """A format.

    Args:
        columns: of the effects.
        flag_mismatches: whether alleles whose REF differs from the genome are marked.

    Attributes:
        predicted: what a fine-tuned network predicts, such as "log-odds of class enhancer", for
            descriptions of its columns.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    bgzip: ClassVar[bool] = False  # whether `.gz` means bgzip
    has_index: ClassVar[bool] = False  # whether tabix indexes it if it is sorted
    converts: ClassVar[bool] = False  # whether `convert` makes it
    predicted: str = ""

    def __init__(self, columns: Sequence[str], flag_mismatches: bool) -> None:
        self.columns, self.flag_mismatches = tuple(columns), flag_mismatches

    @abstractmethod
    def header(self, source: VariantSource, contigs: Mapping[str, int]) -> bytes:
        """What precedes the first row.

        Args:
            contigs: name to length of those that the rows may be on.
        """

    @abstractmethod
    def rows(self, scored: Iterable[Scored]) -> bytes:
        """Some rows."""

    @abstractmethod
    def read(self, path: Path) -> Iterator[Result]:
        """The alleles of a finished file that have an effect."""

    def convert(self, rows: Path, output: Path) -> None:
        """Make the output of the finished rows if its format cannot be appended to."""
        raise NotImplementedError

    def check_order(self, source: VariantSource, is_sorted: bool, output: Path) -> None:
        """Log that the output cannot be indexed because the input is not sorted."""
        if self.has_index and not is_sorted:
            log.warning(
                f"{source.name} is not sorted by position, so {output.name} is not either and "
                "cannot be indexed; bcftools sort sorts it"
            )

    def _values(self, effect: AlleleEffect) -> list[str]:
        return [
            number(getattr(effect, name), _PREDICTED_FORMAT if name in _PREDICTED else _NATS_FORMAT)
            for name in self.columns
        ]


class Table(Writer):
    """A table with tabs, one line per allele."""

    suffixes: ClassVar[tuple[str, ...]] = (".tsv", ".tsv.gz")

    @override
    def header(self, source: VariantSource, contigs: Mapping[str, int]) -> bytes:
        return (
            "\t".join([*PLACE, *self.columns, *([MISMATCH] if self.flag_mismatches else [])]) + "\n"
        ).encode()

    @override
    def rows(self, scored: Iterable[Scored]) -> bytes:
        lines = []
        for each in scored:
            row = each.row
            for alt, effect in zip(row.alts, each.effects):
                if effect is not None:
                    place = (row.chrom, str(row.pos), row.id, row.ref, alt)
                    lines.append(
                        "\t".join(
                            [
                                *place,
                                *self._values(effect),
                                *([str(int(effect.differs))] if self.flag_mismatches else []),
                            ]
                        )
                    )
        return "".join(f"{line}\n" for line in lines).encode()

    @override
    def read(self, path: Path) -> Iterator[Result]:
        with open_text(path) as file:
            names = next(file).rstrip("\n").split("\t")
            for line in file:
                cells = dict(zip(names, line.rstrip("\n").split("\t")))
                yield {
                    **cells,
                    "pos": int(cells["pos"]),
                    **{name: value_of(cells[name]) for name in self.columns},
                }


class ParquetTable(Table):
    """Apache Parquet with the columns of the table, made from one when all rows are there."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    converts: ClassVar[bool] = True

    @override
    def convert(self, rows: Path, output: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        kinds = {name: pyarrow.string() for name in PLACE} | {
            "pos": pyarrow.int64(),
            MISMATCH: pyarrow.bool_(),
        }
        names = [*PLACE, *self.columns, *([MISMATCH] if self.flag_mismatches else [])]
        schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in names])
        found = super().read(rows)
        with (
            atomic_write(output, overwrite=True) as file,
            pyarrow.parquet.ParquetWriter(file, schema) as target,
        ):
            while group := list(itertools.islice(found, _ROW_GROUP)):
                columns = {name: [row[name] for row in group] for name in names}
                if self.flag_mismatches:
                    columns[MISMATCH] = [value == "1" for value in columns[MISMATCH]]
                target.write_table(pyarrow.table(columns, schema=schema))

    @override
    def read(self, path: Path) -> Iterator[Result]:
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()


class Vcf(Writer):
    """VCF with the effects in INFO: the rows and header lines of a VCF input are kept, with a
    missing value for an allele that is skipped."""

    suffixes: ClassVar[tuple[str, ...]] = (".vcf", ".vcf.gz")
    bgzip: ClassVar[bool] = True
    has_index: ClassVar[bool] = True

    @override
    def header(self, source: VariantSource, contigs: Mapping[str, int]) -> bytes:
        own = [
            f'##INFO=<ID={name},Number=A,Type=Float,Description="{self._description(name)}">'
            for name in self.columns
        ]
        if self.flag_mismatches:
            own.append(
                f'##INFO=<ID={MISMATCH},Number=0,Type=Flag,Description="REF differs from the '
                'genome">'
            )
        if source.header:
            *lines, columns = source.header
        else:
            declared = (f"##contig=<ID={name},length={length}>" for name, length in contigs.items())
            lines, columns = (
                ["##fileformat=VCFv4.2", *declared],
                "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO",
            )
        starts = {f"##INFO=<ID={name},": name for name in (*self.columns, MISMATCH)}
        if replaced := [
            name for start, name in starts.items() if any(line.startswith(start) for line in lines)
        ]:
            log.warning(
                f"the output does not keep the INFO fields {', '.join(replaced)} of {source.name}, "
                "because dnadiff writes fields of these "
                "names; rename them in the input to keep them"
            )
        return "".join(
            f"{line}\n"
            for line in (*(x for x in lines if not x.startswith(tuple(starts))), *own, columns)
        ).encode()

    def _description(self, name: str) -> str:
        text = _DESCRIBED[name] + (
            f": {self.predicted}" if name in _PREDICTED and self.predicted else ""
        )
        return text.replace("\\", "\\\\").replace('"', '\\"')  # VCF 4.3, section 1.4

    @override
    def rows(self, scored: Iterable[Scored]) -> bytes:
        return "".join(f"{self._line(each.row, each.effects)}\n" for each in scored).encode()

    def _line(self, row: Row, effects: Sequence[AlleleEffect | None]) -> str:
        cells = (
            row.text.split("\t")
            if row.text
            else [row.chrom, str(row.pos), row.id, row.ref, ",".join(row.alts), ".", ".", "."]
        )
        kept = [
            x
            for x in cells[7].split(";")
            if x not in ("", ".") and x.partition("=")[0] not in (*self.columns, MISMATCH)
        ]
        if any(effect is not None for effect in effects):
            values = [
                ["."] * len(self.columns) if effect is None else self._values(effect)
                for effect in effects
            ]
            kept += [
                f"{name}={','.join(each[place] for each in values)}"
                for place, name in enumerate(self.columns)
            ]
        if self.flag_mismatches and any(
            effect is not None and effect.differs for effect in effects
        ):
            kept.append(MISMATCH)
        return "\t".join([*cells[:7], ";".join(kept) or ".", *cells[8:]])

    @override
    def read(self, path: Path) -> Iterator[Result]:
        with open_text(path) as file:
            for line in file:
                if line.startswith("#"):
                    continue
                chrom, pos, name, ref, alts, _, _, info = line.rstrip("\n").split("\t")[:8]
                values = {
                    key: value.split(",")
                    for key, _, value in (cell.partition("=") for cell in info.split(";"))
                }
                for place, alt in enumerate(alts.split(",")):
                    if self.columns[0] in values:
                        found = {key: value_of(values[key][place]) for key in self.columns}
                        yield {
                            "chrom": chrom,
                            "pos": int(pos),
                            "id": name,
                            "ref": ref,
                            "alt": alt,
                            **found,
                        }


FORMATS: tuple[type[Writer], ...] = (Table, ParquetTable, Vcf)


def writer_of(output: Path, columns: Sequence[str], flag_mismatches: bool) -> Writer:
    """The writer of the columns of effects for a file of this name; raises ValueError if there is
    none."""
    for kind in FORMATS:
        if output.name.lower().endswith(kind.suffixes):
            return kind(columns, flag_mismatches)
    known = ", ".join(suffix for kind in FORMATS for suffix in kind.suffixes)
    raise ValueError(f"output {output} has no name of a known format; its name must end in {known}")


def number(value: float, form: str = _NATS_FORMAT) -> str:
    """A number in a file; `.` where there is none."""
    return "." if math.isnan(value) else format(value, form)


def value_of(text: str) -> float:
    """The inverse of `number`."""
    return math.nan if text == "." else float(text)
