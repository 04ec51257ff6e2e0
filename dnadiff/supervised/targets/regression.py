"""Losses of regression: functions of outputs and labels, masked where a label is missing."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.config import Json
from dnadiff.supervised.metrics import REGRESSION_METRICS, Metric, ScoredValues, named_metrics
from dnadiff.supervised.targets.base import TRANSFORMS, ColumnTarget, Label, PredictedValues
from dnadiff.supervised.targets.estimators import RegressionEstimators

log = logging.getLogger("dnadiff")


def masked_mean(values: Tensor, known: Tensor) -> Tensor:
    """The mean of `values` where `known`; 0 if nothing is."""
    return torch.where(known, values, 0.0).sum() / known.sum().clamp(min=1)


class RegressionLoss(ABC):
    """A loss of each output.

    Attributes:
        standardizes: whether the network predicts labels with mean 0 and standard deviation 1.
        boosting_loss: the nearest one of scikit-learn's gradient boosting.
        lowest: the smallest label that it is defined for.
    """

    standardizes: ClassVar[bool] = True
    boosting_loss: ClassVar[str] = "squared_error"
    lowest: ClassVar[float] = -float("inf")

    @abstractmethod
    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each output (B, K)."""

    def link(self, outputs: Tensor) -> Tensor:
        """Predictions from outputs; the identity by default."""
        return outputs

    def unlink(self, predictions: Tensor) -> Tensor:
        """Outputs from predictions."""
        return predictions


class MSELoss(RegressionLoss):
    """Squared error."""

    @override
    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, labels, reduction="none")


class HuberLoss(RegressionLoss):
    """Huber's loss: squared up to one standard deviation, then linear."""

    @override
    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.huber_loss(outputs, labels, reduction="none")


class PoissonLoss(RegressionLoss):
    """Negative log-likelihood of counts, without the term that depends on the labels alone; the
    outputs are logarithms of rates."""

    standardizes = False
    boosting_loss = "poisson"
    lowest = 0.0

    @override
    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.poisson_nll_loss(outputs, labels, log_input=True, reduction="none")

    @override
    def link(self, outputs: Tensor) -> Tensor:
        return outputs.exp()

    @override
    def unlink(self, predictions: Tensor) -> Tensor:
        return predictions.clamp(min=1e-12).log()


LOSSES: dict[str, RegressionLoss] = {
    "mse": MSELoss(),
    "poisson": PoissonLoss(),
    "huber": HuberLoss(),
}


MAX_POINTS = 2000  # of the picture of a model
_RESOLUTION = 1e-3  # the largest step of 32 bits, in standard deviations of the values
FEW = 2  # different values look like classes
LARGEST = float(
    np.finfo(np.float32).max
)  # labels are float32, where larger ones would become infinite and count as missing


class RegressionTarget(ColumnTarget[ScoredValues]):
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
        return (
            f"regression of {', '.join(map(self.transform.name, self.names))}, loss "
            f"{self.loss_name}"
        )

    @override
    def contrast_name(self, name: str) -> str:
        return self.transform.name(name)

    @override
    def settings(self) -> dict[str, Json]:
        fitted = {"mean": self.mean and list(self.mean), "std": self.std and list(self.std)}
        return {
            **super().settings(),
            "loss": self.loss_name,
            "transform": self.transform_name,
            **fitted,
        }

    @override
    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[Self, np.ndarray]:
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
    def as_array(self, labels: Sequence[Label]) -> np.ndarray:
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
        mean, std = np.nanmean(values, 0), np.nanstd(values, 0)
        return type(self)(
            self.names, self.loss_name, self.transform_name, mean.tolist(), std.tolist()
        )

    def _standardized(self, values: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            return values
        mean, std = (
            torch.tensor(each, dtype=values.dtype, device=values.device)
            for each in (self.mean, self.std)
        )
        return (values - mean) / std

    @override
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        known = labels.isfinite()
        filled = torch.where(known, labels, 1.0).to(
            outputs.dtype
        )  # the gradient of a loss of NaN would be NaN, masked or not
        return masked_mean(self.loss_function.each(outputs, self._standardized(filled)), known)

    @override
    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        mean = torch.stack(list(outputs)).mean(0)
        if self.mean is not None and self.std is not None:
            shift, scale = (
                torch.tensor(each, dtype=mean.dtype, device=mean.device)
                for each in (self.mean, self.std)
            )
            mean = mean * scale + shift
        return self.loss_function.link(mean)

    @override
    def valid_loss(self, predictions: Tensor, labels: Tensor) -> float:
        return float(self.loss(self.loss_function.unlink(self._standardized(predictions)), labels))

    @cached_property
    @override
    def estimators(self) -> RegressionEstimators:
        return RegressionEstimators(self.valid_loss, self.loss_function.boosting_loss)

    @override
    def scored(
        self, predictions: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> ScoredValues:
        return ScoredValues(predictions, labels, folds)

    @cached_property
    @override
    def metrics(self) -> dict[str, Metric[ScoredValues]]:
        return named_metrics(self.names, REGRESSION_METRICS)

    @override
    def details(self, runs: Sequence[ScoredValues]) -> dict[str, Json]:
        scatter = {}
        for name, (_, predicted, measured) in zip(self.names, runs[0].pairs):
            shown = np.linspace(0, len(measured) - 1, min(len(measured), MAX_POINTS)).astype(int)
            points = {"measured": measured[shown], "predicted": predicted[shown]}
            scatter[self.transform.name(name)] = {
                key: [float(f"{x:.5g}") for x in values] for key, values in points.items()
            }
        return {"scatter": scatter}

    @override
    def predicted(self, each_seed: np.ndarray) -> PredictedValues:
        return PredictedValues(self.names, each_seed, self.transform)

    @override
    def seed_columns(self, seed: int) -> list[str]:
        return [f"{self.transform.name(name)}_seed_{seed}" for name in self.names]
