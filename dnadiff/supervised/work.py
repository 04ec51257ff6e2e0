"""Predictions of sequences as lines of a table, in units that do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from typing_extensions import override

from dnadiff.data.work import Result, Work
from dnadiff.supervised.ensemble import ClassifierEnsemble
from dnadiff.supervised.prediction_table import PredictionTable
from dnadiff.supervised.sequences import SequenceFile, chunks


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
