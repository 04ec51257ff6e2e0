"""Losses of regression: functions of outputs and labels, masked where a label is missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override


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
