"""Which stretches of which records are for training, validation and test.

A split is a callable `(names, lengths) -> {"train": [Interval], "valid": [Interval], "test": [Interval]}`. Windows lie
inside intervals, so no window of one part shares a base with another part.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from dnadiff.data.genome.regions import check_names, read_bed

PARTS = ("train", "valid", "test")


class Interval(NamedTuple):
    """Tokens `start` up to but not including `end` of record number `record`, counted from 0."""

    record: int
    start: int
    end: int


class Split(Protocol):
    """What a split policy offers."""

    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, list[Interval]]:
        """Intervals of each part, sorted; parts do not overlap."""
        ...

    def describe(self) -> str:
        """The policy in a few words, for reports."""
        ...


class FractionSplit:
    """The same stretch of every record held out; what is left is for training.

    Args:
        test: (from, to) as fractions of each record.
        valid: likewise; must not overlap `test`.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, test: Sequence[float] = (0.8, 0.9), valid: Sequence[float] = (0.9, 1.0)) -> None:
        self.test, self.valid = tuple(test), tuple(valid)
        for part, bounds in (("test", self.test), ("valid", self.valid)):
            if len(bounds) != 2 or not 0 <= bounds[0] < bounds[1] <= 1:
                raise ValueError(f"split.{part} is {list(bounds)}; expected two fractions [from, to] with 0 <= from < to <= 1")
        if self.test[0] < self.valid[1] and self.valid[0] < self.test[1]:
            raise ValueError(f"split.test {list(self.test)} and split.valid {list(self.valid)} overlap; move one of them")

    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, list[Interval]]:
        """Intervals of each part, rounded to whole tokens."""
        parts: dict[str, list[Interval]] = {part: [] for part in PARTS}
        for record, length in enumerate(lengths):
            edge = 0
            for (low, high), part in sorted([(self.test, "test"), (self.valid, "valid")]):
                start, end = round(low * length), round(high * length)
                parts["train"].append(Interval(record, edge, start))
                parts[part].append(Interval(record, start, end))
                edge = end
            parts["train"].append(Interval(record, edge, length))
        return drop_empty(parts)

    def describe(self) -> str:
        """The policy in a few words."""
        spans = (f"{part} {100 * low:g}-{100 * high:g} %" for part, (low, high) in (("test", self.test), ("valid", self.valid)))
        return f"fraction of each record ({', '.join(spans)})"


class ChromosomeSplit:
    """Whole records held out by name.

    Args:
        valid: names of the validation records.
        test: names of the test records.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, valid: Sequence[str], test: Sequence[str]) -> None:
        # A yaml reads [3] as a number; Ensembl's chromosomes are called so.
        self.valid = [valid] if isinstance(valid, str) else [str(name) for name in valid]
        self.test = [test] if isinstance(test, str) else [str(name) for name in test]
        if both := set(self.valid) & set(self.test):
            raise ValueError(f"split.valid and split.test both name {', '.join(sorted(both))}; a record belongs to one part")

    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, list[Interval]]:
        """Whole records as intervals.

        Raises:
            ValueError: if no record has one of the names.
        """
        check_names([*self.valid, *self.test], names, "split")
        parts: dict[str, list[Interval]] = {part: [] for part in PARTS}
        valid, test = set(self.valid), set(self.test)
        for record, (name, length) in enumerate(zip(names, lengths)):
            part = "valid" if name in valid else "test" if name in test else "train"
            parts[part].append(Interval(record, 0, length))
        return parts

    def describe(self) -> str:
        """The policy in a few words."""
        return f"chromosomes (valid {', '.join(self.valid)}; test {', '.join(self.test)})"


class RegionSplit:
    """Intervals from a BED file whose fourth column says train, valid or test; other bases are in no part.

    Args:
        bed: path of the file.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, bed: str | Path) -> None:
        self.bed = str(bed)

    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, list[Interval]]:
        """The file's intervals; those of one part that overlap are merged.

        Raises:
            ValueError: if a row leaves the records or names another part, or two parts overlap.
        """
        parts: dict[str, list[Interval]] = {part: [] for part in PARTS}
        number_of = {name: number for number, name in enumerate(names)}
        for region in read_bed(self.bed, dict(zip(names, lengths))):
            if region.name not in parts:
                raise ValueError(f"{self.bed}: the fourth column is {region.name!r}; expected train, valid or test")
            parts[region.name].append(Interval(number_of[region.chrom], region.start, region.end))
        parts = {part: _merged(intervals) for part, intervals in parts.items()}
        if clash := first_overlap(parts):
            (part, a), (other, b) = clash
            raise ValueError(
                f"{self.bed}: {part} {names[a.record]}:{a.start}-{a.end} overlaps {other} {names[b.record]}:{b.start}-{b.end}; "
                f"a base belongs to one part"
            )
        return parts

    def describe(self) -> str:
        """The policy in a few words."""
        return f"regions ({Path(self.bed).name})"


class DefaultSplit:
    """Whole records where they can be held out, `FractionSplit` otherwise.

    With three records or more, test and then validation take the largest records left that fit into `share` of all
    tokens, until each has at least half of `share`. Below three records, or where lengths do not allow it (a
    chromosome and two plasmids), the same stretch of every record is held out.

    Args:
        share: most of the tokens that each of the two parts may take.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, share: float = 0.1) -> None:
        if not 0 < share < 0.5:
            raise ValueError(f"split.share is {share}; expected a fraction above 0 and below 0.5")
        self.share = share
        self._chosen: FractionSplit | ChromosomeSplit | None = None

    def __call__(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, list[Interval]]:
        """Intervals of the policy that fits."""
        self._chosen = self.policy(names, lengths)
        return self._chosen(names, lengths)

    def policy(self, names: Sequence[str], lengths: Sequence[int]) -> FractionSplit | ChromosomeSplit:
        """The policy that these records get."""
        test = self._take(names, lengths, taken=[])
        valid = self._take(names, lengths, taken=test)
        return ChromosomeSplit(valid=valid, test=test) if len(names) >= 3 and test and valid else FractionSplit()

    def _take(self, names: Sequence[str], lengths: Sequence[int], taken: Iterable[str]) -> list[str]:
        most, held, chosen, taken = self.share * sum(lengths), 0, [], set(taken)
        for length, name in sorted(((n, name) for n, name in zip(lengths, names) if name not in taken), key=lambda pair: -pair[0]):
            if held < most / 2 and held + length <= most:
                held += length
                chosen.append(name)
        return chosen if held >= most / 2 else []

    def describe(self) -> str:
        """The policy in a few words; once it has met records, the one that they got."""
        if self._chosen is not None:
            return self._chosen.describe()
        return f"default (whole records of up to {100 * self.share:g} % each for test and validation, or else a fraction of each record)"


def first_overlap(parts: Mapping[str, Iterable[Interval]]) -> tuple[tuple[str, Interval], tuple[str, Interval]] | None:
    """The first two intervals of different parts that share a token, or None."""
    rows = sorted((interval, part) for part, intervals in parts.items() for interval in intervals)
    furthest: dict[str, Interval] = {}  # of each part, the interval seen so far that ends last
    for interval, part in rows:
        for other, last in furthest.items():
            if other != part and last.record == interval.record and interval.start < last.end:
                return (other, last), (part, interval)
        last = furthest.get(part)
        if last is None or (last.record, last.end) < (interval.record, interval.end):
            furthest[part] = interval
    return None


def split_hash(intervals: Mapping[str, Iterable[Interval]], names: Sequence[str]) -> str:
    """Twelve hexadecimal digits that change with any interval or record name: a split's identity in reports."""
    rows = sorted(f"{names[i.record]}\t{i.start}\t{i.end}\t{part}\n" for part, many in intervals.items() for i in many)
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:12]


def subtract(intervals: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """What is left of each interval when the bases of others are taken away (a blacklist)."""
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


def drop_empty(parts: dict[str, list[Interval]]) -> dict[str, list[Interval]]:
    """The parts without intervals of no length."""
    return {part: [i for i in intervals if i.end > i.start] for part, intervals in parts.items()}


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for interval in sorted(intervals):
        last = merged[-1] if merged else None
        if last and last.record == interval.record and interval.start < last.end:
            merged[-1] = last._replace(end=max(last.end, interval.end))
        else:
            merged.append(interval)
    return merged
