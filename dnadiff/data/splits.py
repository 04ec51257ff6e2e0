"""Splits of records into training, validation and test data.

A split is a callable
`(names, lengths) -> {"train": [Interval], "valid": [Interval], "test": [Interval]}`. Windows are
cut inside intervals, so that windows of different parts never overlap.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias, TypedDict

import numpy as np
from annotated_types import Interval as Limits
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.intervals import Interval, Intervals, Tiling
from dnadiff.fields import Fraction, Natural, PositiveInt, checked
from dnadiff.formats.regions import Region, check_names, read_bed

PARTS = ("train", "valid", "test")
MAX_HELD_OUT = 20  # names of held-out records in a description of data
_SHOWN = 20  # names of records in a description


Bounds: TypeAlias = tuple[Fraction, Fraction]  # from and to
Names: TypeAlias = str | int | Sequence[str | int]
Parts: TypeAlias = dict[str, Sequence[Interval]]  # the intervals of "train", "valid" and "test"


class Leak(TypedDict):
    """How many training windows overlap held-out intervals, and these numbers as fractions."""

    windows: int  # number of training windows
    as_evaluated: int  # overlap the intervals that are evaluated
    as_written: int  # overlap the intervals in the file
    share_as_evaluated: float
    share_as_written: float


class Split(ABC):
    """Base class of all splits."""

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it
    bed: str | None = None  # path of the BED file that defines the split, if there is one

    @abstractmethod
    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> Parts:
        """The intervals of each part, sorted; parts do not overlap unless `leak` reports how
        much."""

    @abstractmethod
    def describe(self) -> str:
        """A short description for reports."""

    def leak(self, names: Sequence[str], lengths: Sequence[int], length: int) -> Leak | None:
        """How many training windows of `length` overlap held-out intervals; None for a split whose
        parts never overlap."""
        return None


@checked
class FractionSplit(Split):
    """Holds out the same fraction of every record.

    Args:
        test: (from, to) as fractions of each record.
        valid: likewise; must not overlap `test`.
    """

    def __init__(self, test: Bounds = (0.8, 0.9), valid: Bounds = (0.9, 1.0)) -> None:
        for part, (low, high) in (("test", test), ("valid", valid)):
            if low >= high:
                raise ValueError(
                    f"data.split.{part} is {[low, high]}; expected two fractions [from, to] with "
                    "0 <= from < to <= 1"
                )
        self.test, self.valid = test, valid
        if self.test[0] < self.valid[1] and self.valid[0] < self.test[1]:
            raise ValueError(
                f"data.split.test {list(self.test)} and data.split.valid {list(self.valid)} "
                "overlap; change one of them"
            )

    @override
    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> Parts:
        size = np.array(lengths, dtype=np.int64)
        record, edge = np.arange(len(size)), np.zeros(len(size), np.int64)
        parts: Parts = {}
        training = []  # start and end of the pieces of each record
        for (low, high), part in sorted([(self.test, "test"), (self.valid, "valid")]):
            start, end = (np.rint(share * size).astype(np.int64) for share in (low, high))
            training.append((edge, start))
            parts[part] = Intervals(record, start, end)
            edge = end
        starts, ends = (np.stack(each, axis=1).reshape(-1) for each in zip(*training, (edge, size)))
        parts["train"] = Intervals(np.repeat(record, len(training) + 1), starts, ends)
        return drop_empty({part: parts[part] for part in PARTS})

    @override
    def describe(self) -> str:
        spans = (
            f"{part} {100 * low:g}-{100 * high:g} %"
            for part, (low, high) in (("test", self.test), ("valid", self.valid))
        )
        return f"fraction of each record ({', '.join(spans)})"


@checked
class ChromosomeSplit(Split):
    """Holds out complete records by name.

    Args:
        valid: names of the validation records.
        test: names of the test records.
    """

    def __init__(self, valid: Names, test: Names) -> None:
        self.valid, self.test = _names(valid), _names(test)
        if both := set(self.valid) & set(self.test):
            raise ValueError(
                f"data.split.valid and data.split.test both name {', '.join(sorted(both))}; a "
                "record belongs to one part"
            )

    @override
    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> Parts:
        check_names([*self.valid, *self.test], names, "split")
        part_of = dict.fromkeys(self.valid, "valid") | dict.fromkeys(self.test, "test")
        number = np.array(
            [PARTS.index(part_of.get(name, "train")) for name in names], dtype=np.int8
        )
        size = np.array(lengths, dtype=np.int64)
        every = Intervals(np.arange(len(size)), np.zeros_like(size), size)
        return {part: every.where(number == each) for each, part in enumerate(PARTS)}

    @override
    def describe(self) -> str:
        return f"chromosomes (valid {_listed(self.valid)}; test {_listed(self.test)})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (
        f", ... ({len(names):,} records)" if len(names) > _SHOWN else ""
    )


def _names(names: Names) -> list[str]:
    # YAML reads [3] as a number, and Ensembl's chromosomes have such names.
    return [str(name) for name in ([names] if isinstance(names, str | int) else names)]


@checked
class RegionSplit(Split):
    """Reads the intervals from a BED file whose fourth column is train, valid or test; other bases
    belong to no part.

    Overlapping intervals of one part are merged.
    """

    def __init__(self, bed: str | Path) -> None:
        self.bed: str = str(bed)

    @override
    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> Parts:
        regions = read_parts(self.bed, dict(zip(names, lengths)))
        number_of = {name: number for number, name in enumerate(names)}
        parts: Parts = {
            part: _merged(Interval(number_of[r.chrom], r.start, r.end) for r in regions[part])
            for part in PARTS
        }
        if found := first_overlap(parts):
            (part, a), (other, b) = found
            raise ValueError(
                f"{self.bed}: {part} {names[a.record]}:{a.start}-{a.end} overlaps {other} "
                f"{names[b.record]}:{b.start}-{b.end}; "
                f"a base belongs to one part"
            )
        return parts

    @override
    def describe(self) -> str:
        return f"regions ({Path(self.bed).name})"


def read_parts(bed: str, lengths: Mapping[str, int]) -> dict[str, list[Region]]:
    """The regions of a BED file by the part in its fourth column.

    Raises:
        ValueError: if a row is not inside a record or names another part.
    """
    parts: dict[str, list[Region]] = {part: [] for part in PARTS}
    for region in read_bed(bed, lengths):
        if region.name not in parts:
            raise ValueError(
                f"{bed}: the fourth column is {region.name!r}; expected train, valid or test"
            )
        parts[region.name].append(region)
    return parts


@checked
class DefaultSplit(Split):
    """Holds out complete records where possible; otherwise `FractionSplit`.

    With three records or more, test and then validation take the largest remaining records that fit
    into `share` of all tokens, until each has at least half of `share`. With fewer records, or
    where the lengths do not allow it (a chromosome and two plasmids), the same fraction of every
    record is held out.

    Args:
        share: maximum fraction of the tokens for each of the two parts.
    """

    def __init__(self, share: Annotated[float, Limits(gt=0, lt=0.5)] = 0.1) -> None:
        self.share = share
        self._chosen: Split | None = None

    @override
    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> Parts:
        self._chosen = self.policy(names, lengths)
        return self._chosen(names, lengths)

    def policy(self, names: Sequence[str], lengths: Sequence[int]) -> Split:
        """The split that these records get."""
        test = self._take(names, lengths, taken=[])
        valid = self._take(names, lengths, taken=test)
        return (
            ChromosomeSplit(valid=valid, test=test)
            if len(names) >= 3 and test and valid
            else FractionSplit()
        )

    def _take(
        self, names: Sequence[str], lengths: Sequence[int], taken: Sequence[str]
    ) -> list[str]:
        maximum, held_out, chosen, excluded = self.share * sum(lengths), 0, [], set(taken)
        remaining = [(length, name) for length, name in zip(lengths, names) if name not in excluded]
        for length, name in sorted(remaining, key=lambda pair: -pair[0]):
            if held_out < maximum / 2 and held_out + length <= maximum:
                held_out += length
                chosen.append(name)
        return chosen if held_out >= maximum / 2 else []

    @override
    def describe(self) -> str:
        if self._chosen is not None:
            return self._chosen.describe()
        return (
            f"default (whole records of up to {100 * self.share:g} % each for test and "
            "validation, or else a fraction of each record)"
        )


def first_overlap(
    parts: Mapping[str, Iterable[Interval]],
) -> tuple[tuple[str, Interval], tuple[str, Interval]] | None:
    """The first two intervals of different parts that share a token, or None."""
    rows = sorted((interval, part) for part, intervals in parts.items() for interval in intervals)
    furthest: dict[str, Interval] = {}  # of each part, the interval so far that ends last
    for interval, part in rows:
        for other, last in furthest.items():
            if other != part and last.record == interval.record and interval.start < last.end:
                return (other, last), (part, interval)
        previous = furthest.get(part)
        if previous is None or (previous.record, previous.end) < (interval.record, interval.end):
            furthest[part] = interval
    return None


def split_hash(intervals: Mapping[str, Iterable[Interval]], names: Sequence[str]) -> str:
    """Twelve hexadecimal digits that identify a split in reports; they change with any interval or
    record name."""
    names = list(names)
    rows = sorted(
        f"{names[i.record]}\t{i.start}\t{i.end}\t{part}\n"
        for part, many in intervals.items()
        for i in many
    )
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:12]


def subtract(intervals: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """The intervals without the bases of other intervals (a blacklist)."""
    holes: dict[int, list[Interval]] = {}
    for hole in _merged(removed):
        holes.setdefault(hole.record, []).append(hole)
    left = []
    for record, start, end in intervals:
        here = holes.get(record, [])
        for hole in here[max(0, bisect_right(here, start, key=lambda h: h.start) - 1) :]:
            if hole.start >= end:
                break
            if hole.end > start:
                left.append(Interval(record, start, hole.start))
                start = hole.end
        left.append(Interval(record, start, end))
    return [interval for interval in left if interval.end > interval.start]


def drop_empty(parts: Parts) -> Parts:
    """The parts without empty intervals."""
    arrays = {part: Intervals.of(intervals) for part, intervals in parts.items()}
    return {part: intervals.where(intervals.length > 0) for part, intervals in arrays.items()}


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for interval in sorted(intervals):
        last = merged[-1] if merged else None
        if last and last.record == interval.record and interval.start < last.end:
            merged[-1] = last._replace(end=max(last.end, interval.end))
        else:
            merged.append(interval)
    return merged


@checked
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
        period: Annotated[int, Limits(ge=3)] = 10,
        test: Natural = 9,
        valid: Natural = 8,
        guard: Natural = 2048,
    ) -> None:
        if 2 * guard >= block:
            raise ValueError(
                f"data.split.block is {block} and data.split.guard {guard}; a block must be longer "
                "than two guards"
            )
        if test >= period or valid >= period or test == valid:
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


@checked
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

    def __init__(self, bed: str | Path, stretch: PositiveInt = 2**20) -> None:
        self.bed: str = str(bed)
        self.stretch = stretch

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
