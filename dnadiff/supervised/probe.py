"""Probes of a frozen network: models of scikit-learn on its mean features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.backbone.base import Backbone
from dnadiff.config import Json
from dnadiff.supervised.classifier import (
    check_length,
    is_strand_invariant,
    pool_features,
    pooled_width,
)
from dnadiff.supervised.items import Items, TaskData, strand_batches
from dnadiff.supervised.model import Report, TaskModel, no_report
from dnadiff.supervised.targets.estimators import Estimators

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


@torch.no_grad()
def embed(
    backbone: Backbone,
    items: Items,
    batch_size: int,
    both_strands: bool,
    report: Report = no_report,
) -> np.ndarray:
    """Mean features (S, D) float32 of each item; with `both_strands` averaged over the two strands.

    The network is put into evaluation mode. One that reads both strands itself processes an item
    once, and then returns D/2 features.
    """
    backbone.eval()
    device, stranded = next(backbone.parameters()).device, not both_strands
    result = torch.empty(len(items), pooled_width(backbone, stranded))
    two_passes = both_strands and not is_strand_invariant(backbone, stranded)
    for index, strands in strand_batches(items, batch_size, backbone.vocab, two_passes):
        total = torch.zeros(len(index), result.shape[1])
        for batch in strands:
            ids, valid, _ = batch.to(device)
            total += pool_features(backbone, ids, valid, stranded=stranded).cpu()
            report(0, ids.numel())
        result[index] = total / len(strands)
    return result.numpy()


class FrozenModel(TaskModel):
    """A scikit-learn model on the features of a network that is not trained on the task.

    `backbone` returns the network for a seed, another one for each if `random`; `about` identifies
    it in `describe`. `fit_info` records the validation score of every setting and the chosen one.
    """

    def __init__(
        self,
        backbone: Callable[[int], Backbone],
        random: bool = False,
        batch_size: int = 64,
        about: Mapping[str, object] | None = None,
        device: str = "cpu",
    ) -> None:
        self.backbone, self.random, self.batch_size, self.about, self.device = (
            backbone,
            random,
            batch_size,
            dict(about or {}),
            device,
        )
        self._embeddings: dict[tuple[bool, bytes], np.ndarray] = {}

    @override
    def describe(self) -> dict[str, Json]:
        return super().describe() | self.about

    @abstractmethod
    def candidates(self, num_items: int, estimators: Estimators) -> Mapping[str, BaseEstimator]:
        """Unfitted models by the name of their setting, of which the validation score chooses one.

        Args:
            num_items: training items that have a label; of several targets, of the one with the
                fewest.
        """

    @override
    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        backbone = self.backbone(seed).to(self.device)
        check_length(backbone, data)
        if self.random:
            self._embeddings.clear()
        train, valid, test = (
            self._features(backbone, items, not data.stranded, report)
            for items in (data.train, data.valid, data.test)
        )
        models = data.target.fit(data.train.labels).estimators
        candidates = self.candidates(int(data.train.labels.isfinite().sum(0).min()), models)
        best, self.fit_info = models.select(
            candidates, train, data.train.labels, valid, data.valid.labels
        )
        self.valid_predictions = models.predict(best, valid)
        return models.predict(best, test)

    def _features(
        self, backbone: Backbone, items: Items, both_strands: bool, report: Report
    ) -> np.ndarray:
        """As `embed`, with sequences of earlier calls (under another division of the data) taken
        from memory."""
        keys = [
            (both_strands, ids[:length].tobytes())
            for ids, length in zip(items.ids.numpy(), items.lengths.tolist())
        ]
        missing = [row for row, key in enumerate(keys) if key not in self._embeddings]
        if missing:
            new = embed(
                backbone, items.select(torch.tensor(missing)), self.batch_size, both_strands, report
            )
            self._embeddings |= {keys[row]: vector for row, vector in zip(missing, new)}
        return np.stack([self._embeddings[key] for key in keys])


class LinearProbe(FrozenModel):
    """Logistic or ridge regression on standardized features, with the penalty chosen on the
    validation items."""

    strengths: Sequence[float] = (0.001, 0.01, 0.1, 1.0, 10.0)

    @override
    def candidates(self, num_items: int, estimators: Estimators) -> dict[str, BaseEstimator]:
        from sklearn.preprocessing import StandardScaler

        return estimators.linear(StandardScaler(), self.strengths)


class NearestNeighbors(FrozenModel):
    """k nearest neighbors on standardized features of unit length, with k chosen on the validation
    items."""

    kind = "NearestNeighbours"  # as in the digests of earlier versions
    numbers: Sequence[int] = (1, 5, 15, 45)

    @override
    def candidates(self, num_items: int, estimators: Estimators) -> dict[str, BaseEstimator]:
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer, StandardScaler

        return {
            f"{number} neighbors": make_pipeline(
                StandardScaler(), Normalizer(), estimators.neighbors(number)
            )
            for number in self.numbers
            if number <= num_items
        }
