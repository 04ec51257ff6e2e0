"""What a network has to beat: models of word counts, from scikit-learn.

Like `classifier.Network`, a baseline is called with a task and a seed and gives log-probabilities of the test items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnadiff.downstream.items import Items, TaskData
from dnadiff.kmers import UNKNOWN, codes, reverse_complement_codes


class KmerLogistic:
    """Logistic regression on the square roots of the frequencies of words of k bases.

    Unless the task is stranded a word and its reverse complement are one feature. The square root keeps words that occur
    twice from outweighing the many that occur once. The strength of the penalty is chosen on the validation items.

    Args:
        bases: token ids to bases, a tokenizer's `bases`.
        k: length of a word.
        strengths: values of scikit-learn's C to choose from; the larger, the weaker the penalty.
    """

    random = False

    def __init__(self, bases: Callable[[Any], np.ndarray], k: int = 6, strengths: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0)) -> None:
        self.bases, self.k, self.strengths = bases, k, tuple(strengths)

    def num_steps(self, data: TaskData) -> int:
        """None that are worth counting."""
        return 0

    def features(self, items: Items, stranded: bool) -> Any:
        """Sparse (S, 4**k), rows of unit length."""
        return kmer_counts(self.bases(items.ids.numpy()), items.lengths.numpy(), self.k, both_strands=not stranded).sqrt()

    def __call__(self, data: TaskData, seed: int = 0, report: Callable[..., None] | None = None) -> Tensor:
        """Log-probabilities of the test items, (S, C)."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer

        train, valid, test = (self.features(items, data.stranded) for items in (data.train, data.valid, data.test))

        def fitted(strength: float) -> Any:
            return make_pipeline(Normalizer(), LogisticRegression(C=strength, max_iter=1000)).fit(train, data.train.labels.numpy())

        models = [fitted(strength) for strength in self.strengths]
        scores = [model.score(valid, data.valid.labels.numpy()) for model in models]
        best = models[int(np.argmax(scores))]
        return torch.from_numpy(best.predict_log_proba(test))


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
