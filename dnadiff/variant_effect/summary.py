"""A first pass over the variants: what is there, what is skipped, and what must be refused before anything is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dnadiff.config import Json
from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.sources import VariantSource
from dnadiff.variant_effect.training_part import TrainingPart
from dnadiff.variant_effect.variant import Alleles, Edit, Row, kinds

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
    """

    rows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    in_training: int = 0
    is_sorted: bool = True
    first: Edit | None = None
    messages: list[str] = field(default_factory=list)

    @property
    def alleles(self) -> int:
        """Alleles that are scored."""
        return sum(self.kinds.values())

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
    source: VariantSource, alleles: Alleles, method: VariantMethod | None, training: TrainingPart, mismatch_is_error: bool
) -> InputSummary:
    """Read all variants once, in constant memory, and check each of them.

    Args:
        method: None if it has an answer for every variant.
        mismatch_is_error: raise an error if REF differs from the genome in any row.

    Raises:
        ValueError: naming the file and line of the first row that is not valid, or the first rows whose REF differs.
    """
    summary, order = InputSummary(), _Order()
    for row in source:
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
            f"REF differs from the genome in {summary.mismatches:,} of {summary.rows:,} rows: {'; '.join(summary.messages)}; is the genome the "
            "assembly of the variants? on_mismatch=skip leaves such rows out, on_mismatch=flag marks them"
        )
    if not summary.rows:
        raise ValueError(f"{source.name} contains no variant; give at least one")
    return summary
