"""The target that `task.kind` names: the one place that knows these words."""

from __future__ import annotations

from collections.abc import Sequence

from dnadiff.supervised.targets.base import TaskTarget
from dnadiff.supervised.targets.classes import ClassTarget
from dnadiff.supervised.targets.multilabel import MultiLabelTarget
from dnadiff.supervised.targets.regression import RegressionTarget

KINDS: dict[str, type[TaskTarget]] = {
    "classification": ClassTarget,
    "regression": RegressionTarget,
    "multilabel": MultiLabelTarget,
}


def build_target(
    kind: str, columns: Sequence[str], loss: str | None = None, transform: str | None = None
) -> TaskTarget:
    """The target of a task before its labels are read.

    Args:
        kind: one of `KINDS`.
        columns: of the labels.
        loss, transform: of a regression; None is the default of `RegressionTarget`.

    Raises:
        ValueError: for an unknown kind, an argument that the kind does not have, or too many
            columns.
    """
    if kind not in KINDS:
        raise ValueError(f"task.kind {kind!r} is not known; set it to {', '.join(KINDS)}")
    target = KINDS[kind]
    given = {
        key: value for key, value in (("loss", loss), ("transform", transform)) if value is not None
    }
    if given and target is not RegressionTarget:
        key, value = next(iter(given.items()))
        raise ValueError(
            f"task.{key}={value} belongs to task.kind=regression, and task.kind is {kind}; leave "
            "it out"
        )
    if len(columns) > 1 and not target.takes_several:
        raise ValueError(
            f"task.label_column names {len(columns)} columns and task.kind={kind} takes one; name "
            "one, or set another task.kind"
        )
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(
            f"task.label_column {list(columns)} must name distinct columns, at least one"
        )
    return target(columns, **given)
