"""What a network has to beat: length, composition and word counts, under models from scikit-learn.

Like `finetuning.FineTunedModel`, a baseline is called with a task and a seed and gives log-probabilities of the test items. Configured
ones (`configs/baselines/`) are called with a tokenizer first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnadiff.downstream.items import Items, TaskData
from dnadiff.kmers import UNKNOWN, codes, reverse_complement_codes


class Fitted(ABC):
    """Features of a sequence under a model of scikit-learn whose one setting is chosen on the validation items.

    Args:
        tokenizer: knows which base a token id is.

    Attributes:
        found: of the last call: accuracy on the validation items of every setting, and which was chosen.
    """

    random = False

    def __init__(self, tokenizer: Any) -> None:
        self.bases, self.found = tokenizer.bases, {}

    @abstractmethod
    def features(self, items: Items, stranded: bool) -> Any:
        """(S, F), dense or sparse."""

    @abstractmethod
    def candidates(self) -> Mapping[str, Any]:
        """Unfitted models under their setting, of which the most accurate on the validation items is taken; the first among equals."""

    def describe(self) -> dict[str, Any]:
        """What the result depends on, besides the task."""
        return {"kind": type(self).__name__, **{key: value for key, value in vars(self).items() if key not in ("bases", "found")}}

    def num_steps(self, data: TaskData) -> int:
        """None that are worth counting."""
        return 0

    def __call__(self, data: TaskData, seed: int = 0, report: Callable[..., None] | None = None) -> Tensor:
        """Log-probabilities of the test items, (S, C)."""
        train, valid, test = (self.features(items, data.stranded) for items in (data.train, data.valid, data.test))
        best, self.found = most_accurate(self.candidates(), train, data.train.labels.numpy(), valid, data.valid.labels.numpy())
        return log_probs_of(best, test, len(data.classes))


def most_accurate(
    candidates: Mapping[str, Any], train: Any, labels: np.ndarray, valid: Any, valid_labels: np.ndarray
) -> tuple[Any, dict[str, Any]]:
    """Fit every candidate; the one that is most often right on the validation items (the first among equals), and how often each was."""
    models = {name: model.fit(train, labels) for name, model in candidates.items()}
    tried = {name: float(model.score(valid, valid_labels)) for name, model in models.items()}
    best = max(tried, key=lambda name: tried[name])
    return models[best], {"tried": tried, "chosen": best, "valid_accuracy": tried[best]}


def log_probs_of(model: Any, features: Any, num_classes: int) -> Tensor:
    """Log-probabilities (S, C) of a fitted model; classes that it has not seen get almost none."""
    found = np.full((features.shape[0], num_classes), 1e-12)
    found[:, model.classes_] = np.maximum(model.predict_proba(features), 1e-12)
    return torch.from_numpy(np.log(found / found.sum(1, keepdims=True)))


def logistic(scaler: Any, strengths: Sequence[float]) -> dict[str, Any]:
    """Logistic regressions on scaled features, one for each value of scikit-learn's C."""
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return {f"C = {strength:g}": make_pipeline(clone(scaler), LogisticRegression(C=strength, max_iter=1000)) for strength in strengths}


class KmerLogistic(Fitted):
    """Logistic regression on the square roots of the frequencies of words of k bases.

    Unless the task is stranded a word and its reverse complement are one feature. The square root keeps words that occur
    twice from outweighing the many that occur once. The strength of the penalty is chosen on the validation items.

    Args:
        tokenizer: see `Fitted`.
        k: length of a word.
        strengths: values of scikit-learn's C to choose from; the larger, the weaker the penalty.
    """

    def __init__(self, tokenizer: Any, k: int = 6, strengths: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0)) -> None:
        super().__init__(tokenizer)
        self.k, self.strengths = k, tuple(strengths)

    def features(self, items: Items, stranded: bool) -> Any:
        """Sparse (S, 4**k), the square roots of counts."""
        return kmer_counts(self.bases(items.ids.numpy()), items.lengths.numpy(), self.k, both_strands=not stranded).sqrt()

    def candidates(self) -> dict[str, Any]:
        """See `Fitted`."""
        from sklearn.preprocessing import Normalizer

        return logistic(Normalizer(), self.strengths)


class KmerBoosting(Fitted):
    """Gradient boosting on the frequencies of words of k bases; stops by the validation items.

    Args:
        tokenizer: see `Fitted`.
        k: length of a word.
        rounds: numbers of trees for each class to choose from.
        rate: learning rate.
    """

    def __init__(self, tokenizer: Any, k: int = 4, rounds: Sequence[int] = (50, 100, 200), rate: float = 0.1) -> None:
        super().__init__(tokenizer)
        self.k, self.rounds, self.rate = k, tuple(rounds), rate

    def features(self, items: Items, stranded: bool) -> np.ndarray:
        """Dense (S, F) float32, shares of all words; with both strands only one word of each pair."""
        counts = kmer_counts(self.bases(items.ids.numpy()), items.lengths.numpy(), self.k, both_strands=not stranded)
        if not stranded:
            words = np.arange(4**self.k, dtype=np.uint64)
            counts = counts[:, np.flatnonzero(words <= reverse_complement_codes(words, self.k))]
        dense = counts.toarray().astype(np.float32)
        return dense / np.maximum(dense.sum(1, keepdims=True), 1)

    def candidates(self) -> dict[str, Any]:
        """See `Fitted`."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        return {
            f"{number} trees": HistGradientBoostingClassifier(
                max_iter=number, learning_rate=self.rate, early_stopping=False, random_state=0
            )
            for number in self.rounds
        }


class LengthAlone(Fitted):
    """How far the length of a sequence gives its class away: boosted trees on this one number."""

    def features(self, items: Items, stranded: bool) -> np.ndarray:
        """(S, 1) bases."""
        return items.lengths.numpy()[:, None].astype(np.float32)

    def candidates(self) -> dict[str, Any]:
        """See `Fitted`."""
        return _small_trees()


class GCAlone(Fitted):
    """How far the share of G and C gives the class away: boosted trees on this one number."""

    def features(self, items: Items, stranded: bool) -> np.ndarray:
        """(S, 1), G and C among the known bases; 0.5 where none is known."""
        bases = np.where(np.arange(items.ids.shape[1]) < items.lengths.numpy()[:, None], self.bases(items.ids.numpy()), UNKNOWN)
        known, strong = (bases < UNKNOWN).sum(1), ((bases == 1) | (bases == 2)).sum(1)
        return np.where(known > 0, strong / np.maximum(known, 1), 0.5)[:, None].astype(np.float32)

    def candidates(self) -> dict[str, Any]:
        """See `Fitted`."""
        return _small_trees()


def _small_trees() -> dict[str, Any]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return {
        f"{number} trees": HistGradientBoostingClassifier(max_iter=number, max_leaf_nodes=7, early_stopping=False, random_state=0)
        for number in (10, 30, 100)
    }


def kmer_counts(bases: np.ndarray, lengths: np.ndarray, k: int, both_strands: bool) -> Any:
    """How often each word occurs in each row.

    Args:
        bases: (S, L) uint8: A, C, G, T as 0..3, all else 4.
        lengths: (S,); what follows in a row is not read.
        k: length of a word.
        both_strands: count a word and its reverse complement together, under the smaller code.

    Returns:
        A SciPy sparse matrix (S, 4**k) float64.
    """
    from scipy.sparse import csr_matrix

    rows, length = bases.shape
    # An unknown base behind every row: no word crosses from one row into the next.
    flat = np.full((rows, length + 1), UNKNOWN, np.uint8)
    flat[:, :-1] = np.where(np.arange(length) < lengths[:, None], bases, UNKNOWN)
    words, known = codes(flat.ravel(), k)
    if both_strands:
        words = np.minimum(words, reverse_complement_codes(words, k))
    place = np.flatnonzero(known)
    return csr_matrix((np.ones(len(place)), (place // (length + 1), words[place].astype(np.int64))), shape=(rows, 4**k))
