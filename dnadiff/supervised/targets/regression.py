"""Regression: one or more measured values, with their losses and transforms."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.fields import JsonDict
from dnadiff.supervised.metrics import REGRESSION_METRICS, ScoredValues
from dnadiff.supervised.targets.base import Label, Predicted, TaskTarget, masked_mean, spread

MAX_POINTS = 2000  # of the picture of a model
_RESOLUTION = 1e-3  # the largest step of 32 bits, in standard deviations of the values
FEW = 2  # different values look like classes
# Labels are float32, where larger ones would become infinite and count as missing.
LARGEST = float(np.finfo(np.float32).max)
log = logging.getLogger("dnadiff")


class RegressionLoss(NamedTuple):
    """A loss of each output.

    Attributes:
        each: of outputs and labels (B, K).
        standardizes: whether the network predicts labels with mean 0 and standard deviation 1.
        boosting_loss: the nearest one of scikit-learn's gradient boosting.
        lowest: the smallest label that it is defined for.
        link: predictions from outputs.
        unlink: outputs from predictions.
    """

    each: Callable[..., Tensor]
    standardizes: bool = True
    boosting_loss: str = "squared_error"
    lowest: float = -math.inf
    link: Callable[[Tensor], Tensor] = lambda outputs: outputs
    unlink: Callable[[Tensor], Tensor] = lambda predictions: predictions


# Huber's loss is squared up to one standard deviation, then linear. That of counts is their
# negative log-likelihood without the term that depends on the labels alone; the outputs are
# logarithms of rates.
LOSSES = {
    "mse": RegressionLoss(nn.functional.mse_loss),
    "poisson": RegressionLoss(
        partial(nn.functional.poisson_nll_loss, log_input=True),
        standardizes=False,
        boosting_loss="poisson",
        lowest=0.0,
        link=torch.exp,
        unlink=lambda predictions: predictions.clamp(min=1e-12).log(),
    ),
    "huber": RegressionLoss(nn.functional.huber_loss),
}


class LabelTransform(NamedTuple):
    """A monotone function of labels with its inverse: metrics, differences and the loss are on the
    transformed scale.

    Attributes:
        lower: labels must be larger.
        form: how a transformed column is called.
    """

    apply: Callable[[ndarray], ndarray]
    invert: Callable[[ndarray], ndarray]
    lower: float
    form: str

    def name(self, column: str) -> str:
        """The transformed column, for messages and tables."""
        return self.form.format(column)


TRANSFORMS = {
    "none": LabelTransform(np.asarray, np.asarray, -np.inf, "{}"),
    "log1p": LabelTransform(np.log1p, np.expm1, -1.0, "log1p({})"),
    "log2": LabelTransform(np.log2, np.exp2, 0.0, "log2({})"),
}


@dataclass(frozen=True)
class PredictedValues(Predicted):
    """Predictions of S sequences by the regressions of R seeds: `each_seed` is on the scale of the
    `transform` of the labels."""

    transform: LabelTransform
    tally_header: ClassVar[tuple[str, ...]] = ("target", "mean prediction")
    averaged_name: ClassVar[str] = "averaged predictions"

    @property
    @override
    def values(self) -> ndarray:
        return self.transform.invert(self.combined)

    @property
    @override
    def spread(self) -> ndarray:
        return spread(self.transform.invert(self.each_seed.astype(np.float64)))

    @property
    @override
    def combined(self) -> ndarray:
        return self.each_seed.astype(np.float64).mean(0)


class RegressionTarget(TaskTarget):
    """Values of one or more columns, predicted on the scale of `transform`.

    Args:
        names: the columns.
        loss: mse, huber (both on values with mean 0 and standard deviation 1 in the training part)
            or poisson.
        transform: of the values before training: none, log1p or log2.
        mean, std: of the training items on that scale, found by `fit`; None before, and for a loss
            that does not standardize.
    """

    predicted_kind = PredictedValues
    value_prefix, primary, shown = "predicted", "spearman", ("pearson", "r2")
    column_metrics = REGRESSION_METRICS

    def __init__(
        self,
        names: Sequence[str] = (),
        loss: str = "mse",
        transform: str = "none",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(names)
        for key, value, known in (("loss", loss, LOSSES), ("transform", transform, TRANSFORMS)):
            if value not in known:
                raise ValueError(f"task.{key} {value!r} is not known; set it to {', '.join(known)}")
        self.loss_name, self.transform_name = loss, transform
        self.loss_function, self.transform = LOSSES[loss], TRANSFORMS[transform]
        if min(self.loss_function.lowest, self.transform.lower) > -math.inf:
            raise ValueError(
                f"task.loss={loss} is for counts, and task.transform={transform} changes them; set "
                "task.transform=none"
            )
        self.mean, self.std = (tuple(each) if each is not None else None for each in (mean, std))

    @property
    @override
    def summary(self) -> str:
        columns = ", ".join(map(self.transform.name, self.names))
        return f"regression of {columns}, loss {self.loss_name}"

    @override
    def contrast_name(self, name: str) -> str:
        return self.transform.name(name)

    @override
    def settings(self) -> JsonDict:
        return {
            **super().settings(),
            "loss": self.loss_name,
            "transform": self.transform_name,
            "mean": self.mean and list(self.mean),
            "std": self.std and list(self.std),
        }

    @override
    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[TaskTarget, ndarray]:
        target, values = super().read(labels, source, label_source)
        for name, column in zip(self.names, values.T):
            if len(distinct := np.unique(column[np.isfinite(column)])) == FEW:
                shown = " and ".join(f"{value:g}" for value in self.transform.invert(distinct))
                log.warning(
                    f"{source}: column {name!r} holds {shown} alone; for two classes set "
                    "task.kind=classification"
                )
        return target, values

    @override
    def parse_cell(self, cell: str, where: str, column: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            raise ValueError(
                f"{where} has {cell!r} in column {column!r}, and a regression expects a number; "
                "correct it, set label_column to a column "
                "of numbers, or task.kind to classification"
            ) from None
        lowest = max(self.transform.lower, self.loss_function.lowest)
        in_range = abs(value) <= LARGEST  # False for NaN
        if not in_range or value < lowest or value == self.transform.lower:
            limit = (
                f"above {self.transform.lower:g}"
                if self.transform.lower >= lowest
                else f"of at least {lowest:g}"
            )
            reason = f"a number {limit}" if in_range else f"a finite number up to {LARGEST:.2g}"
            raise ValueError(
                f"{where} has {cell} in column {column!r}, and "
                f"task.transform={self.transform_name} with task.loss={self.loss_name} takes "
                f"{reason}; correct it, leave it empty, or set another transform or loss"
            )
        return value

    @override
    def as_array(self, labels: Sequence[Label]) -> ndarray:
        values = np.array(labels, np.float64).reshape(len(labels), self.num_outputs)
        values = self.transform.apply(values)
        for name, column in zip(self.names, values.T):
            known = column[np.isfinite(column)]
            step = float(np.spacing(np.abs(known).max(initial=0).astype(np.float32)))
            if len(known) and step > _RESOLUTION * known.std() > 0:
                log.warning(
                    f"column {name!r}: 32 bits round values as large as {np.abs(known).max():g} to "
                    f"multiples of {step:g}, and their standard "
                    f"deviation is {known.std():g}; subtract a constant from the column"
                )
        return values.astype(np.float32)

    @override
    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        super().fit(labels, source)
        if not self.loss_function.standardizes:
            return self
        values = labels.double().numpy()
        scale = np.nanmean(values, 0).tolist(), np.nanstd(values, 0).tolist()
        return type(self)(self.names, self.loss_name, self.transform_name, *scale)

    def _scale(self, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Mean and standard deviation of the labels; 0 and 1 if they are not standardized."""
        if self.mean is None or self.std is None:
            return 0.0, 1.0
        return like.new_tensor(self.mean), like.new_tensor(self.std)

    @override
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        known = labels.isfinite()
        # The gradient of a loss of NaN would be NaN, masked or not.
        filled = torch.where(known, labels, 1.0).to(outputs.dtype)
        mean, std = self._scale(filled)
        each = self.loss_function.each(outputs, (filled - mean) / std, reduction="none")
        return masked_mean(each, known)

    @override
    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        found = super().predictions(outputs)
        mean, std = self._scale(found)
        return self.loss_function.link(found * std + mean)

    @override
    def valid_loss(self, predictions: Tensor, labels: Tensor) -> float:
        mean, std = self._scale(predictions)
        return float(self.loss(self.loss_function.unlink((predictions - mean) / std), labels))

    @override
    def details(self, runs: Sequence[ScoredValues]) -> JsonDict:
        scatter = {}
        for name, column in zip(self.names, runs[0].columns):
            count = len(column.rows)
            shown = np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(int)
            points = {"measured": column.truth[shown], "predicted": column.predicted[shown]}
            scatter[self.transform.name(name)] = {
                key: [float(f"{x:.5g}") for x in values] for key, values in points.items()
            }
        return {"scatter": scatter}

    @override
    def predicted(self, each_seed: ndarray) -> PredictedValues:
        return PredictedValues(self.names, each_seed, self.transform)

    @override
    def seed_columns(self, seed: int) -> list[str]:
        return [f"{self.transform.name(name)}_seed_{seed}" for name in self.names]
