"""A first pass over the variants: what is there, what is skipped, and what must be refused before
anything is written."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dnadiff.data.run_data import run_data
from dnadiff.fields import Json
from dnadiff.formats.regions import listing
from dnadiff.genomics.variants.base import VariantMethod
from dnadiff.genomics.variants.sources import VariantSource
from dnadiff.genomics.variants.variant import Alleles, Edit, Reference, Row, kinds, record_of

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome
    from dnadiff.weights.loaded import Loaded

_COMPARED, _LENGTH = 64, 64  # stretches of a record that are compared, and their bases
log = logging.getLogger("dnadiff")


class TrainingPart(NamedTuple):
    """The training intervals on the records of a genome.

    Attributes:
        starts, ends: of the intervals of each record that is the model's own, sorted.
        note: what is known of the genome, for reports.
    """

    starts: dict[str, list[int]]
    ends: dict[str, list[int]]
    note: str

    def contains(self, edit: Edit) -> bool:
        """Whether a variant touches a training interval."""
        starts = self.starts.get(edit.record, [])
        place = bisect_right(starts, max(edit.end - 1, edit.start)) - 1
        return place >= 0 and edit.start < self.ends[edit.record][place]

    @property
    def known(self) -> bool:
        """Whether any record is the model's own."""
        return bool(self.starts)


def training_part(loaded: Loaded, reference: Reference, trust: Sequence[str] = ()) -> TrainingPart:
    """The training part of a model on a genome, with a warning if both have records of equal names
    that are not the same.

    Nothing is downloaded. Without the data of the run, or with another genome, no interval is
    known.
    """
    try:
        data = run_data(loaded.config.get("data"), loaded.tokenizer, trust)
        if not data.opens_genome:
            raise ValueError("the model was not trained on a genome")
        data.prepare()
        own = data.open()
    except (ValueError, OSError) as error:
        return TrainingPart({}, {}, f"not known ({' '.join(str(error).split())[:120]})")
    same, other = _compared(own, reference)
    if other:
        log.warning(
            f"{', '.join(sorted(other)[:4])}: the genome has different bases from the model's "
            f"training data ({data.name}): a different assembly? "
            "Variants in the training part cannot be counted there"
        )
    starts: dict[str, list[int]] = {name: [] for name in same.values()}
    ends: dict[str, list[int]] = {name: [] for name in same.values()}
    for interval in sorted(data.intervals["train"]):
        name = same.get(data.names[interval.record])
        if name is not None:
            starts[name].append(interval.start)
            ends[name].append(interval.end)
    note = (
        f"split {data.split.describe()}"
        if same
        else f"not known (the model was trained on {data.name})"
    )
    return TrainingPart(starts, ends, note)


def _compared(own: Genome, reference: Reference) -> tuple[dict[str, str], set[str]]:
    """Records of the training data that the genome has too, with their names there; and those that
    differ."""
    same: dict[str, str] = {}
    other: set[str] = set()
    lengths = reference.lengths
    for name, length in own.lengths.items():
        here = record_of(name, lengths)
        if here is None:
            continue
        if lengths[here] == length and _same_bases(own, name, reference, here, length):
            same[name] = here
        else:
            other.add(here)
    return same, other


def _same_bases(own: Genome, name: str, reference: Reference, here: str, length: int) -> bool:
    size = min(_LENGTH, length)
    starts = np.unique(np.linspace(0, length - size, _COMPARED).astype(int)).tolist()
    return all(
        np.array_equal(own.window(name, s, s + size), reference.window(here, s, s + size))
        for s in starts
    )


_SHOWN = 3  # rows in a message
SKIP, FLAG = "skip", "flag"
ON_MISMATCH = ("error", SKIP, FLAG)


@dataclass
class InputSummary:
    """Counts of the rows and alleles of a source.

    Attributes:
        kinds: of the alleles that are scored.
        skipped: reason to number of alleles.
        mismatches: rows whose REF differs from the genome.
        in_training: alleles in the training part of the model.
        is_sorted: whether the rows of each contig are together and ascending.
        first: the first edit.
        messages: of the first rows whose REF differs.
        records: the record of the genome of each contig, by the name that the rows use.
    """

    rows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    in_training: int = 0
    is_sorted: bool = True
    first: Edit | None = None
    messages: list[str] = field(default_factory=list)
    records: dict[str, str] = field(default_factory=dict)

    @property
    def alleles(self) -> int:
        """Alleles that are scored."""
        return sum(self.kinds.values())

    def contigs(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """The `lengths` of the records of the genome, under the names that the rows use where they
        use another."""
        names: dict[str, list[str]] = {}
        for name, record in self.records.items():
            names.setdefault(record, []).append(name)
        return {
            name: length
            for record, length in lengths.items()
            for name in names.get(record, [record])
        }

    def counts(self) -> dict[str, Json]:
        """The counts, for the JSON file."""
        return {
            "rows": self.rows,
            "alleles": dict(self.kinds),
            "skipped": dict(sorted(self.skipped.items())),
            "rows_with_another_ref": self.mismatches,
        }


class _Order:
    """Whether rows are sorted as a VCF file should be."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.last = ("", 0)

    def follows(self, row: Row) -> bool:
        """Whether the next row keeps the order."""
        (chrom, pos), self.last = self.last, (row.chrom, row.pos)
        if row.chrom == chrom:
            return row.pos >= pos
        is_new = row.chrom not in self.seen
        self.seen.add(row.chrom)
        return is_new


def summarize(
    source: VariantSource,
    alleles: Alleles,
    method: VariantMethod | None,
    training: TrainingPart,
    mismatch_is_error: bool,
) -> InputSummary:
    """Read all variants once, in constant memory, and check each of them.

    Args:
        method: None if it has an answer for every variant.
        mismatch_is_error: raise an error if REF differs from the genome in any row.

    Raises:
        ValueError: naming the file and line of the first row that is not valid or on a contig of
            another length, or the first rows whose REF differs.
    """
    summary, order = InputSummary(), _Order()
    others = source.other_lengths(alleles.lengths)
    for row in source:
        if row.chrom not in summary.records:
            _check_length(row, others)
            summary.records[row.chrom] = alleles.record(row.chrom, row.where)
        found, mismatch = alleles.edits(row)
        edits = [each for each in found if isinstance(each, Edit)]
        summary.rows += 1
        summary.kinds.update(kinds(edits))
        summary.skipped.update(each.reason for each in found if not isinstance(each, Edit))
        summary.in_training += sum(map(training.contains, edits))
        summary.is_sorted &= order.follows(row)
        summary.first = summary.first or next(iter(edits), None)
        if mismatch is not None:
            summary.mismatches += 1
            summary.messages += [mismatch.message] if len(summary.messages) < _SHOWN else []
        if method is not None:
            for edit in edits:
                method.check(edit)
    if mismatch_is_error and summary.mismatches:
        raise ValueError(
            f"REF differs from the genome in {summary.mismatches:,} of {summary.rows:,} rows: "
            f"{'; '.join(summary.messages)}; is the genome the "
            "assembly of the variants? on_mismatch=skip leaves such rows out, on_mismatch=flag "
            "marks them"
        )
    if not summary.rows:
        raise ValueError(f"{source.name} contains no variant; give at least one")
    if others:  # chrM of hg19 and of b37, for example
        shown = listing(
            [
                f"{contig} ({length:,} bases, in the genome {here:,})"
                for contig, (length, here) in others.items()
            ]
        )
        log.warning(
            f"{source.name} has contigs whose length differs from the genome, on which no variant "
            f"was read: {shown}"
        )
    return summary


def _check_length(row: Row, others: Mapping[str, tuple[int, int]]) -> None:
    """Raise ValueError for a row on a contig whose length differs from the genome."""
    if row.chrom in others:
        length, here = others[row.chrom]
        raise ValueError(
            f"{row.where}: the header says that {row.chrom} has {length:,} bases, and the genome "
            f"has {here:,}: a different assembly; "
            "give the genome that the variants were called with"
        )
