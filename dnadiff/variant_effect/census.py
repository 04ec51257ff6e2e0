"""A first pass over the variants: what is there, what is skipped, and what must be refused before anything is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dnadiff.config import Json
from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.sources import VariantSource
from dnadiff.variant_effect.training_part import TrainingPart
from dnadiff.variant_effect.variant import Alleles, Edit, kinds

_SHOWN = 3  # rows in a message
SKIP, FLAG = "skip", "flag"
ON_MISMATCH = ("error", SKIP, FLAG)


@dataclass
class Census:
    """Counts of the rows and alleles of a source.

    Attributes:
        kinds: of the alleles that are scored.
        skipped: reason to number of alleles.
        mismatches: rows whose REF differs from the genome.
        in_training: alleles in the training part of the model.
        edits: the first two edits.
    """

    rows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    in_training: int = 0
    edits: list[Edit] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    @property
    def alleles(self) -> int:
        """Alleles that are scored."""
        return sum(self.kinds.values())

    def summary(self) -> dict[str, Json]:
        """The counts, for the JSON file."""
        return {
            "rows": self.rows,
            "alleles": dict(self.kinds),
            "skipped": dict(sorted(self.skipped.items())),
            "rows_with_another_ref": self.mismatches,
        }


def take_census(source: VariantSource, alleles: Alleles, method: VariantMethod, training: TrainingPart, refuses: bool) -> Census:
    """Read all variants once, in constant memory.

    Args:
        refuses: raise an error if REF differs from the genome in any row.

    Raises:
        ValueError: naming the file and line of the first row that is not valid, or the first rows whose REF differs.
    """
    census = Census()
    for row in source:
        found, mismatch = alleles.edits(row)
        edits = [each for each in found if isinstance(each, Edit)]
        census.rows += 1
        census.kinds.update(kinds(edits))
        census.skipped.update(each.reason for each in found if not isinstance(each, Edit))
        census.in_training += sum(map(training.contains, edits))
        census.edits += edits[: max(2 - len(census.edits), 0)]
        if mismatch is not None:
            census.mismatches += 1
            census.first += [mismatch.message] if len(census.first) < _SHOWN else []
        for edit in edits:
            method.check(edit)
    if refuses and census.mismatches:
        raise ValueError(
            f"REF differs from the genome in {census.mismatches:,} of {census.rows:,} rows: {'; '.join(census.first)}; is the genome the "
            "assembly of the variants? on_mismatch=skip leaves such rows out, on_mismatch=flag marks them"
        )
    if not census.rows:
        raise ValueError(f"{source.name} contains no variant; give at least one")
    return census
