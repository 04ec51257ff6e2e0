"""The table that `python -m dnadiff.variants` prints when all rows are scored."""

from __future__ import annotations

from dnadiff.variant_effect.effects import NO_VALUE, RowScorer
from dnadiff.variant_effect.summary import InputSummary
from dnadiff.variant_effect.training_part import TrainingPart


def closing_rows(
    summary: InputSummary, training: TrainingPart, scorer: RowScorer, seconds: float
) -> list[tuple[str, ...]]:
    """The rows of the table: counts of alleles, the error of several sites per window, and the
    speed."""
    rows: list[tuple[str, ...]] = [
        (kind, f"{count:,}") for kind, count in summary.kinds.items() if count
    ]
    rows += [
        (f"skipped: {reason}", f"{count:,}") for reason, count in sorted(summary.skipped.items())
    ]
    if scorer.num_missing:
        rows.append((f"no value: {NO_VALUE}", f"{scorer.num_missing:,}"))
    if summary.mismatches:
        rows.append(("rows whose REF differs from the genome", f"{summary.mismatches:,}"))
    rows.append(
        (
            "in the training part of the model",
            f"{summary.in_training:,} ({training.note})" if training.known else training.note,
        )
    )
    audit = scorer.audit
    if audit.shared:
        rows.append(
            (
                "error of several sites per window",
                f"{audit.rms:.4f} nats (RMS, {audit.sites} of {audit.shared:,} sites that share "
                "one)",
            )
        )
    elif scorer.network.sites_per_window > 1:
        rows.append(("error of several sites per window", "none: no sites share a window"))
    if scorer.num_scored:
        rows.append(("variants/s", f"{scorer.num_scored / max(seconds, 1e-9):,.1f}"))
    return rows
