"""The table that `python -m dnadiff.predict` writes, and what is made from it: a parquet file, a
track, and metrics."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
from typing_extensions import override

from dnadiff.diffusion.bootstrap import MIN_BLOCKS
from dnadiff.fields import Json
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.jobs.journal import json_path, sha256
from dnadiff.progress import table
from dnadiff.store.address import expand_user
from dnadiff.store.disk import atomic_write, read_json
from dnadiff.store.files import resolve
from dnadiff.supervised.ensemble import ClassifierEnsemble, Query, SequenceFile, chunks
from dnadiff.supervised.intervals import summarize_metrics
from dnadiff.supervised.metrics import ScoredValues, metric_values, title
from dnadiff.supervised.targets.base import Predicted, TaskTarget

log = logging.getLogger("dnadiff")
PARQUET = ".parquet"


NUMBERS = {"start": int, "end": int, "length": int}
_ROW_GROUP = 1 << 16
_MAX_SPANS = 1 << 22
_MAX_INTERVALS = 100_000  # items: with more, the bootstrap takes long, and its intervals are narrow


@dataclass(frozen=True)
class PredictionTable:
    """Columns and rows of a table of predictions, tab-separated.

    `name`, with windows `start` and `end` (0-based, half-open), `length`, and the columns of the
    target. Those of classes are `predicted`, `p_CLASS` averaged over the seeds, `spread`, with
    labels `label`, and with `per_seed` the natural logarithm `log_p_CLASS_seed_N` for each seed.
    """

    target: TaskTarget
    seeds: Sequence[int]
    windows: bool
    labels: bool
    per_seed: bool

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        place = ["name", *(["start", "end"] if self.windows else []), "length"]
        label = self.target.label_columns if self.labels else []
        return [*place, *self.target.columns, *label, *(self.of_seeds if self.per_seed else [])]

    @property
    def of_seeds(self) -> list[str]:
        """The columns of the seeds, those of one seed after those of another."""
        return [column for seed in self.seeds for column in self.target.seed_columns(seed)]

    def header(self) -> bytes:
        """The first line."""
        return _lines([self.columns])

    def rows(self, queries: Sequence[Query], found: Predicted) -> bytes:
        """The lines of some queries."""
        lines = []
        for i, (query, cells) in enumerate(zip(queries, found.rows())):
            place = [
                query.name,
                *([query.start, query.end] if self.windows else []),
                query.end - query.start,
            ]
            label = self.target.label_cells(query.label) if self.labels else []
            seeds = [str(x) for x in found.each_seed[:, i].ravel()] if self.per_seed else []
            lines.append([*place, *cells, *label, *seeds])
        return _lines(lines)

    def read(self, path: Path) -> Iterator[dict[str, str]]:
        """The rows of a file, by column."""
        is_gzip = path.name.removesuffix(".part").lower().endswith(".gz")
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as content:
            rows = csv.reader(
                io.TextIOWrapper(content, encoding="utf-8", newline=""), delimiter="\t"
            )
            next(rows, None)
            for cells in rows:
                yield dict(zip(self.columns, cells))

    def write_parquet(self, source: Path, target: Path) -> None:
        """Write the rows of a file as parquet, some thousand at a time."""
        import pyarrow
        import pyarrow.parquet

        text = {"name"} | self.target.text_columns
        kinds = {
            name: pyarrow.string()
            if name in text
            else pyarrow.int64()
            if name in NUMBERS
            else pyarrow.float64()
            for name in self.columns
        }
        schema = pyarrow.schema(list(kinds.items()))
        convert = {name: str if name in text else NUMBERS.get(name, float) for name in self.columns}
        rows = self.read(source)
        with (
            atomic_write(target, overwrite=True) as file,
            pyarrow.parquet.ParquetWriter(file, schema) as writer,
        ):
            while group := list(itertools.islice(rows, _ROW_GROUP)):
                columns = {
                    name: [convert[name](row[name]) for row in group] for name in self.columns
                }
                writer.write_table(pyarrow.table(columns, schema=schema))

    def write_track(self, source: Path, target: Path, name: str) -> None:
        """Write the probability of a class, or the values of a target, as bedGraph; where windows
        overlap, the mean over those that cover a base."""
        column = self.target.track_column(name)
        with atomic_write(target, overwrite=True) as file:
            for record, rows in itertools.groupby(self.read(source), key=lambda row: row["name"]):
                places = [
                    (row["start"], row["end"], row[column])
                    if self.windows
                    else ("0", row["length"], row[column])
                    for row in rows
                ]
                start, end = (np.array([int(place[i]) for place in places]) for i in (0, 1))
                chrom = chrom_of(record)
                for first, last, value in mean_coverage(
                    start, end, np.array([float(place[2]) for place in places])
                ):
                    file.write(f"{chrom}\t{first}\t{last}\t{value:.6g}\n".encode())

    def metrics(self, source: Path, count: int) -> dict[str, Json]:
        """`each_seed`: the metrics of the seeds with their mean, as `finetune` reports them;
        `averaged`: of the averaged predictions.

        Windows of one record overlap or are related: the bootstrap draws records, with all their
        windows.
        """
        records = np.zeros(count, np.int64)  # the number of each row's record
        parsed, predictions = (
            [],
            np.zeros((len(self.seeds), count, self.target.num_outputs), np.float32),
        )
        names = self.target.label_columns
        for i, row in enumerate(self.read(source)):
            records[i] = records[max(i - 1, 0)] + (not self.windows or row["start"] == "0")
            parsed.append(
                self.target.parse([row[name] for name in names], f"{source}: row {i + 1}", names)
            )
            predictions[:, i] = np.array([float(row[name]) for name in self.of_seeds]).reshape(
                len(self.seeds), -1
            )
        labels = self.target.as_array(parsed)
        runs = {
            "each_seed": [self.target.scored(one.astype(np.float64), labels) for one in predictions]
        }
        runs["averaged"] = [self.target.scored(self.target.predicted(predictions).combined, labels)]
        groups = records if records[-1] < count else None  # None: every record is one window
        if has_few := groups is not None and records[-1] < MIN_BLOCKS:
            log.warning(
                f"{source}: windows of {records[-1]} records, and intervals expect {MIN_BLOCKS} or "
                "more; metrics have no intervals"
            )
        return {
            name: summary(each, self.target, groups, not has_few) for name, each in runs.items()
        }


def summary(
    runs: Sequence[ScoredValues],
    target: TaskTarget,
    groups: np.ndarray | None = None,
    intervals: bool = True,
) -> dict[str, Json]:
    """`dnadiff.supervised.intervals.summarize_metrics`, without intervals for very many
    items; `groups` are drawn together."""
    if intervals and len(runs[0].labels) <= _MAX_INTERVALS:
        return summarize_metrics(runs, target.metrics, groups=groups)
    each = [metric_values(run, target.metrics) for run in runs]
    return {
        name: {
            "value": float(np.mean([m[name] for m in each])),
            "per_seed": [m[name] for m in each],
        }
        for name in each[0]
    }


def mean_coverage(
    start: np.ndarray, end: np.ndarray, value: np.ndarray
) -> Iterator[tuple[int, int, float]]:
    """Disjoint intervals, ascending, each with the mean value (W,) of the intervals `start` to
    `end` (W,) that cover it."""
    edges = np.unique(np.concatenate([start, end]))
    first, last = np.searchsorted(edges, start), np.searchsorted(edges, end)
    total, count = np.zeros((2, len(edges)))
    spans = last - first  # intervals between edges that each window covers
    for part in _parts(spans, _MAX_SPANS):
        before = np.cumsum(spans[part]) - spans[part]
        place = np.repeat(first[part] - before, spans[part]) + np.arange(spans[part].sum())
        low, high = int(place.min()), int(place.max()) + 1
        # Sums of the values themselves: differences of running sums would leave rounding errors
        # that exceed small probabilities.
        total[low:high] += np.bincount(place - low, np.repeat(value[part], spans[part]))
        count[low:high] += np.bincount(place - low)
    for i in np.flatnonzero(count):
        yield int(edges[i]), int(edges[i + 1]), float(total[i] / count[i])


def _parts(sizes: np.ndarray, largest: int) -> Iterator[slice]:
    """Slices of consecutive items whose sizes, all above 0, sum to at most `largest`, or of a
    single item."""
    start, ends = 0, np.cumsum(sizes)
    while start < len(sizes):
        end = max(
            start + 1,
            int(np.searchsorted(ends, (ends[start - 1] if start else 0) + largest, side="right")),
        )
        yield slice(start, end)
        start = end


def chrom_of(name: str) -> str:
    """The name of a record in a track, which has no white space."""
    return "_".join(name.split())


def _lines(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@dataclass
class PredictJob(ResumableJob):
    """The predictions of all queries of a file. Items are queries.

    Args:
        predictions: the columns of the table.
        batch_size: None is that of the task's test items.
        track, track_class: a bedGraph file of a class or target; None for none.
        settings: of the input that the rows depend on.
        inputs: what was asked for, for the JSON file.
    """

    stream, label, items = "rows", "predict", "predictions"

    def __init__(
        self,
        model: ClassifierEnsemble,
        source: SequenceFile,
        predictions: PredictionTable,
        output: Path,
        *,
        batch_size: int | None,
        track: Path | None,
        track_class: str | None,
        settings: Mapping[str, Json],
        inputs: Mapping[str, Json],
    ) -> None:
        super().__init__()
        self.model, self.source, self.predictions, self.output = model, source, predictions, output
        self.batch_size, self.track, self.track_class = batch_size, track, track_class
        self.settings = {
            "input": sha256(resolve(source.path)),
            "networks": [member.sha256 for member in model.members],
            **settings,
            "batch_size": batch_size or model.batch_size,
            "device": model.device.type,
        }
        self.inputs, self.side_files = inputs, () if track is None else (track,)
        self.converts = output.name.lower().endswith(PARQUET)
        self.predicted: Counter[str] = Counter()  # sums may be of numbers that are not counts
        self.count = 0
        self.metrics: Json = None

    @property
    @override
    def total(self) -> int:
        return self.count

    @override
    def starts(self) -> list[int]:
        return list(accumulate(map(len, chunks(self.source)), initial=0))

    @override
    def check(self, first: int = 0, last: int | None = None) -> None:
        """Read everything that will be classified once.

        Raises:
            ValueError: for input that cannot be classified, or, with a track, for records of one
                name, whose intervals would overlap.
        """
        self.count, longest = 0, 0
        names = set()
        for query in islice(self.source, first, last):
            self.count, longest = self.count + 1, max(longest, len(query.ids))
            if self.track is not None and query.start == 0:
                if (chrom := chrom_of(query.name)) in names:
                    raise ValueError(
                        f"{self.source.path} has several records of the name {chrom}, which would "
                        "overlap in the track; set name_column to a column of distinct names, "
                        "leave name_column out to number the rows, or leave track out"
                    )
                names.add(chrom)
        if last is None and longest > 4 * self.model.longest and not self.predictions.windows:
            log.warning(
                f"the longest sequence has {longest:,} bases, and the task {self.model.longest:,}; "
                f"window={self.model.longest} cuts it into windows"
            )

    @override
    def begin(self) -> None:
        model = self.model
        log.info(
            f"model: {model.path}, {model.target.summary}, seeds "
            f"{', '.join(map(str, model.seeds))}; {self.count:,} predictions"
        )

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for chunk in chunks(self.source, start + skip):
            seeds = len(self.model.seeds)
            done = iter([0] * (seeds - 1) + [len(chunk)])  # the last seed completes the chunk
            found = self.model.classify(
                chunk,
                self.batch_size,
                partial(lambda done, tokens: self.report(next(done), tokens), done),
            )
            about = {"predicted": found.tally()}
            yield Result(len(chunk), self.predictions.rows(chunk, found), about)

    @override
    def resume(self, done: int, notes: Mapping[str, Json]) -> None:
        super().resume(done, notes)
        self.predicted = Counter(notes.get("predicted"))

    @override
    def header(self) -> bytes:
        return self.predictions.header()

    @override
    def fold(self, result: Result) -> tuple[bytes, int]:
        self.predicted.update(result.about["predicted"])
        self.totals = {"predicted": dict(self.predicted)}
        return super().fold(result)

    @override
    def convert(self, collected: Path) -> None:
        self.predictions.write_parquet(collected, self.output)

    @override
    def finish(self, collected: Path) -> dict[str, Json]:
        model, predictions = self.model, self.predictions
        if self.track is not None and self.track_class is not None:
            predictions.write_track(collected, self.track, self.track_class)
        if predictions.labels:
            self.metrics = predictions.metrics(collected, self.count)
        return {
            "checkpoint": str(model.path),
            "task": model.task,
            "classes": model.classes,
            "seeds": model.seeds,
            "head_inputs": asdict(model.head_inputs),
            "predictions": self.count,
            "predicted": {name: self.predicted.get(name, 0) for name in model.classes},
            "metrics": self.metrics,
            "columns": predictions.columns,
            "inputs": self.inputs,
        }

    @override
    def side_file(self, head: Mapping[str, Json], content: Mapping[str, Json]) -> Json:
        about = {"file": head["file"], **content, "settings": self.settings}
        return {**about, "sha256": head["sha256"]}

    @override
    def found_complete(self) -> None:
        """ValueError if the run that completed the table did not write the track of this one, or
        the track is missing."""
        if self.track is None:
            return
        known = read_json(json_path(self.output), ("inputs",))["inputs"]
        same = (
            isinstance(known, Mapping)
            and known.get("track") is not None
            and known.get("track_class") == self.track_class
            and self.track.is_file()
            and expand_user(known["track"]).resolve() == self.track.resolve()
        )
        if not same:
            raise ValueError(
                f"{self.output} is complete, but the track {self.inputs['track']} is missing or of "
                "another class or run: start over with overwrite=true, without resume"
            )

    @override
    def closing(self, seconds: float) -> str:
        target = self.model.target
        kind = target.predicted_kind
        predicted = {name: self.predicted.get(name, 0) for name in self.model.classes}
        shown = [table(kind.summary_rows(predicted, self.count), kind.tally_header)]
        if self.metrics is not None:
            rows: list[tuple[str, ...]] = []
            for name in (target.primary, *target.shown):
                found = (self.metrics["each_seed"][name], self.metrics["averaged"][name])
                cells = (text for each in found for text in (_number(each["value"]), _range(each)))
                rows.append((title(name), *cells))
            columns = ("mean of the seeds", "95 % interval", kind.averaged_name, "95 % interval")
            shown += ["", table(rows, ("metric", *columns))]
        track = "" if self.track is None else f" and {self.inputs['track']}"
        return "\n".join([*shown, super().closing(seconds) + track])


def _range(found: Mapping[str, float]) -> str:
    return f"{_number(found['low'])} .. {_number(found['high'])}" if "low" in found else "-"


def _number(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.4f}"  # where a class has no items
