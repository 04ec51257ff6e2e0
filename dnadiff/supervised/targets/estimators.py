"""The scikit-learn models of baselines and probes, for each kind of target. The validation items
choose among their settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.fields import Json

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator, TransformerMixin

    Features: TypeAlias = "np.ndarray | csr_matrix"  # (S, F)

_LEAST = 1e-12  # probability of a class without training items
LOGISTIC, RIDGE = "logistic regression", "ridge regression"


class Estimators(ABC):
    """Models for one kind of target; those to choose from are in dictionaries by the name of their
    setting.

    Attributes:
        boosting_loss: of regression by gradient boosting; None: the models classify.
        score_name: what `score` is called.
    """

    boosting_loss: str | None = None
    score_name: ClassVar[str] = "valid_loss"

    @property
    def linear_name(self) -> str:
        """What the linear model is called."""
        return LOGISTIC if self.boosting_loss is None else RIDGE

    def linear(
        self, scaler: TransformerMixin, strengths: Sequence[float]
    ) -> dict[str, BaseEstimator]:
        """Linear models on scaled features; the larger a strength, the weaker the penalty."""
        from sklearn.base import clone
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.pipeline import make_pipeline

        models = (
            {f"C = {c:g}": LogisticRegression(C=c, max_iter=1000) for c in strengths}
            if self.boosting_loss is None
            else {f"alpha = {1 / c:g}": Ridge(alpha=1 / c) for c in strengths}
        )
        return {name: make_pipeline(clone(scaler), model) for name, model in models.items()}

    def boosting(self, num_trees: Sequence[int], **settings: float) -> dict[str, BaseEstimator]:
        """Gradient boosting without early stopping, one for each number of trees per output."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        shared: dict[str, Json] = {"early_stopping": False, "random_state": 0, **settings}
        make: type[BaseEstimator] = HistGradientBoostingClassifier
        if self.boosting_loss is not None:
            make, shared = HistGradientBoostingRegressor, {"loss": self.boosting_loss, **shared}
        return {f"{number} trees": make(max_iter=number, **shared) for number in num_trees}

    def neighbors(self, number: int) -> BaseEstimator:
        """The mean of the nearest neighbors."""
        from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

        return (KNeighborsClassifier if self.boosting_loss is None else KNeighborsRegressor)(number)

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
        models = {
            name: self.fit(model, train, labels.numpy()) for name, model in candidates.items()
        }
        tried = {name: self.score(model, valid, valid_labels) for name, model in models.items()}
        best = (min if self.score_name == "valid_loss" else max)(
            tried, key=lambda name: tried[name]
        )
        return models[best], {"tried": tried, "chosen": best, self.score_name: tried[best]}

    @abstractmethod
    def fit(self, model: BaseEstimator, features: Features, labels: np.ndarray) -> BaseEstimator:
        """A fitted model."""

    @abstractmethod
    def score(self, model: BaseEstimator, features: Features, labels: Tensor) -> float:
        """The score that the settings are chosen by."""

    @abstractmethod
    def predict(self, model: BaseEstimator, features: Features) -> Tensor:
        """Predictions (S, K) of a fitted model."""


class ClassEstimators(Estimators):
    """Classifiers, chosen by accuracy.

    Args:
        num_classes: whether the training items have all of them or not.
    """

    score_name = "valid_accuracy"

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    @override
    def fit(self, model: BaseEstimator, features: Features, labels: np.ndarray) -> BaseEstimator:
        return model.fit(features, labels)

    @override
    def score(self, model: BaseEstimator, features: Features, labels: Tensor) -> float:
        return float(model.score(features, labels.numpy()))

    @override
    def predict(self, model: BaseEstimator, features: Features) -> Tensor:
        probs = np.full((features.shape[0], self.num_classes), _LEAST)
        probs[:, model.classes_] = np.maximum(model.predict_proba(features), _LEAST)
        return torch.from_numpy(np.log(probs / probs.sum(1, keepdims=True)))


class ColumnEstimators(Estimators):
    """One copy of a model for each output, all with the same setting, fitted on the items that have
    a label, and chosen by the validation loss. Predictions of classifiers are log-odds.

    Args:
        loss: of predictions and labels (S, K).
    """

    def __init__(
        self, loss: Callable[[Tensor, Tensor], float], boosting_loss: str | None = None
    ) -> None:
        self.loss, self.boosting_loss = loss, boosting_loss

    @override
    def fit(
        self, model: BaseEstimator, features: Features, labels: np.ndarray
    ) -> list[BaseEstimator]:
        from sklearn.base import clone

        known = [np.flatnonzero(np.isfinite(column)) for column in labels.T]
        return [
            clone(model).fit(features[rows], column[rows]) for rows, column in zip(known, labels.T)
        ]

    @override
    def score(self, model: list[BaseEstimator], features: Features, labels: Tensor) -> float:
        return self.loss(self.predict(model, features), labels)

    @override
    def predict(self, model: list[BaseEstimator], features: Features) -> Tensor:
        columns = [self._of_column(each, features) for each in model]
        return torch.from_numpy(np.stack(columns, 1).astype(np.float64))

    def _of_column(self, fitted: BaseEstimator, features: Features) -> np.ndarray:
        if self.boosting_loss is not None:
            return fitted.predict(features)
        probs = np.clip(fitted.predict_proba(features)[:, 1], 1e-6, 1 - 1e-6)
        return np.log(probs) - np.log1p(-probs)
