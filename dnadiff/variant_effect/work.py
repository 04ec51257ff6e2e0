"""Rows of variants with their effects as bytes of an output, in units that do not depend on each
other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from typing_extensions import override

from dnadiff.data.work import Result, Work
from dnadiff.variant_effect.effects import RowScorer, first_rows
from dnadiff.variant_effect.sources import SomeRows, VariantSource
from dnadiff.variant_effect.summary import InputSummary
from dnadiff.variant_effect.writers import Writer


@dataclass
class VariantWork(Work):
    """The effects of all rows of a source. Items are rows.

    Attributes:
        summarized: checks the rows of a source (`dnadiff.variant_effect.summary.summarize`).
    """

    scorer: RowScorer
    source: VariantSource
    writer: Writer
    summarized: Callable[[VariantSource], InputSummary]

    unit = "blocks of at least 1,024 alleles"

    @override
    def starts(self) -> list[int]:
        return list(first_rows(self.source.num_alleles(), self.scorer.alleles_together))

    @override
    def check(self, first: int, last: int) -> None:
        self.summarized(SomeRows(self.source, first, last))

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for chunk in self.scorer.chunks(self.source.between(start), skip):
            content, (audit, missing) = self.writer.rows(chunk), self.scorer.take_counts()
            self.report(len(chunk), 0)
            yield Result(len(chunk), content, {"audit": audit.values, "missing": missing})
