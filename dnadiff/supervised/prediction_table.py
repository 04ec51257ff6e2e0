"""The table that `python -m dnadiff.predict` writes, and what is made from it: a parquet file, a
track, and metrics."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
from typing_extensions import override

from dnadiff.bootstrap import MIN_BLOCKS
from dnadiff.config import Json
from dnadiff.data.work import Result, Work
from dnadiff.store.disk import atomic_write
from dnadiff.supervised.ensemble import ClassifierEnsemble, Query, SequenceFile, chunks
from dnadiff.supervised.intervals import summarize_metrics
from dnadiff.supervised.metrics import ScoredValues, metric_values
from dnadiff.supervised.targets.base import Predicted, TaskTarget

log = logging.getLogger("dnadiff")


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
class PredictionWork(Work):
    """The predictions of all queries of a file. Items are queries.

    Attributes:
        batch_size: None is that of the task's test items.
        check_queries: checks the queries `first` to `last` (left out).
    """

    model: ClassifierEnsemble
    source: SequenceFile
    table: PredictionTable
    batch_size: int | None
    check_queries: Callable[[int, int], object]

    unit = "chunks of 8 million bases"

    @override
    def starts(self) -> list[int]:
        return list(accumulate(map(len, chunks(self.source)), initial=0))

    @override
    def check(self, first: int, last: int) -> None:
        self.check_queries(first, last)

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
            yield Result(len(chunk), self.table.rows(chunk, found), {"predicted": found.tally()})
