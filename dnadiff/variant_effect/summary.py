"""A first pass over the variants: what is there, what is skipped, and what must be refused before
anything is written."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dnadiff.config import Json
from dnadiff.formats.regions import listing
from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.sources import VariantSource
from dnadiff.variant_effect.training_part import TrainingPart
from dnadiff.variant_effect.variant import Alleles, Edit, Row, kinds

_SHOWN = 3  # rows in a message
SKIP, FLAG = "skip", "flag"
ON_MISMATCH = ("error", SKIP, FLAG)
log = logging.getLogger("dnadiff")


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
