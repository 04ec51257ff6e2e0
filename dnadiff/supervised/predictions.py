"""Predictions of a file: records of FASTA or rows of a table, cut into windows, and the table that
`python -m dnadiff.predict` writes, with a parquet file, a track and metrics made from it."""

import csv
import io
import itertools
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.data.genome.inputs import open_input as open_input
from dnadiff.data.tokenizer import DNATokenizer, encoded
from dnadiff.diffusion.bootstrap import MIN_BLOCKS
from dnadiff.fields import Json, JsonDict, JsonMap
from dnadiff.formats.regions import Region
from dnadiff.formats.sequences import iter_sequences
from dnadiff.formats.table import is_table, write_parquet
from dnadiff.formats.tracks import mean_coverage, write_track
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.jobs.journal import json_path
from dnadiff.progress import log, table
from dnadiff.store.address import expand_user, refuse_controls
from dnadiff.store.disk import hash_file, read_json
from dnadiff.store.files import open_text, resolve
from dnadiff.supervised.ensemble import (
    NO_PREDICTION,
    UNLABELED,
    ClassifierEnsemble,
    LengthLimits,
    Query,
    chunks,
)
from dnadiff.supervised.intervals import interval_text
from dnadiff.supervised.labeled import filled_rows
from dnadiff.supervised.metrics import summarize_metrics, title
from dnadiff.supervised.targets import Label, Predicted, TaskTarget
from dnadiff.supervised.tasks import label_keys

PARQUET = ".parquet"
_GENOMIC = ("chrom", "start", "end", "strand")
NUMBERS = frozenset({"start", "end", "length"})  # columns of integers


@dataclass(frozen=True)
class Columns:
    """The columns of a table; `name` None numbers the rows by their lines, `label` None reads no
    labels."""

    sequence: str = "sequence"
    name: str | None = None
    label: Sequence[str] | None = None


@dataclass(frozen=True)
class SequenceFile:
    """The queries in a file; can be iterated repeatedly, with one record in memory at a time.

    Args:
        path: FASTA or a table (by its ending), plain or gzip.
        target: what labels are.
        window: bases of a window; None predicts complete records.
        stride: bases between the starts of windows; None: windows do not overlap.
        limits: on the length of a query.
        source: has the sequences, with their columns of an alignment; None: those of the file,
            without columns.

    Raises:
        ValueError: while it is iterated, naming the place, for a sequence, label or length that
            cannot be used.
    """

    path: str
    tokenizer: DNATokenizer
    target: TaskTarget
    columns: Columns
    window: int | None
    stride: int | None
    limits: LengthLimits
    source: SequenceInput | None = None

    def __iter__(self) -> Iterator[Query]:
        for number, (where, name, ids, label) in enumerate(self._records()):
            for start, end in window_bounds(len(ids), self.window, self.stride):
                self.limits.check(where, len(ids), end - start)
                yield Query(name, start, end, ids[start:end], label, number)

    def _records(self) -> Iterator[tuple[str, str, ndarray, Label]]:
        """Place for messages, name, token ids (L,) and label of each record."""
        path = self.path
        if self.source is None and is_table(path):
            yield from self._rows()
        elif self.columns != Columns():
            raise ValueError(
                f"input {path} is FASTA, and sequence_column, name_column and label_column are of "
                "tables; give a table, or leave them out"
            )
        elif self.source is None:
            for record in iter_sequences(path):
                where = f"{path}: record {record.name}"
                ids = encoded(self.tokenizer, record.sequence, where)
                yield where, record.name, ids, UNLABELED
        else:
            for name, ids in zip(self.source.names, self.source.windows(self.source.whole())):
                yield f"{path}: {name}", name, ids, UNLABELED

    def _rows(self) -> Iterator[tuple[str, str, ndarray, Label]]:
        """The rows of a table, see `dnadiff.supervised.labeled.filled_rows`."""
        columns = self.columns
        names = columns.label or ()
        labels = label_keys("label_column", names)
        named = {} if columns.name is None else {"name_column": columns.name}
        wanted = {"sequence_column": columns.sequence, **named, **labels}
        rows = filled_rows(self.path, wanted, labels if self.target.can_be_missing else ())
        for number, where, (letters, *cells) in rows:
            name = cells.pop(0) if named else str(number)
            refuse_controls(where, name)
            ids = encoded(self.tokenizer, letters, where)
            yield where, name, ids, self.target.parse(cells, where, names) if cells else UNLABELED


def window_bounds(
    length: int, window: int | None, stride: int | None = None
) -> Iterator[tuple[int, int]]:
    """Start and end of the windows of a sequence.

    They start at multiples of `stride` (None: `window`); a last one that ends with the sequence
    covers the rest. A sequence that is not longer than `window` is one window; so is any sequence
    if `window` is None.
    """
    if window is None or length <= window:
        yield 0, length
        return
    start = 0
    for start in range(0, length - window + 1, stride or window):
        yield start, start + window
    if start + window < length:
        yield length - window, length


@dataclass(frozen=True)
class PredictionTable:
    """Columns and rows of a table of predictions, tab-separated.

    `chrom`, `start`, `end` and `strand` in the genome if there are `regions`, `name`, with windows
    `start` and `end` in the record otherwise (0-based, half-open), `length`, and the columns of the
    target. Those of classes are `predicted`, `p_CLASS` averaged over the seeds, `spread`, with
    labels `label`, and with `per_seed` the natural logarithm `log_p_CLASS_seed_N` for each seed.
    """

    target: TaskTarget
    seeds: Sequence[int]
    windows: bool
    labels: bool
    per_seed: bool
    regions: Sequence[Region] | None = None

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        in_record = ["start", "end"] if self.windows else []
        place = ["name", *in_record] if self.regions is None else [*_GENOMIC, "name"]
        label = self.target.label_columns if self.labels else []
        return [
            *place,
            "length",
            *self.target.columns,
            *label,
            *(self.of_seeds if self.per_seed else []),
        ]

    @property
    def of_seeds(self) -> list[str]:
        """The columns of the seeds, those of one seed after those of another."""
        return [column for seed in self.seeds for column in self.target.seed_columns(seed)]

    def rows(self, queries: Sequence[Query], found: Predicted) -> bytes:
        """The lines of some queries."""
        lines = []
        for i, (query, cells) in enumerate(zip(queries, found.rows())):
            place = [query.name, *([query.start, query.end] if self.windows else [])]
            if self.regions is not None:
                part = self.regions[query.record].part(query.start, query.end)
                place = [*(getattr(part, key) for key in _GENOMIC), query.name]
            place.append(query.end - query.start)
            label = self.target.label_cells(query.label) if self.labels else []
            seeds = [str(x) for x in found.each_seed[:, i].ravel()] if self.per_seed else []
            lines.append([*place, *cells, *label, *seeds])
        return _lines(lines)

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """The rows of a file, by column."""
        with open_text(path) as text:
            yield from csv.DictReader(text, delimiter="\t")

    def write_parquet(self, source: Path, target: Path) -> None:
        """Write the rows of a file as Parquet."""
        text = {"name", "chrom", "strand"} | self.target.text_columns
        types = {
            name: "string" if name in text else "int64" if name in NUMBERS else "float64"
            for name in self.columns
        }
        rows = (
            # a text would be one of the classes
            row | {"predicted": None} if row.get("predicted") == "nan" else row
            for row in self.read(source)
        )
        write_parquet(rows, target, types)

    def write_track(
        self, source: Path, target: Path, name: str, lengths: Mapping[str, int]
    ) -> None:
        """Write the probability of a class, or the values of a target, as bedGraph or bigWig; where
        windows overlap, the mean over those that cover a base. `lengths` are of all records."""
        column = self.target.track_column(name)
        of_record = defaultdict[str, Any](lambda: array("d"))
        for row in self.read(source):
            place = (row.get("start", 0), row["end" if "end" in row else "length"], row[column])
            of_record[row.get("chrom") or chrom_of(row["name"])].extend(map(float, place))

        def along(values: Any) -> Iterator[tuple[int, int, float]]:
            found = np.frombuffer(values).reshape(-1, 3)
            start, end, value = found[~np.isnan(found).any(1)].T
            return mean_coverage(start.astype(int), end.astype(int), value)

        known = (record for record in lengths if record in of_record)
        write_track(target, lengths, ((record, along(of_record[record])) for record in known))

    def metrics(self, source: Path, count: int) -> JsonDict:
        """`each_seed`: the metrics of the seeds with their mean, as `finetune` reports them;
        `averaged`: of the averaged predictions.

        Windows of one record overlap or are related: intervals are over records, with all their
        windows. Rows without a prediction are left out.
        """
        target = self.target
        parsed = []
        records = np.zeros(count, np.int64)  # the number of each row's record
        predictions = np.zeros((len(self.seeds), count, target.num_outputs), np.float32)
        names = target.label_columns
        for i, row in enumerate(self.read(source)):
            records[i] = records[max(i - 1, 0)] + (not self.windows or row["start"] == "0")
            cells = [row[name] for name in names]
            parsed.append(target.parse(cells, f"{source}: row {i + 1}", names))
            of_seeds = np.array([float(row[name]) for name in self.of_seeds])
            predictions[:, i] = of_seeds.reshape(len(self.seeds), -1)
        known = ~np.isnan(predictions).any((0, 2))
        records = records[known]
        predictions = predictions[:, known]
        count = int(known.sum())
        groups = len(np.unique(records))
        if MIN_BLOCKS > groups < count:  # windows of few records
            log.warning(
                f"{source}: windows of {groups} records, and intervals expect {MIN_BLOCKS} or "
                "more; metrics have no intervals"
            )
        labels = target.as_array(parsed)[known]
        combined = target.predicted(predictions).combined
        runs = {
            "each_seed": [target.scored(one.astype(np.float64), labels) for one in predictions],
            "averaged": [target.scored(combined, labels)],
        }
        return {
            name: summarize_metrics(
                each,
                target.metrics,
                records if groups < count else None,  # None: every record is one window
            )
            for name, each in runs.items()
        }


def chrom_of(name: str) -> str:
    """The name of a record in a track, which has no white space."""
    return "_".join(name.split())


def _lines(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@dataclass(eq=False)
class PredictJob(ResumableJob):
    """The predictions of all queries of a file. Items are queries.

    Args:
        predictions: the columns of the table.
        batch_size: None is that of the task's test items.
        track, track_class: a bedGraph or bigWig file of a class or target; None for none.
        settings: of the input that the rows depend on.
        inputs: what was asked for, for the JSON file.
    """

    stream = "rows"
    label = "predict"
    items = "predictions"
    model: ClassifierEnsemble
    source: SequenceFile
    predictions: PredictionTable
    output: Path
    batch_size: int | None
    track: Path | None
    track_class: str | None
    settings: JsonMap
    inputs: JsonMap

    def __post_init__(self) -> None:
        super().__init__()
        placed = self.source.source
        self.settings = {
            **(
                {"input": hash_file(resolve(self.source.path))}
                if placed is None
                else placed.identity
            ),
            "networks": [member.sha256 for member in self.model.members],
            **self.settings,
            "batch_size": self.batch_size or self.model.batch_size,
            "device": self.model.device.type,
        }
        self.side_files = () if self.track is None else (self.track,)
        self.converts = self.output.name.lower().endswith(PARQUET)
        self.count = self.unknown = 0
        self.metrics: Json = None

    @property
    def total(self) -> int:
        return self.count

    def starts(self) -> list[int]:
        return self.starts_of(chunks(self.source))

    def check(self, first: int = 0, last: int | None = None) -> None:
        """Read everything that will be classified once.

        Raises:
            ValueError: for input that cannot be classified, or, with a track, for records of one
                name, whose intervals would overlap.
        """
        self.count = self.unknown = longest = 0
        self.lengths: dict[str, int] = {}  # of the records of a track
        for query in itertools.islice(self.source, first, last):
            self.count, longest = self.count + 1, max(longest, len(query.ids))
            self.unknown += query.is_unknown
            if self.track is None or self.predictions.regions is not None:
                continue
            chrom = chrom_of(query.name)
            if query.start == 0 and chrom in self.lengths:
                raise ValueError(
                    f"{self.source.path} has several records of the name {chrom}, which would "
                    "overlap in the track; set name_column to a column of distinct names, "
                    "leave name_column out to number the rows, or leave track out"
                )
            self.lengths[chrom] = query.end
        if last is None and longest > 4 * self.model.longest and not self.predictions.windows:
            log.warning(
                f"the longest sequence has {longest:,} bases, and the task {self.model.longest:,}; "
                f"window={self.model.longest} cuts it into windows"
            )

    def begin(self) -> None:
        model = self.model
        log.info(
            f"model: {model.path}, {model.target.summary}, seeds "
            f"{', '.join(map(str, model.seeds))}; {self.count:,} predictions"
        )
        if self.unknown:
            what = "windows" if self.predictions.windows else "sequences"
            log.warning(f"{self.unknown:,} of {self.count:,} {what} {NO_PREDICTION}")

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for chunk in chunks(self.source, start + skip):
            found = self.model.classify(chunk, self.batch_size, self.source.source)
            bases = sum(len(query.ids) for query in chunk)
            self.report(len(chunk), len(self.model.seeds) * bases)
            about = {"predicted": found.tally()}
            yield Result(len(chunk), self.predictions.rows(chunk, found), about)

    def header(self) -> bytes:
        return _lines([self.predictions.columns])

    def fold(self, result: Result) -> tuple[bytes, int]:
        predicted: Counter[str] = Counter(
            self.totals.get("predicted")
        )  # sums may be of numbers, not counts
        predicted.update(result.about["predicted"])
        self.totals = {"predicted": dict(predicted)}
        return super().fold(result)

    def convert(self, collected: Path) -> None:
        self.predictions.write_parquet(collected, self.output)

    @property
    def _tally(self) -> dict[str, float]:
        found = self.totals.get("predicted", {})
        return {name: found.get(name, 0) for name in self.model.classes}

    def finish(self, collected: Path) -> JsonDict:
        model = self.model
        predictions = self.predictions
        if self.track is not None and self.track_class is not None:
            source = self.source.source
            lengths = self.lengths
            if source is not None and predictions.regions is not None:
                lengths = source.genome.lengths
            predictions.write_track(collected, self.track, self.track_class, lengths)
        if predictions.labels and self.unknown < self.count:
            self.metrics = predictions.metrics(collected, self.count)
        return {
            "checkpoint": str(model.path),
            "task": model.task,
            "classes": model.classes,
            "seeds": model.seeds,
            "head_inputs": asdict(model.head_inputs),
            "predictions": self.count,
            "without_known_base": self.unknown,
            "predicted": self._tally,
            "metrics": self.metrics,
            "columns": predictions.columns,
            "inputs": self.inputs,
        }

    def found_complete(self) -> None:
        """ValueError if the run that completed the table did not write the track of this one, or
        the track is missing."""
        known = read_json(json_path(self.output))["inputs"]
        if self.track is not None and not (
            self.track.is_file()
            and known.get("track_class") == self.track_class
            and expand_user(known["track"]).resolve() == self.track.resolve()
        ):
            raise ValueError(
                f"{self.output} is complete, but the track {self.inputs['track']} is missing or of "
                "another class or run: start over with overwrite=true, without resume"
            )

    def closing(self, seconds: float) -> str:
        target = self.model.target
        predicted = self.count - self.unknown or math.nan
        shown = [table(target.summary_rows(self._tally, predicted), target.tally_header)]
        if self.metrics is not None:
            rows: list[tuple[str, ...]] = []
            for name in (target.primary, *target.shown):
                cells = (
                    text
                    for found in self.metrics.values()
                    for text in (
                        _number(found[name]["value"]),
                        interval_text(found[name], "{:.4f}"),
                    )
                )
                rows.append((title(name), *cells))
            columns = ("mean of the seeds", "95 % interval", target.averaged_name, "95 % interval")
            shown += ["", table(rows, ("metric", *columns))]
        track = "" if self.track is None else f" and {self.inputs['track']}"
        return "\n".join([*shown, super().closing(seconds) + track])


def _number(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.4f}"  # where a class has no items
