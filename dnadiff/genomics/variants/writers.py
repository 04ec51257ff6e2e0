"""Output of variant effects as VCF, table or Parquet, by the name of the file; each is written in
pieces that can be resumed."""

from __future__ import annotations

import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from dnadiff.fields import Json
from dnadiff.formats.variants import VariantSource
from dnadiff.genomics.variants.effects import (
    PREDICTED_COLUMNS,
    Effect,
    PredictedEffect,
    Scored,
    Skipped,
)
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
_ROW_GROUP = 1 << 16
log = logging.getLogger("dnadiff")


@dataclass
class Writer(ABC):
    """A format.

    Args:
        columns: of the effects.
        flag_mismatches: whether alleles whose REF differs from the genome are marked.
        predicted: what a fine-tuned network predicts, such as "log-odds of class enhancer", for
            descriptions of its columns.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    bgzip: ClassVar[bool] = False  # whether `.gz` means bgzip
    has_index: ClassVar[bool] = False  # whether tabix indexes it if it is sorted
    converts: ClassVar[bool] = False  # whether `convert` makes it

    columns: Sequence[str]
    flag_mismatches: bool
    predicted: str = ""

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
    def read(self, path: Path) -> Iterator[Mapping[str, Json]]:
        """The alleles of a finished file that have an effect, with the columns of a table."""

    def convert(self, rows: Path, output: Path) -> None:
        """Make the output of the finished rows if its format cannot be appended to."""
        raise NotImplementedError

    def _values(self, effect: Effect | PredictedEffect) -> list[str]:
        """The cells of an effect; `.` where there is no number. Log-likelihoods have a scale of
        their own; predictions may be numbers of any size."""
        values = [(getattr(effect, name), name in PREDICTED_COLUMNS) for name in self.columns]
        return [
            "." if math.isnan(value) else f"{value:{'.6g' if any_size else '.6f'}}"
            for value, any_size in values
        ]


class Table(Writer):
    """A table with tabs, one line per allele."""

    suffixes: ClassVar[tuple[str, ...]] = (".tsv", ".tsv.gz")

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        return [*PLACE, *self.columns, *([MISMATCH] if self.flag_mismatches else [])]

    @override
    def header(self, source: VariantSource, contigs: Mapping[str, int]) -> bytes:
        return ("\t".join(self.names) + "\n").encode()

    @override
    def rows(self, scored: Iterable[Scored]) -> bytes:
        lines = []
        for row, results in scored:
            for alt, effect in zip(row.alts, results):
                if not isinstance(effect, Skipped):
                    cells = [row.chrom, str(row.pos), row.id, row.ref, alt, *self._values(effect)]
                    cells += [str(int(effect.differs))] if self.flag_mismatches else []
                    lines.append("\t".join(cells) + "\n")
        return "".join(lines).encode()

    @override
    def read(self, path: Path) -> Iterator[Mapping[str, Json]]:
        with open_text(path) as file:
            next(file)
            for line in file:
                cells = dict(zip(self.names, line.rstrip("\n").split("\t")))
                values = {name: value_of(cells[name]) for name in self.columns}
                yield {**cells, "pos": int(cells["pos"]), **values}


class ParquetTable(Table):
    """Apache Parquet with the columns of the table, made from one when all rows are there."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    converts: ClassVar[bool] = True

    @override
    def convert(self, rows: Path, output: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        kinds = dict.fromkeys(PLACE, pyarrow.string())
        kinds |= {"pos": pyarrow.int64(), MISMATCH: pyarrow.bool_()}
        schema = pyarrow.schema([(x, kinds.get(x, pyarrow.float64())) for x in self.names])
        found = super().read(rows)
        with (
            atomic_write(output, overwrite=True) as file,
            pyarrow.parquet.ParquetWriter(file, schema) as target,
        ):
            while group := list(itertools.islice(found, _ROW_GROUP)):
                columns = {name: [row[name] for row in group] for name in self.names}
                if self.flag_mismatches:
                    columns[MISMATCH] = [value == "1" for value in columns[MISMATCH]]
                target.write_table(pyarrow.table(columns, schema=schema))

    @override
    def read(self, path: Path) -> Iterator[Mapping[str, Json]]:
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
        own = []
        for name in self.columns:
            text = _DESCRIBED[name]
            if name in PREDICTED_COLUMNS and self.predicted:
                text += f": {self.predicted}"
            text = text.replace("\\", "\\\\").replace('"', '\\"')  # VCF 4.3, section 1.4
            own.append(f'##INFO=<ID={name},Number=A,Type=Float,Description="{text}">')
        if self.flag_mismatches:
            about = 'Number=0,Type=Flag,Description="REF differs from the genome"'
            own.append(f"##INFO=<ID={MISMATCH},{about}>")
        *lines, columns = source.header or [
            "##fileformat=VCFv4.2",
            *(f"##contig=<ID={name},length={length}>" for name, length in contigs.items()),
            "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO",
        ]
        starts = {f"##INFO=<ID={name},": name for name in (*self.columns, MISMATCH)}
        replaced = [name for x, name in starts.items() if any(line.startswith(x) for line in lines)]
        if replaced:
            log.warning(
                f"the output does not keep the INFO fields {', '.join(replaced)} of {source.name}, "
                "because dnadiff writes fields of these "
                "names; rename them in the input to keep them"
            )
        kept = [line for line in lines if not line.startswith(tuple(starts))]
        return "".join(f"{line}\n" for line in (*kept, *own, columns)).encode()

    @override
    def rows(self, scored: Iterable[Scored]) -> bytes:
        lines = []
        for row, results in scored:
            plain = [row.chrom, str(row.pos), row.id, row.ref, ",".join(row.alts), ".", ".", "."]
            cells = row.text.split("\t") if row.text else plain
            kept = [
                x
                for x in cells[7].split(";")
                if x not in ("", ".") and x.partition("=")[0] not in (*self.columns, MISMATCH)
            ]
            effects = [each for each in results if not isinstance(each, Skipped)]
            if effects:
                values = [
                    ["."] * len(self.columns) if isinstance(each, Skipped) else self._values(each)
                    for each in results
                ]
                kept += [f"{name}={','.join(x)}" for name, x in zip(self.columns, zip(*values))]
            if self.flag_mismatches and any(each.differs for each in effects):
                kept.append(MISMATCH)
            lines.append("\t".join([*cells[:7], ";".join(kept) or ".", *cells[8:]]) + "\n")
        return "".join(lines).encode()

    @override
    def read(self, path: Path) -> Iterator[Mapping[str, Json]]:
        with open_text(path) as file:
            for line in file:
                if line.startswith("#"):
                    continue
                chrom, pos, name, ref, alts, _, _, info = line.rstrip("\n").split("\t")[:8]
                found = dict(cell.partition("=")[::2] for cell in info.split(";"))
                if self.columns[0] not in found:
                    continue
                values = zip(*(found[key].split(",") for key in self.columns))
                for alt, of_allele in zip(alts.split(","), values):
                    place = zip(PLACE, (chrom, int(pos), name, ref, alt))
                    yield {**dict(place), **dict(zip(self.columns, map(value_of, of_allele)))}


def writer_of(output: Path, columns: Sequence[str], flag_mismatches: bool) -> Writer:
    """The writer of the columns of effects for a file of this name; raises ValueError if there is
    none."""
    formats: tuple[type[Writer], ...] = (Table, ParquetTable, Vcf)
    for kind in formats:
        if output.name.lower().endswith(kind.suffixes):
            return kind(columns, flag_mismatches)
    known = ", ".join(suffix for kind in formats for suffix in kind.suffixes)
    raise ValueError(f"output {output} has no name of a known format; its name must end in {known}")


def value_of(text: str) -> float:
    """The number in a cell; NaN for `.`."""
    return math.nan if text == "." else float(text)
