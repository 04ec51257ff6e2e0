"""Rows of variants with their effects as an output that can be resumed, as VCF, table or Parquet by
the name of the file, and what is next to it: the dependency matrix of a single variant, and the
pictures of saturated regions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dnadiff.data.base import run_data
from dnadiff.fields import Json, JsonDict, JsonMap
from dnadiff.formats.regions import VariantSource, VcfSource, header_fields, record_of
from dnadiff.formats.table import write_parquet
from dnadiff.genomics.variants.effects import (
    PREDICTED_COLUMNS,
    Effect,
    InputSummary,
    PredictedEffect,
    RowScorer,
    Scored,
    TrainingPart,
    divided,
)
from dnadiff.genomics.variants.methods import Audit, Floats, Network
from dnadiff.genomics.variants.phased import NO_VALUE
from dnadiff.genomics.variants.variant import TOKENIZER, Edit, Reference, Skipped
from dnadiff.jobs.job import Earlier, Result, ResumableJob
from dnadiff.progress import log, table
from dnadiff.store.disk import write_bytes
from dnadiff.store.files import open_text
from dnadiff.store.objects import PACKAGE, build

if TYPE_CHECKING:
    import pandas

    from dnadiff.weights.loaded import Loaded

# stretches of a record that are compared, and their bases
_COMPARED = 64
_LENGTH = 64


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
    "depth": "Related genomes with a base in the column of the alignment",
    "conservation": "Minus the mean log rate of the column",
    "percentile": "Random SNVs of this change with a lower LLR, percent",
    "percentile_SE": "Standard error of percentile",
    "LLR_calibrated": "LLR minus the mean of random indels of the same kind, nats",
    "haplotype": "Phase set and copy of the neighboring alleles that LLR_haplotype is of",
    "LLR_haplotype_1": "LLR of all alleles of the haplotype on copy 1 together, nats",
    "LLR_haplotype_2": "LLR of all alleles of the haplotype on copy 2 together, nats",
    "LLR_sum_1": "Sum of LLR over the haplotype on copy 1, nats",
    "LLR_sum_2": "Sum of LLR over the haplotype on copy 2, nats",
}
_TEXT = "haplotype"  # the others are numbers
_ANY_SIZE = {*PREDICTED_COLUMNS, "depth", "percentile", "percentile_SE"}  # without fixed decimals


@dataclass
class Table:
    """A table with tabs, one line per allele, and the base class of other formats.

    Args:
        columns: of the effects.
        flag_mismatches: whether alleles whose REF differs from the genome are marked.
        predicted: what a fine-tuned network predicts, such as "log-odds of class enhancer", for
            descriptions of its columns.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".tsv", ".tsv.gz")
    is_vcf = False  # then `.gz` means bgzip, and tabix indexes it if it is sorted
    converts = False  # whether `convert` makes it

    columns: Sequence[str]
    flag_mismatches: bool
    predicted: str = ""

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        return [*PLACE, *self.columns, *[MISMATCH] * self.flag_mismatches]

    def header(self, source: VariantSource, contigs: Mapping[str, int]) -> bytes:
        """What precedes the first row.

        Args:
            contigs: name to length of those that the rows may be on and the source does not
                declare.
        """
        return ("\t".join(self.names) + "\n").encode()

    def rows(self, scored: Iterable[Scored]) -> bytes:
        """Some rows."""
        lines = []
        for row, results in scored:
            for alt, effect in zip(row.alts, results):
                if not isinstance(effect, Skipped):
                    cells = [*map(str, row[1:5]), alt, *self._values(effect)]
                    cells += [str(int(effect.differs))] if self.flag_mismatches else []
                    lines.append("\t".join(cells) + "\n")
        return "".join(lines).encode()

    def read(self, path: Path) -> Iterator[JsonMap]:
        """The alleles of a finished file that have an effect, with the columns of a table."""
        with open_text(path) as file:
            next(file)
            for line in file:
                cells = dict(zip(self.names, line.rstrip("\n").split("\t")))
                values = {name: value_of(name, cells[name]) for name in self.columns}
                yield {**cells, "pos": int(cells["pos"]), **values}

    def convert(self, rows: Path, output: Path) -> None:
        """Make a Parquet file, which cannot be appended to, of the finished rows."""
        kinds = dict.fromkeys((*PLACE, _TEXT), "string") | {"pos": "int64", MISMATCH: "bool"}
        types = {name: kinds.get(name, "float64") for name in self.names}
        write_parquet(self.read(rows), output, types)

    def _values(self, effect: Effect | PredictedEffect | Skipped) -> list[str]:
        """The cells of an effect; `.` where there is no number. Log-likelihoods have a scale of
        their own; predictions may be numbers of any size."""
        found = []
        for name in self.columns:
            value = getattr(effect, name, math.nan)
            form = "" if name == _TEXT else ".6g" if name in _ANY_SIZE else ".6f"
            text = f"{value:{form}}"
            found.append("." if text in ("", "nan") else text)
        return found


class ParquetTable(Table):
    """Apache Parquet with the columns of the table, made from one when all rows are there."""

    suffixes = (".parquet",)
    converts = True


class Vcf(Table):
    """VCF with the effects in INFO: the rows and header lines of a VCF input are kept, with a
    missing value for an allele that is skipped."""

    suffixes = (".vcf", ".vcf.gz")
    is_vcf = True

    def header(self, source: VariantSource, contigs: Mapping[str, int]) -> bytes:
        own = []
        for name in self.columns:
            text = _DESCRIBED[name]
            if name in PREDICTED_COLUMNS and self.predicted:
                text += f": {self.predicted}"
            text = text.replace("\\", "\\\\").replace('"', '\\"')  # VCF 4.3, section 1.4
            kind = "String" if name == _TEXT else "Float"
            own.append(f'##INFO=<ID={name},Number=A,Type={kind},Description="{text}">')
        if self.flag_mismatches:
            about = 'Number=0,Type=Flag,Description="REF differs from the genome"'
            own.append(f"##INFO=<ID={MISMATCH},{about}>")
        *lines, columns = source.header or [
            "##fileformat=VCFv4.2",
            "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO",
        ]
        lines += [f"##contig=<ID={name},length={size}>" for name, size in contigs.items()]
        names = [header_fields(line, "INFO").get("ID") for line in lines]
        if replaced := [name for name in (*self.columns, MISMATCH) if name in names]:
            log.warning(
                f"the output does not keep the INFO fields {', '.join(replaced)} of {source.name}, "
                "because dnadiff writes fields of these "
                "names; rename them in the input to keep them"
            )
        kept = [line for line, name in zip(lines, names) if name not in replaced]
        return "".join(f"{line}\n" for line in (*kept, *own, columns)).encode()

    def rows(self, scored: Iterable[Scored]) -> bytes:
        lines = []
        for row, results in scored:
            plain = [*map(str, row[1:5]), ",".join(row.alts), ".", ".", "."]
            cells = row.text.split("\t") if row.text else plain
            kept = [
                x
                for x in cells[7].split(";")
                if x not in ("", ".") and x.partition("=")[0] not in (*self.columns, MISMATCH)
            ]
            effects = [each for each in results if not isinstance(each, Skipped)]
            if effects:
                values = map(self._values, results)
                kept += [f"{name}={','.join(x)}" for name, x in zip(self.columns, zip(*values))]
            if self.flag_mismatches and any(each.differs for each in effects):
                kept.append(MISMATCH)
            lines.append("\t".join([*cells[:7], ";".join(kept) or ".", *cells[8:]]) + "\n")
        return "".join(lines).encode()

    def read(self, path: Path) -> Iterator[JsonMap]:
        for row in VcfSource(path):
            found = row.info
            for number, alt in enumerate(row.alts if self.columns[0] in found else ()):
                values = {name: value_of(name, found[name][number]) for name in self.columns}
                yield {**dict(zip(PLACE, [*row[1:5], alt])), **values}


def writer_of(output: Path, columns: Sequence[str], flag_mismatches: bool) -> Table:
    """The writer of the columns of effects for a file of this name; raises ValueError if there is
    none."""
    formats: tuple[type[Table], ...] = (Table, ParquetTable, Vcf)
    for kind in formats:
        if output.name.lower().endswith(kind.suffixes):
            return kind(columns, flag_mismatches)
    known = ", ".join(suffix for kind in formats for suffix in kind.suffixes)
    raise ValueError(f"output {output} has no name of a known format; its name must end in {known}")


def effects_of(path: Path, **wanted: Collection[Json]) -> pandas.DataFrame:
    """The alleles of a finished file of any format, with the columns of a table, that have one of
    the `wanted` values in each of these columns; the others are not kept in memory."""
    import pandas

    writer = writer_of(path, (), False)
    if writer.converts:
        return pandas.read_parquet(path, filters=[(k, "in", x) for k, x in wanted.items()] or None)
    with open_text(path) as file:
        names = file.readline().rstrip("\n").split("\t")
    if writer.is_vcf:
        fields = [header_fields(line, "INFO") for line in VcfSource(path).header]
        about = {each.get("ID", ""): each.get("Description", "") for each in fields}
        # the input may have other fields of these names
        names = [name for name, text in _DESCRIBED.items() if about.get(name, "").startswith(text)]
    writer.columns = [name for name in names if name in _DESCRIBED]
    writer.flag_mismatches = MISMATCH in names
    return pandas.DataFrame(
        (r for r in writer.read(path) if all(r[name] in x for name, x in wanted.items())),
        columns=writer.names,
    )


def value_of(name: str, text: str) -> float | str | None:
    """The number in a cell of a column, NaN for `.`; or its text, None for `.`."""
    if name == _TEXT:
        return None if text == "." else text
    return math.nan if text == "." else float(text)


def training_part(loaded: Loaded, reference: Reference, trust: Sequence[str] = ()) -> TrainingPart:
    """The training part of a model on a genome, with a warning if both have records of equal names
    that are not the same.

    Nothing is downloaded. Without the data of the run, the split and the number of bases that the
    model records have to fit the genome. With another genome no interval is known.
    """
    try:
        data = run_data(loaded.config.get("data"), loaded.tokenizer, trust)
        if not data.opens_genome:
            raise ValueError("the model was not trained on a genome")
        data.prepare()
        own = data.open()
    except (ValueError, OSError) as error:
        reason = str(error).partition("; ")[0]  # without the remedy
        return _recorded_part(loaded, reference, trust) or TrainingPart({}, f"not known ({reason})")
    same: dict[str, str] = {}  # records of the training data, with their names in the genome
    other = list[str]()
    for name, length in own.lengths.items():
        if (here := record_of(name, reference.lengths)) is None:
            continue
        size = min(_LENGTH, length)
        starts = np.unique(np.linspace(0, length - size, _COMPARED).astype(int)).tolist()
        if reference.lengths[here] == length and all(
            np.array_equal(own.window(name, s, s + size), reference.window(here, s, s + size))
            for s in starts
        ):
            same[name] = here
        else:
            other.append(here)
    if other:
        log.warning(
            f"{', '.join(sorted(other)[:4])}: the genome has different bases from the model's "
            f"training data ({data.name}): a different assembly? "
            "Variants in the training part cannot be counted there"
        )
    if not same:
        return TrainingPart({}, f"not known (the model was trained on {data.name})")
    records = {same[name]: number for number, name in enumerate(data.names) if name in same}
    note = f"split {data.split.describe()}"
    return TrainingPart(records, note, sorted(data.intervals["train"]))


def _recorded_part(
    loaded: Loaded, reference: Reference, trust: Sequence[str]
) -> TrainingPart | None:
    """The training part by the recorded split alone, if the records that it divides have as many
    bases as those of the training."""
    lengths = list(reference.lengths.values())
    try:
        split = build(loaded.config["data"]["split"], trust=(PACKAGE, *trust))
        parts = split(list(reference.lengths), lengths)
    except (ValueError, LookupError, TypeError):
        return None
    used = {each.record for intervals in parts.values() for each in intervals}
    if sum(lengths[number] for number in used) != (loaded.origin.data or {}).get("tokens"):
        return None
    records = {name: number for number, name in enumerate(reference.lengths)}
    note = f"split {split.describe()}; bases not compared"
    return TrainingPart(records, note, sorted(parts["train"]))


def dependency(network: Network, edit: Edit, span: int) -> bytes:
    """How the predictions around a variant change with it, as a table with tabs: for each of the
    `span` bases on each side of the variant, as far as they are in its windows, its position
    counted from 1, the base, and log p(base | ALT) - log p(base | REF) of A, C, G and T there,
    masked alone; nats, the mean of the strands read. N is left out.

    After the nucleotide dependency maps of Tomaz da Silva et al. (2024), here for one variant with
    all four bases.
    """
    vocab = network.process.vocab
    strands = list[dict[int, Floats]]()
    for reverse in network.strands:  # the change at each position, of the bases of the given strand
        pair = network.pair(edit, reverse)
        both = [np.concatenate(sides) for sides in pair.flanks(span)]
        known = vocab.is_emitted().numpy()[pair.ref[both[0]]]
        places = [each[known] for each in both]
        found = []
        for allele, where in enumerate(places if known.any() else ()):
            masked = np.eye(len(pair.ref), dtype=bool)[where]
            calls = network.predictions(pair, [allele] * len(masked), zip(masked, masked))
            found.append(np.concatenate([x.numpy() for *_, x in calls])[:, list(vocab.emitted)])
        distance = places[0] - pair.starts[0]
        change = found[1] - found[0] if found else np.zeros((0, 4))
        # Reading right to left, the last base of REF comes first; A, C, G, T in reverse order are
        # their complements.
        positions = edit.end - 1 - distance if reverse else edit.start + distance
        strands.append(dict(zip(positions.tolist(), change[:, ::-1] if reverse else change)))
    rows = ["chrom\tpos\tbase\tA\tC\tG\tT\n"]
    for position in sorted(set.intersection(*map(set, strands))):
        values = np.mean([of_strand[position] for of_strand in strands], 0)
        base = TOKENIZER.decode(network.reference.window(edit.record, position, position + 1))
        numbers = "\t".join(f"{value:.6f}" for value in values)
        rows.append(f"{edit.record}\t{position + 1}\t{base}\t{numbers}\n")
    return "".join(rows).encode()


@dataclass(eq=False)
class VariantJob(ResumableJob):
    """The effects of all rows of a source. Items are rows.

    Args:
        mismatch_is_error: refuse rows whose REF differs from the genome.
        matrix: the dependency matrix, a .tsv file; None for none.
        span: bases on each side of the variant in it.
        page: of heat maps, whose pictures are next to it; None for none.
    """

    stream = "rows"
    label = "variants"
    items = "rows"

    scorer: RowScorer
    source: VariantSource
    writer: Table
    output: Path
    training: TrainingPart
    mismatch_is_error: bool
    settings: JsonMap
    earlier: Earlier = field(default_factory=dict)
    matrix: Path | None = None
    span: int = 0
    page: Path | None = None

    def __post_init__(self) -> None:
        super().__init__()
        self.side_files = [self.matrix] if self.matrix else []
        if self.page:  # how many pictures it will have is known when the scores are
            self.side_files += sorted(
                self.page.parent.glob(f"{escape(self.page.stem)}_heat_map_[0-9]*.[ps][nv]g")
            )
        self.bgzip = self.writer.is_vcf
        self.converts = self.writer.converts
        self.audit = Audit()
        self.summary = InputSummary()

    @property
    def total(self) -> int:
        return self.summary.rows

    def starts(self) -> list[int]:
        scorer = self.scorer
        return self.starts_of(divided(self.source, scorer.alleles_together, phased=scorer.phased))

    def _summarized(self, first: int = 0, last: int | None = None) -> InputSummary:
        return self.scorer.summarize(
            self.source, self.training, self.mismatch_is_error, first, last
        )

    def check(self, first: int = 0, last: int | None = None) -> None:
        found = self._summarized(first, last)
        if last is not None:
            return
        self.summary = found
        if self.writer.is_vcf and not found.is_sorted:
            log.warning(
                f"{self.source.name} is not sorted by position, so {self.output.name} is not "
                "either and cannot be indexed; bcftools sort sorts it"
            )
        if self.matrix is None:
            return
        if (alleles := found.kinds.total()) != 1:
            raise ValueError(
                f"dependency writes the matrix of a single variant, and there are {alleles:,} "
                "alleles; give one variant"
            )
        if self.scorer.network.denoiser.left_to_right:
            raise ValueError(
                "dependency masks bases around the variant, which a model from left to right "
                "cannot do; leave dependency out"
            )
        if self.matrix.resolve() == self.output.resolve():
            raise ValueError(f"dependency {self.matrix} is the output as well; choose another name")

    def begin(self) -> None:
        window = self.scorer.alleles.window
        method = self.scorer.method
        windows = f"windows of {window} bases, " if window else ""
        log.info(
            f"{self.summary.kinds.total():,} alleles in {self.summary.rows:,} rows, {windows}"
            f"method {method.name if method else 'predicted'}"
        )
        self.calls = self.scorer.calls(self.summary.kinds) / self.summary.rows

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for chunk in self.scorer.chunks(self.source.between(start), skip):
            content = self.writer.rows(chunk)
            self.report(len(chunk), 0)
            yield Result(len(chunk), content, {"audit": list(astuple(self.scorer.take_audit()))})

    def resume(self, done: int, notes: JsonMap) -> None:
        super().resume(done, notes)
        self.audit = Audit(*notes.get("audit", ()))
        self.scorer.audited = self.audit.sites

    def header(self) -> bytes:
        contigs = self.summary.contigs(self.scorer.alleles.reference.lengths)
        if known := self.source.contigs:
            contigs = {name: contigs[name] for name in self.summary.records if name not in known}
        return self.writer.header(self.source, contigs)

    def fold(self, result: Result) -> tuple[bytes, int]:
        self.audit.include(Audit(*result.about["audit"]))
        self.totals = {"audit": list(astuple(self.audit))}
        return super().fold(result)

    def convert(self, collected: Path) -> None:
        self.writer.convert(collected, self.output)

    def finish(self, collected: Path) -> JsonDict:
        self._write_matrix(self.summary.first)
        audit = self.audit
        summary = self.summary
        neutral = self.scorer.neutral
        more = dict[str, Json]()
        if "depth" in self.writer.columns:
            more["without_columns"] = audit.empty
        if self.scorer.phased is not None:
            more["haplotypes_without_value"] = audit.haplotypes
            if not audit.joined:
                log.warning(
                    f"no haplotype has several alleles: the genotypes in {self.source.name} are "
                    "unphased (0/1) or missing, or the variants are far apart"
                )
        if neutral is not None and neutral.calibrate_indels:
            more["calibration"] = {k: neutral.bias(edit) for k, edit in summary.indels.items()}
        return {
            "rows": summary.rows,
            "alleles": dict(summary.kinds),
            "skipped": dict(sorted(summary.skipped.items())),
            "rows_with_another_ref": summary.mismatches,
            "without_value": audit.missing,
            "in_training_part": summary.in_training if self.training.known else None,
            "training_part": self.training.note,
            "sites_per_window_error": {
                "rms": audit.rms,
                "sites": audit.sites,
                "shared_sites": audit.shared,
            }
            if audit.shared
            else None,
            **more,
        }

    def found_complete(self) -> None:
        if self.matrix is not None and not self.matrix.exists():
            self._write_matrix(self._summarized().first)

    def _write_matrix(self, first: Edit | None) -> None:
        if self.matrix is not None and first is not None:
            write_bytes(self.matrix, dependency(self.scorer.network, first, self.span))
            print(f"the dependency matrix is in {self.matrix}")

    def closing(self, seconds: float) -> str:
        """The counts of alleles, the error of several sites per window, and the speed."""
        summary = self.summary
        training = self.training
        audit = self.audit
        scorer = self.scorer
        rows = [
            *((kind, f"{count:,}") for kind, count in summary.kinds.items() if count),
            *((f"skipped: {why}", f"{n:,}") for why, n in sorted(summary.skipped.items())),
        ]
        if scorer.method is not None and audit.missing:
            rows.append((f"no value: {scorer.method.no_value}", f"{audit.missing:,}"))
        if scorer.method is not None and "depth" in self.writer.columns:
            what = f"no related genome is aligned: {scorer.method.without_columns}"
            rows.append((what, f"{audit.empty:,}"))
        if scorer.phased is not None:
            rows += [
                ("haplotypes with several alleles", f"{audit.joined:,}"),
                (f"haplotypes without a value: {NO_VALUE}", f"{audit.haplotypes:,}"),
            ]
        if summary.mismatches:
            rows.append(("rows whose REF differs from the genome", f"{summary.mismatches:,}"))
        counted = f"{summary.in_training:,} ({training.note})" if training.known else training.note
        rows.append(("in the training part of the model", counted))
        if audit.shared or scorer.sites_per_window > 1:
            error = "none: no sites share a window"
            if audit.shared:
                share = f"{audit.sites} of {audit.shared:,} sites that share one"
                error = f"{audit.rms:.4f} nats (RMS, {share})"
            rows.append(("error of several sites per window", error))
        if scorer.num_scored:
            rows.append(("variants/s", f"{scorer.num_scored / max(seconds, 1e-9):,.1f}"))
        return f"{table(rows)}\n{super().closing(seconds)}"
