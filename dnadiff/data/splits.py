"""Splits of records into training, validation and test data.

A split is a callable
`(names, lengths) -> {"train": [Interval], "valid": [Interval], "test": [Interval]}`. Windows are
cut inside intervals, so that windows of different parts never overlap.
"""

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Interval as Limits

from dnadiff.data.records import (
    LONGEST,
    Integers,
    Interval,
    Intervals,
    Mask,
    NRuns,
    Tiling,
    union,
)
from dnadiff.fields import Fraction, Natural, PositiveInt, checked, checked_dataclass
from dnadiff.formats.regions import listing, read_bed, records_of

PARTS = ("train", "valid", "test")
MAX_HELD_OUT = 20  # names of held-out records in a description of data
_SHOWN = 20  # names of records in a description


Names = Sequence[str]
Lengths = Sequence[int]
Bounds = tuple[Fraction, Fraction]  # from and to
Chosen = str | int | Sequence[str | int]  # names of records
Parts = dict[str, Sequence[Interval]]  # the intervals of "train", "valid" and "test"


# How many training windows there are (`windows`), overlap the intervals that are evaluated
# (`as_evaluated`) and those in the file (`as_written`), and both as fractions (`share_...`)
Leak = dict[str, float]


class Split(ABC):
    """Base class of all splits."""

    buildable = True  # a checkpoint's configuration may name it
    bed: str | None = None  # path of the BED file that defines the split, if there is one

    @abstractmethod
    def __call__(self, names: Names, lengths: Lengths) -> Parts:
        """The intervals of each part, sorted; parts do not overlap unless `leak` reports how
        much."""

    @abstractmethod
    def describe(self) -> str:
        """A short description for reports."""

    def leak(self, names: Names, lengths: Lengths, length: int) -> Leak | None:
        """How many training windows of `length` overlap held-out intervals; None for a split whose
        parts never overlap."""
        return None


@checked_dataclass
class FractionSplit(Split):
    """Holds out the same fraction of every record.

    Args:
        test: (from, to) as fractions of each record.
        valid: likewise; must not overlap `test`.
    """

    test: Bounds = (0.8, 0.9)
    valid: Bounds = (0.9, 1.0)

    def __post_init__(self) -> None:
        for part, (low, high) in (("test", self.test), ("valid", self.valid)):
            if low >= high:
                raise ValueError(
                    f"data.split.{part} is {[low, high]}; expected two fractions [from, to] with "
                    "0 <= from < to <= 1"
                )
        if self.test[0] < self.valid[1] and self.valid[0] < self.test[1]:
            raise ValueError(
                f"data.split.test {list(self.test)} and data.split.valid {list(self.valid)} "
                "overlap; change one of them"
            )

    def __call__(self, names: Names, lengths: Lengths) -> Parts:
        size = np.array(lengths, dtype=np.int64)
        record = np.arange(len(size))
        edge = np.zeros(len(size), np.int64)
        parts: dict[str, Intervals] = {}
        training = []  # start and end of the pieces of each record
        for (low, high), part in sorted([(self.test, "test"), (self.valid, "valid")]):
            start, end = (np.rint(share * size).astype(np.int64) for share in (low, high))
            training.append((edge, start))
            parts[part] = Intervals(record, start, end)
            edge = end
        starts, ends = (np.stack(each, axis=1).reshape(-1) for each in zip(*training, (edge, size)))
        parts["train"] = Intervals(np.repeat(record, len(training) + 1), starts, ends)
        return _not_empty(parts)

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

    def __init__(self, valid: Chosen, test: Chosen) -> None:
        # YAML reads [3] as a number, and Ensembl's chromosomes have such names.
        self.valid, self.test = (
            [str(name) for name in ([names] if isinstance(names, str | int) else names)]
            for names in (valid, test)
        )
        self._parts({name: name for name in (*self.valid, *self.test)})

    def _parts(self, record: Mapping[str, str]) -> dict[str, str]:
        """The part of each held-out record, by the `record` of each name."""
        valid, test = ({record[name] for name in names} for names in (self.valid, self.test))
        if both := valid & test:
            raise ValueError(
                f"data.split.valid and data.split.test both name {', '.join(sorted(both))}; a "
                "record belongs to one part"
            )
        return dict.fromkeys(valid, "valid") | dict.fromkeys(test, "test")

    def __call__(self, names: Names, lengths: Lengths) -> Parts:
        part_of = self._parts(records_of([*self.valid, *self.test], names, "split"))
        number = np.array(
            [PARTS.index(part_of.get(name, "train")) for name in names], dtype=np.int8
        )
        every = Intervals.whole(lengths)
        return {part: every.where(number == each) for each, part in enumerate(PARTS)}

    def describe(self) -> str:
        valid = listing(self.valid, _SHOWN)
        test = listing(self.test, _SHOWN)
        return f"chromosomes (valid {valid}; test {test})"


@checked
class RegionSplit(Split):
    """Reads the intervals from a BED file whose fourth column is train, valid or test; other bases
    belong to no part.

    Overlapping intervals of one part are merged.
    """

    def __init__(self, bed: str | Path) -> None:
        self.bed: str = str(bed)

    def __call__(self, names: Names, lengths: Lengths) -> Parts:
        found_parts = read_parts(self.bed, names, lengths)
        parts: Parts = {part: union(found_parts[part]) for part in PARTS}
        if found := first_overlap(parts):
            (part, a), (other, b) = found
            raise ValueError(
                f"{self.bed}: {part} {names[a.record]}:{a.start}-{a.end} overlaps {other} "
                f"{names[b.record]}:{b.start}-{b.end}; a base belongs to one part"
            )
        return parts

    def describe(self) -> str:
        return f"regions ({Path(self.bed).name})"


def read_parts(bed: str, names: Names, lengths: Lengths) -> dict[str, list[Interval]]:
    """The intervals of a BED file by the part in its fourth column.

    Raises:
        ValueError: if a row is not inside a record or names another part.
    """
    number_of = {name: number for number, name in enumerate(names)}
    parts: dict[str, list[Interval]] = {part: [] for part in PARTS}
    for region in read_bed(bed, dict(zip(names, lengths))):
        if region.name not in parts:
            raise ValueError(
                f"{bed}: the fourth column is {region.name!r}; expected train, valid or test"
            )
        parts[region.name].append(Interval(number_of[region.chrom], region.start, region.end))
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

    def __call__(self, names: Names, lengths: Lengths) -> Parts:
        self._chosen = self.policy(names, lengths)
        return self._chosen(names, lengths)

    def policy(self, names: Names, lengths: Lengths) -> Split:
        """The split that these records get."""
        maximum = self.share * sum(lengths)
        held_out = list[list[str]]()
        remaining = sorted(zip(lengths, names), key=lambda pair: -pair[0])
        while len(held_out) < 2:
            total = 0
            chosen = dict[str, None]()
            for length, name in remaining:
                if total < maximum / 2 and total + length <= maximum:
                    total += length
                    chosen[name] = None
            remaining = [pair for pair in remaining if pair[1] not in chosen]
            held_out.append(list(chosen) if total >= maximum / 2 else [])
        test, valid = held_out
        return (
            ChromosomeSplit(valid=valid, test=test)
            if len(names) >= 3 and test and valid
            else FractionSplit()
        )

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
    """The first two intervals of different parts that share a token, or None. Intervals of one part
    do not."""
    last: dict[str, Interval] = {}  # interval so far of each part
    for interval, part in sorted((each, part) for part, many in parts.items() for each in many):
        for other, before in last.items():
            if other != part and before.record == interval.record and interval.start < before.end:
                return (other, before), (part, interval)
        last[part] = interval
    return None


def split_hash(intervals: Mapping[str, Iterable[Interval]], names: Sequence[str]) -> str:
    """Twelve hexadecimal digits that identify a split in reports; they change with any interval or
    record name."""
    rows = sorted(
        f"{names[i.record]}\t{i.start}\t{i.end}\t{part}\n"
        for part, many in intervals.items()
        for i in many
    )
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:12]


def subtract(intervals: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """The intervals without the bases of other intervals (a blacklist)."""
    holes = union(removed)
    left = list[Interval]()
    ends = [(hole.record, hole.end) for hole in holes]
    for record, start, end in intervals:
        place = bisect_right(ends, (record, start))
        while place < len(holes) and holes[place][:2] < (record, end):
            left.append(Interval(record, start, holes[place].start))
            start = holes[place].end
            place += 1
        left.append(Interval(record, start, end))
    return [interval for interval in left if interval.end > interval.start]


def _not_empty(parts: Mapping[str, Intervals]) -> Parts:
    return {part: parts[part].where(parts[part].length > 0) for part in PARTS}


@checked_dataclass
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

    block: PositiveInt = 1_000_000
    period: Annotated[int, Limits(ge=3)] = 10
    test: Natural = 9
    valid: Natural = 8
    guard: Natural = 2048

    def __post_init__(self) -> None:
        if 2 * self.guard >= self.block:
            raise ValueError(
                f"data.split.block is {self.block} and data.split.guard {self.guard}; a block must "
                "be longer than two guards"
            )
        if max(self.test, self.valid) >= self.period or self.test == self.valid:
            raise ValueError(
                f"data.split.test is {self.test} and data.split.valid {self.valid}; expected two "
                f"different blocks of 0..{self.period - 1}"
            )

    def __call__(self, names: Names, lengths: Lengths) -> Parts:
        rows = []
        for record, length in enumerate(lengths):
            index = np.arange(-(-length // self.block)) % self.period
            part = 2 * (index == self.test) + (index == self.valid)  # the place in `PARTS`
            first = np.flatnonzero(np.diff(part, prepend=-1))  # blocks of the same part are one
            part = part[first]
            start = first * self.block
            end = np.append(start[1:], length)
            start[1:] += self.guard * (part[1:] < part[:-1])
            end[:-1] -= self.guard * (part[:-1] < part[1:])
            rows.append(np.stack([np.full_like(start, record), start, end, part]))
        *where, part = np.concatenate(rows, axis=1)
        every = Intervals(*where)
        return _not_empty({name: every.where(part == each) for each, name in enumerate(PARTS)})

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

    def __call__(self, names: Names, lengths: Lengths) -> Parts:
        return self._both(names, lengths)[0]

    def leak(self, names: Names, lengths: Lengths, length: int) -> Leak:
        extended, written = self._both(names, lengths)
        every = Intervals.of(extended["train"])
        train = Tiling(every.where(every.length >= length), length)
        record, start, _ = train.at(np.arange(len(train)))
        number = {
            name: int(
                overlapping(record, start, start + length, [*parts["valid"], *parts["test"]]).sum()
            )
            for name, parts in (("as_evaluated", extended), ("as_written", written))
        }
        total = max(len(train), 1)
        shares = {f"share_{name}": round(count / total, 4) for name, count in number.items()}
        return {"windows": len(train), **number, **shares}

    def describe(self) -> str:
        return (
            f"caduceus ({Path(self.bed).name}, stretched to {self.stretch:,}; leaks: for "
            "comparison with published numbers only)"
        )

    def _both(self, names: Names, lengths: Lengths) -> tuple[Parts, Parts]:
        """The intervals of each part, extended and as in the file."""
        written = read_parts(self.bed, names, lengths)
        extended = {
            part: sorted(
                i._replace(end=min(i.start + self.stretch, lengths[i.record])) for i in intervals
            )
            for part, intervals in written.items()
        }
        return dict(extended), {part: sorted(intervals) for part, intervals in written.items()}


def overlapping(
    record: Integers, start: Integers, end: Integers, intervals: Sequence[Interval]
) -> Mask:
    """Which of the windows `[start, end)` share a base with some interval: `(B,)` bool."""
    covered = union(intervals)
    runs = np.stack([covered.record * LONGEST + each for each in (covered.start, covered.end)], 1)
    offsets = np.arange(record.max(initial=0) + 1) * LONGEST
    return NRuns(runs, offsets).count(record, start, end) > 0
