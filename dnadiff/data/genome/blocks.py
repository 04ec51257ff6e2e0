"""Splits by position: alternating blocks with guards, and the published windows of HyenaDNA and
Caduceus, which leak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff import checks
from dnadiff.checks import Natural, PositiveInt, Range
from dnadiff.data.intervals import Interval, Intervals
from dnadiff.data.splits import PARTS, Leak, Parts, Split, drop_empty, read_parts
from dnadiff.data.tiles import Tiling


class BlockSplit(Split):
    """Divides every record into blocks; of each `period` blocks one is for test and one for
    validation.

    Where parts meet, `guard` bases belong to no part. They are removed from training next to
    validation and test, and from validation next to test.

    Args:
        block: bases in a block.
        period: number of blocks after which the pattern repeats.
        test: index of the test block in a period.
        valid: index of the validation block.
        guard: bases that are left out at a border.
    """

    def __init__(
        self,
        block: PositiveInt = 1_000_000,
        period: Annotated[int, Range(3)] = 10,
        test: Natural = 9,
        valid: Natural = 8,
        guard: Natural = 2048,
    ) -> None:
        if block < 1 or guard < 0 or 2 * guard >= block:
            raise ValueError(
                f"data.split.block is {block} and data.split.guard {guard}; a block must be longer "
                "than two guards"
            )
        if not (0 <= test < period and 0 <= valid < period) or test == valid:
            raise ValueError(
                f"data.split.test is {test} and data.split.valid {valid}; expected two different "
                f"blocks of 0..{period - 1}"
            )
        self.block, self.period, self.test, self.valid, self.guard = (
            block,
            period,
            test,
            valid,
            guard,
        )

    @override
    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> Parts:
        parts: dict[str, list[Interval]] = {part: [] for part in PARTS}
        for record, length in enumerate(lengths):
            runs = self._runs(length)
            for number, (part, start, end) in enumerate(runs):
                before = runs[number - 1][0] if number else part
                after = runs[number + 1][0] if number + 1 < len(runs) else part
                start += self.guard if PARTS.index(part) < PARTS.index(before) else 0
                end -= self.guard if PARTS.index(part) < PARTS.index(after) else 0
                parts[part].append(Interval(record, start, end))
        return drop_empty({part: Intervals.of(many) for part, many in parts.items()})

    def _runs(self, length: int) -> list[tuple[str, int, int]]:
        """Part, start and end of the runs of blocks of the same part in a record."""
        part_of = {self.test: "test", self.valid: "valid"}
        runs: list[tuple[str, int, int]] = []
        for index in range(-(-length // self.block)):
            part, start = part_of.get(index % self.period, "train"), index * self.block
            if runs and runs[-1][0] == part:
                start = runs.pop()[1]
            runs.append((part, start, min((index + 1) * self.block, length)))
        return runs

    @override
    def describe(self) -> str:
        return (
            f"blocks of {self.block:,} (index mod {self.period}: test {self.test}, valid "
            f"{self.valid}; guards of {self.guard:,})"
        )


class CaduceusSplit(Split):
    """The published windows: each interval of a BED file is extended to 2^20 bases from its start,
    across the borders of parts.

    Only for comparison with published numbers: training windows overlap held-out intervals, and
    `leak` counts them. Source: HG38Dataset of HyenaDNA and of Caduceus (arXiv 2403.03234), which
    discards the ends in the file. An extended interval that would leave its record ends with the
    record; the published loader repeats the last window of the record instead.

    Args:
        bed: `human-sequences.bed`: chrom, start, end and train, valid or test.
        stretch: length of each extended interval.
    """

    def __init__(self, bed: str | Path, stretch: int = 2**20) -> None:
        self.bed: str = str(bed)
        self.stretch = checks.integer("data.split.stretch", stretch)

    @override
    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> Parts:
        return self._both(names, lengths)[0]

    @override
    def leak(self, names: Sequence[str], lengths: Sequence[int], length: int) -> Leak:
        extended, written = self._both(names, lengths)
        train = Tiling([i for i in extended["train"] if i.end - i.start >= length], length)
        record, start, _ = train.at(np.arange(len(train)))
        as_evaluated, as_written = (
            int(overlapping(record, start, start + length, [*parts["valid"], *parts["test"]]).sum())
            for parts in (extended, written)
        )
        shares = [round(count / max(len(train), 1), 4) for count in (as_evaluated, as_written)]
        return Leak(
            windows=len(train),
            as_evaluated=as_evaluated,
            as_written=as_written,
            share_as_evaluated=shares[0],
            share_as_written=shares[1],
        )

    @override
    def describe(self) -> str:
        return (
            f"caduceus ({Path(self.bed).name}, stretched to {self.stretch:,}; leaks: for "
            "comparison with published numbers only)"
        )

    def _both(self, names: Sequence[str], lengths: Sequence[int]) -> tuple[Parts, Parts]:
        """The intervals of each part, extended and as in the file."""
        number_of = {name: number for number, name in enumerate(names)}
        extended: Parts = {}
        written: Parts = {}
        for part, regions in read_parts(self.bed, dict(zip(names, lengths))).items():
            written[part] = sorted(Interval(number_of[r.chrom], r.start, r.end) for r in regions)
            extended[part] = sorted(
                i._replace(end=min(i.start + self.stretch, lengths[i.record]))
                for i in written[part]
            )
        return extended, written


def overlapping(
    record: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    intervals: Sequence[Interval],
) -> NDArray[np.bool_]:
    """Which of the windows `[start, end)` share a base with some interval: `(B,)` bool."""
    found = np.zeros(len(record), dtype=bool)
    by_record: dict[int, list[Interval]] = {}
    for interval in sorted(intervals):
        by_record.setdefault(interval.record, []).append(interval)
    for number, many in by_record.items():
        starts, ends = (
            np.array([i.start for i in many]),
            np.maximum.accumulate([i.end for i in many]),
        )
        rows = np.flatnonzero(record == number)
        place = np.searchsorted(
            starts, end[rows], "left"
        )  # the intervals before it begin before the window ends
        found[rows] = (place > 0) & (ends[place - 1] > start[rows])
    return found
