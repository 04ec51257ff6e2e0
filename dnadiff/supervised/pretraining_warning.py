"""The warning of a study whose fine-tuned network is worse on validation than the same network from
random weights."""

from __future__ import annotations

from collections.abc import Mapping

from dnadiff.config import Json

# What `fit_info` records, its name, and which sign is better.
_SCORES = (
    ("valid_accuracy", "accuracy", 1),
    ("valid_weighted_accuracy", "weighted accuracy", 1),
    ("valid_loss", "loss", -1),
)


def pretraining_warning(models: Mapping[str, Json], fine_tuned: str, scratch: str) -> str | None:
    """One line, or None if the fine-tuned network is at least as good, or one of the two is
    missing.

    The means over all seeds and rounds are compared: first the accuracy of classes, and if it is
    the same, the loss; else the loss alone.

    Args:
        models: as in the result of `dnadiff.supervised.study.run_study`.
    """
    if fine_tuned not in models or scratch not in models:
        return None
    for key, name, sign in _SCORES:
        with_pretraining, without = _mean(models[fine_tuned], key), _mean(models[scratch], key)
        if with_pretraining is None or without is None:
            continue  # of values and several labels, there is no accuracy
        if sign * with_pretraining < sign * without:
            return (
                "on validation, the fine-tuned network is worse than the same network from "
                f"scratch ({name} {with_pretraining:.3f} and "
                f"{without:.3f}): with these settings, pretraining does not help on this task"
            )
        if with_pretraining != without:
            return None
    return None


def _mean(model: Json, key: str) -> float | None:
    values = [one[key] for of_seed in model.get("found", ()) for one in of_seed if key in one]
    return sum(values) / len(values) if values else None
