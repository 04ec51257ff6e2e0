"""Baselines on length, base composition and k-mer counts, with scikit-learn models.

Those configured in `configs/baselines/` are called with a tokenizer first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.config import Json
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.kmers import UNKNOWN, codes, reverse_complement_codes
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.model import Report, TaskModel, no_report
from dnadiff.supervised.targets.classes import ClassTarget
from dnadiff.supervised.targets.estimators import Estimators

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator

    from dnadiff.supervised.targets.estimators import Features

_CLEAR = 0.05  # an accuracy of the length alone that much above chance is reported
_BLOCK = 1 << 22  # positions whose k-mers are counted at once


class SklearnModel(TaskModel):
    """A scikit-learn model on features of a sequence, with one hyperparameter chosen on the
    validation items.

    `fit_info` records the validation score of every setting and the chosen one: of classes the
    accuracy, of other targets the loss.
    """

    random = False
    not_settings = frozenset(("bases", "fit_info", "valid_predictions"))

    def __init__(self, tokenizer: DNATokenizer) -> None:
        self.bases = tokenizer.bases

    @abstractmethod
    def features(self, items: Items, stranded: bool) -> Features:
        """(S, F), dense or sparse."""

    @abstractmethod
    def candidates(self, estimators: Estimators) -> Mapping[str, BaseEstimator]:
        """Unfitted models by the name of their setting. The one with the best validation score is
        used; the first one in a tie."""

    @override
    def describe(self) -> dict[str, Json]:
        return super().describe() | {
            key: value for key, value in vars(self).items() if key not in self.not_settings
        }

    @override
    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        train, valid, test = (
            self.features(items, data.stranded) for items in (data.train, data.valid, data.test)
        )
        models = data.target.fit(data.train.labels).estimators
        best, self.fit_info = models.select(
            self.candidates(models), train, data.train.labels, valid, data.valid.labels
        )
        self.valid_predictions = models.predict(best, valid)
        return models.predict(best, test)


class KmerLogistic(SklearnModel):
    """Logistic regression on the square roots of k-mer frequencies; for a regression ridge
    regression.

    Unless the task is stranded, a k-mer and its reverse complement are one feature. The square root
    keeps k-mers that occur twice from outweighing the many that occur once.

    Args:
        strengths: values of scikit-learn's C, or of 1 / alpha of ridge regression, to choose from;
            the larger, the weaker the penalty.
    """

    def __init__(
        self,
        tokenizer: DNATokenizer,
        k: int = 6,
        strengths: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0),
    ) -> None:
        super().__init__(tokenizer)
        self.k, self.strengths = k, tuple(strengths)

    @override
    def features(self, items: Items, stranded: bool) -> csr_matrix:
        return kmer_counts(
            self.bases(items.ids.numpy()), items.lengths.numpy(), self.k, both_strands=not stranded
        ).sqrt()

    @override
    def candidates(self, estimators: Estimators) -> dict[str, BaseEstimator]:
        from sklearn.preprocessing import Normalizer

        return estimators.linear(Normalizer(), self.strengths)


class KmerBoosting(SklearnModel):
    """Gradient boosting on k-mer frequencies.

    Args:
        rounds: numbers of trees per class to choose from.
    """

    def __init__(
        self,
        tokenizer: DNATokenizer,
        k: int = 4,
        rounds: Sequence[int] = (50, 100, 200),
        rate: float = 0.1,
    ) -> None:
        super().__init__(tokenizer)
        self.k, self.rounds, self.rate = k, tuple(rounds), rate

    @override
    def features(self, items: Items, stranded: bool) -> np.ndarray:
        counts = kmer_counts(
            self.bases(items.ids.numpy()), items.lengths.numpy(), self.k, both_strands=not stranded
        )
        if not stranded:
            kmers = np.arange(4**self.k, dtype=np.uint64)
            counts = counts[:, np.flatnonzero(kmers <= reverse_complement_codes(kmers, self.k))]
        dense = counts.toarray().astype(np.float32)
        return dense / np.maximum(dense.sum(1, keepdims=True), 1)

    @override
    def candidates(self, estimators: Estimators) -> dict[str, BaseEstimator]:
        return estimators.boosting(self.rounds, learning_rate=self.rate)


class LengthAlone(SklearnModel):
    """Gradient boosting on the length of the sequence alone: how much the length reveals."""

    @override
    def features(self, items: Items, stranded: bool) -> np.ndarray:
        return items.lengths.numpy()[:, None].astype(np.float32)

    @override
    def candidates(self, estimators: Estimators) -> dict[str, BaseEstimator]:
        return estimators.boosting((10, 30, 100), max_leaf_nodes=7)


def length_alone(data: TaskData) -> dict[str, float] | None:
    """Validation accuracy of the length alone and of the most frequent class, if the length is
    clearly better: by .05 and three standard errors."""
    if (
        data.target.primary != ClassTarget.primary
        or data.min_length == data.max_length
        or not len(data.valid)
    ):
        return None
    model, labels = LengthAlone(DNATokenizer()), data.valid.labels
    model.fit_predict(replace(data, test=data.valid.select(torch.arange(1))))
    assert model.valid_predictions is not None
    accuracy = float((model.valid_predictions.argmax(-1) == labels).double().mean())
    frequent = data.target.chance(labels.numpy())
    clear = max(_CLEAR, 3 * (frequent * (1 - frequent) / len(labels)) ** 0.5)
    return {"accuracy": accuracy, "chance": frequent} if accuracy - frequent > clear else None


class GCAlone(SklearnModel):
    """Gradient boosting on the GC content alone; it is 0.5 for a sequence without a known base."""

    @override
    def features(self, items: Items, stranded: bool) -> np.ndarray:
        bases = np.where(
            np.arange(items.ids.shape[1]) < items.lengths.numpy()[:, None],
            self.bases(items.ids.numpy()),
            UNKNOWN,
        )
        known, gc = (bases < UNKNOWN).sum(1), ((bases == 1) | (bases == 2)).sum(1)
        return np.where(known > 0, gc / np.maximum(known, 1), 0.5)[:, None].astype(np.float32)

    @override
    def candidates(self, estimators: Estimators) -> dict[str, BaseEstimator]:
        return estimators.boosting((10, 30, 100), max_leaf_nodes=7)


def kmer_counts(bases: np.ndarray, lengths: np.ndarray, k: int, both_strands: bool) -> csr_matrix:
    """How often each k-mer occurs in each row, (S, 4**k) float64.

    Args:
        bases: (S, L) uint8: A, C, G, T as 0..3, everything else 4.
        lengths: (S,); the rest of a row is ignored.
        both_strands: count a k-mer and its reverse complement together, under the smaller code.
    """
    from scipy.sparse import csr_matrix, vstack

    def counted(bases: np.ndarray, lengths: np.ndarray) -> csr_matrix:
        rows, length = len(bases), int(lengths.max(initial=0))
        # An unknown base after every row: no k-mer spans two rows.
        flat = np.full((rows, length + 1), UNKNOWN, np.uint8)
        flat[:, :-1] = np.where(np.arange(length) < lengths[:, None], bases[:, :length], UNKNOWN)
        kmers, known = codes(flat.ravel(), k)
        if both_strands:
            kmers = np.minimum(kmers, reverse_complement_codes(kmers, k))
        start = np.flatnonzero(known)
        return csr_matrix(
            (np.ones(len(start)), (start // (length + 1), kmers[start].astype(np.int64))),
            shape=(rows, 4**k),
        )

    step = max(
        1, _BLOCK // (bases.shape[1] + 1)
    )  # rows at once: one long sequence does not set the memory for all
    parts = [
        counted(bases[first : first + step], lengths[first : first + step])
        for first in range(0, len(bases), step)
    ]
    return vstack(parts, format="csr") if parts else csr_matrix((0, 4**k))
