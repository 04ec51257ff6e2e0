"""The scikit-learn models of baselines and probes, for each kind of target. The validation items
choose among their settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.config import Json

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin

    Features: TypeAlias = "np.ndarray | csr_matrix"  # (S, F)

_LEAST = 1e-12  # probability of a class without training items


class Estimators(ABC):
    """Models for one kind of target; those to choose from are in dictionaries by the name of their
    setting.

    Attributes:
        linear_name: what the linear model is called.
    """

    linear_name: ClassVar[str]

    @abstractmethod
    def linear(
        self, scaler: TransformerMixin, strengths: Sequence[float]
    ) -> dict[str, BaseEstimator]:
        """Linear models on scaled features; the larger a strength, the weaker the penalty."""

    @abstractmethod
    def boosting(self, num_trees: Sequence[int], **settings: float) -> dict[str, BaseEstimator]:
        """Gradient boosting without early stopping, one for each number of trees per output."""

    @abstractmethod
    def neighbors(self, number: int) -> BaseEstimator:
        """The mean of the nearest neighbors."""

    @abstractmethod
    def select(
        self,
        candidates: Mapping[str, BaseEstimator],
        train: Features,
        labels: Tensor,
        valid: Features,
        valid_labels: Tensor,
    ) -> tuple[BaseEstimator, dict[str, Json]]:
        """Fit every candidate; the best one on the validation items (the first one in a tie), and
        what was tried."""

    @abstractmethod
    def predict(self, model: BaseEstimator, features: Features) -> Tensor:
        """Predictions (S, K) of a fitted model."""


class ClassEstimators(Estimators):
    """Classifiers, chosen by accuracy.

    Args:
        num_classes: whether the training items have all of them or not.
    """

    linear_name = "logistic regression"

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    @override
    def linear(
        self, scaler: TransformerMixin, strengths: Sequence[float]
    ) -> dict[str, BaseEstimator]:
        from sklearn.base import clone
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        return {
            f"C = {strength:g}": make_pipeline(
                clone(scaler), LogisticRegression(C=strength, max_iter=1000)
            )
            for strength in strengths
        }

    @override
    def boosting(self, num_trees: Sequence[int], **settings: float) -> dict[str, BaseEstimator]:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return {
            f"{number} trees": HistGradientBoostingClassifier(
                max_iter=number, early_stopping=False, random_state=0, **settings
            )
            for number in num_trees
        }

    @override
    def neighbors(self, number: int) -> BaseEstimator:
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(number)

    @override
    def select(
        self,
        candidates: Mapping[str, BaseEstimator],
        train: Features,
        labels: Tensor,
        valid: Features,
        valid_labels: Tensor,
    ) -> tuple[BaseEstimator, dict[str, Json]]:
        models = {name: model.fit(train, labels.numpy()) for name, model in candidates.items()}
        tried = {
            name: float(model.score(valid, valid_labels.numpy())) for name, model in models.items()
        }
        best = max(tried, key=lambda name: tried[name])
        return models[best], {"tried": tried, "chosen": best, "valid_accuracy": tried[best]}

    @override
    def predict(self, model: ClassifierMixin, features: Features) -> Tensor:
        probs = np.full((features.shape[0], self.num_classes), _LEAST)
        probs[:, model.classes_] = np.maximum(model.predict_proba(features), _LEAST)
        return torch.from_numpy(np.log(probs / probs.sum(1, keepdims=True)))


class PerColumn:
    """One copy of an estimator for each column of the labels, fitted on the items that have one."""

    def __init__(self, estimator: BaseEstimator) -> None:
        self.estimator = estimator
        self.fitted: list[BaseEstimator] = []

    def fit(self, features: Features, labels: np.ndarray) -> Self:
        """Fit all columns of `labels (S, K)`, NaN where missing."""
        from sklearn.base import clone

        known = [np.flatnonzero(np.isfinite(column)) for column in labels.T]
        self.fitted = [
            clone(self.estimator).fit(features[rows], column[rows])
            for rows, column in zip(known, labels.T)
        ]
        return self


class PerColumnEstimators(Estimators):
    """A model for each output, all with the same setting, chosen by the validation loss.

    Args:
        loss: of predictions and labels (S, K).
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], float]) -> None:
        self.loss = loss

    @override
    def select(
        self,
        candidates: Mapping[str, BaseEstimator],
        train: Features,
        labels: Tensor,
        valid: Features,
        valid_labels: Tensor,
    ) -> tuple[BaseEstimator, dict[str, Json]]:
        models = {
            name: PerColumn(model).fit(train, labels.numpy()) for name, model in candidates.items()
        }
        tried = {
            name: self.loss(self.predict(model, valid), valid_labels)
            for name, model in models.items()
        }
        best = min(tried, key=lambda name: tried[name])
        return models[best], {"tried": tried, "chosen": best, "valid_loss": tried[best]}

    @override
    def predict(self, model: PerColumn, features: Features) -> Tensor:
        return torch.from_numpy(
            np.stack([self.of_column(each, features) for each in model.fitted], 1).astype(
                np.float64
            )
        )

    @abstractmethod
    def of_column(self, fitted: BaseEstimator, features: Features) -> np.ndarray:
        """Predictions (S,) of one output."""


class RegressionEstimators(PerColumnEstimators):
    """Regression models.

    Args:
        boosting_loss: of scikit-learn's gradient boosting.
    """

    linear_name = "ridge regression"

    def __init__(self, loss: Callable[[Tensor, Tensor], float], boosting_loss: str) -> None:
        super().__init__(loss)
        self.boosting_loss = boosting_loss

    @override
    def linear(
        self, scaler: TransformerMixin, strengths: Sequence[float]
    ) -> dict[str, BaseEstimator]:
        from sklearn.base import clone
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline

        return {
            f"alpha = {1 / strength:g}": make_pipeline(clone(scaler), Ridge(alpha=1 / strength))
            for strength in strengths
        }

    @override
    def boosting(self, num_trees: Sequence[int], **settings: float) -> dict[str, BaseEstimator]:
        from sklearn.ensemble import HistGradientBoostingRegressor

        shared = {
            "loss": self.boosting_loss,
            "early_stopping": False,
            "random_state": 0,
            **settings,
        }
        return {
            f"{number} trees": HistGradientBoostingRegressor(max_iter=number, **shared)
            for number in num_trees
        }

    @override
    def neighbors(self, number: int) -> BaseEstimator:
        from sklearn.neighbors import KNeighborsRegressor

        return KNeighborsRegressor(number)

    @override
    def of_column(self, fitted: BaseEstimator, features: Features) -> np.ndarray:
        return fitted.predict(features)


class LabelEstimators(PerColumnEstimators):
    """Classifiers of single labels; predictions are log-odds."""

    linear_name = ClassEstimators.linear_name
    _of_two = ClassEstimators(2)

    @override
    def linear(
        self, scaler: TransformerMixin, strengths: Sequence[float]
    ) -> dict[str, BaseEstimator]:
        return self._of_two.linear(scaler, strengths)

    @override
    def boosting(self, num_trees: Sequence[int], **settings: float) -> dict[str, BaseEstimator]:
        return self._of_two.boosting(num_trees, **settings)

    @override
    def neighbors(self, number: int) -> BaseEstimator:
        return self._of_two.neighbors(number)

    @override
    def of_column(self, fitted: ClassifierMixin, features: Features) -> np.ndarray:
        probs = np.clip(fitted.predict_proba(features)[:, 1], 1e-6, 1 - 1e-6)
        return np.log(probs) - np.log1p(-probs)
