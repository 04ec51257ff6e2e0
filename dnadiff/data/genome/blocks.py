"""Splits by position: alternating blocks with guards, and the published windows of HyenaDNA and Caduceus, which leak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dnadiff.data.genome.regions import read_bed
from dnadiff.data.splits import PARTS, Interval, drop_empty
from dnadiff.data.tiles import Tiling


class BlockSplit:
    """Blocks of every record by turns: of each `period` blocks one is for test and one for validation.

    Where parts meet, a guard of bases belongs to neither: training gives way to validation and test, validation to test.

    Args:
        block: bases in a block.
        period: blocks after which the pattern repeats.
        test: index of the test block in a period.
        valid: index of the validation block.
        guard: bases left out at a border.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, block: int = 1_000_000, period: int = 10, test: int = 9, valid: int = 8, guard: int = 2048) -> None:
        if block < 1 or guard < 0 or 2 * guard >= block:
            raise ValueError(f"split.block is {block} and split.guard {guard}; a block must be longer than two guards")
        if not (0 <= test < period and 0 <= valid < period) or test == valid:
            raise ValueError(f"split.test is {test} and split.valid {valid}; expected two different blocks of 0..{period - 1}")
        self.block, self.period, self.test, self.valid, self.guard = block, period, test, valid, guard

    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, list[Interval]]:
        """Intervals of each part; neighbouring blocks of one part are one interval."""
        parts: dict[str, list[Interval]] = {part: [] for part in PARTS}
        for record, length in enumerate(lengths):
            stretches = []  # (part, start, end)
            for index in range(-(-length // self.block)):
                part = {self.test: "test", self.valid: "valid"}.get(index % self.period, "train")
                end = min((index + 1) * self.block, length)
                if stretches and stretches[-1][0] == part:
                    stretches[-1] = (part, stretches[-1][1], end)
                else:
                    stretches.append((part, index * self.block, end))
            for number, (part, start, end) in enumerate(stretches):
                before = stretches[number - 1][0] if number else None
                after = stretches[number + 1][0] if number + 1 < len(stretches) else None
                start += self.guard if before and PARTS.index(part) < PARTS.index(before) else 0
                end -= self.guard if after and PARTS.index(part) < PARTS.index(after) else 0
                parts[part].append(Interval(record, start, end))
        return drop_empty(parts)

    def describe(self) -> str:
        """The policy in a few words."""
        return f"blocks of {self.block:,} (index mod {self.period}: test {self.test}, valid {self.valid}; guards of {self.guard:,})"


class CaduceusSplit:
    """The published windows: each interval of a BED is stretched to 2^20 bases from its start, across any border.

    For comparison with published numbers only: training windows reach into held-out intervals. `leak` counts them.
    Source: HG38Dataset of HyenaDNA and of Caduceus (arXiv 2403.03234), which discards the ends in the file. A stretched
    interval that would leave its record ends there; the published loader repeats the record's last window instead.

    Args:
        bed: `human-sequences.bed`: chrom, start, end and train, valid or test.
        stretch: bases that every interval gets.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, bed: str | Path, stretch: int = 2**20) -> None:
        if stretch < 1:
            raise ValueError(f"split.stretch is {stretch}; expected 1 or more")
        self.bed, self.stretch = str(bed), stretch

    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, list[Interval]]:
        """The stretched intervals in the order of their starts; they overlap within a part and between parts."""
        return self._read(names, lengths, stretched=True)

    def leak(self, names: Sequence[str], lengths: Sequence[int], length: int) -> dict[str, Any]:
        """How many training windows of `length` share a base with held-out intervals.

        Returns:
            `windows`: training windows; `as_evaluated`: those that overlap a stretched interval of validation or test;
            `as_written`: those that overlap one as it stands in the file; and both as shares.
        """
        stretched, written = self._read(names, lengths, stretched=True), self._read(names, lengths, stretched=False)
        train = Tiling([i for i in stretched["train"] if i.end - i.start >= length], length)
        if not len(train):
            return {"windows": 0, "as_evaluated": 0, "as_written": 0}
        record, start, _ = train.at(np.arange(len(train)))
        counts = {
            key: int(overlapping(record, start, start + length, [*parts["valid"], *parts["test"]]).sum())
            for key, parts in (("as_evaluated", stretched), ("as_written", written))
        }
        shares = {f"share_{key}": round(count / len(train), 4) for key, count in counts.items()}
        return {"windows": len(train), **counts, **shares}

    def describe(self) -> str:
        """The policy in a few words."""
        return f"caduceus ({Path(self.bed).name}, stretched to {self.stretch:,}; leaks: for comparison with published numbers only)"

    def _read(self, names: Sequence[str], lengths: Sequence[int], stretched: bool) -> dict[str, list[Interval]]:
        parts: dict[str, list[Interval]] = {part: [] for part in PARTS}
        number_of = {name: number for number, name in enumerate(names)}
        for region in read_bed(self.bed, dict(zip(names, lengths))):
            if region.name not in parts:
                raise ValueError(f"{self.bed}: the fourth column is {region.name!r}; expected train, valid or test")
            record = number_of[region.chrom]
            end = min(region.start + self.stretch, lengths[record]) if stretched else region.end
            parts[region.name].append(Interval(record, region.start, end))
        return {part: sorted(intervals) for part, intervals in parts.items()}


def overlapping(record: np.ndarray, start: np.ndarray, end: np.ndarray, intervals: Sequence[Interval]) -> np.ndarray:
    """Which of the stretches `[start, end)` share a base with some interval: `(B,)` bool."""
    found = np.zeros(len(record), dtype=bool)
    by_record: Mapping[int, list[Interval]] = {}
    for interval in sorted(intervals):
        by_record.setdefault(interval.record, []).append(interval)
    for number, many in by_record.items():
        starts, ends = np.array([i.start for i in many]), np.maximum.accumulate([i.end for i in many])
        rows = np.flatnonzero(record == number)
        place = np.searchsorted(starts, end[rows], "left")  # the intervals before it begin before the stretch ends
        found[rows] = (place > 0) & (ends[place - 1] > start[rows])
    return found
