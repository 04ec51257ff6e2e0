"""What small models learn from samples: to tell them from real windows, and to predict real windows from them."""

from __future__ import annotations

import numpy as np

from dnadiff.kmers import UNKNOWN
from dnadiff.markov.model import BackoffMarkov

_FOLDS = 5


def auroc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The chance that a positive item scores above a negative one, ties counted half: `scores (N,)`, `labels (N,)` bool."""
    order = np.argsort(scores, kind="stable")
    _, start, number = np.unique(scores[order], return_index=True, return_counts=True)
    rank = np.empty(len(scores))
    rank[order] = np.repeat(start + (number + 1) / 2, number)
    positive, negative = labels.sum(), (~labels).sum()
    return float((rank[labels].sum() - positive * (positive + 1) / 2) / (positive * negative))


def held_out_scores(samples: np.ndarray, real: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores (N,) of samples and real windows by logistic regressions that did not see them, and which are samples (N,) bool.

    Five folds; features are the square roots of word frequencies, from counts (S, W) and (R, W), each scaled to unit variance.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.concatenate([samples, real]).astype(float)
    features = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    labels = np.arange(len(counts)) < len(samples)
    scores = np.empty(len(counts))
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(features, labels):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)).fit(features[train], labels[train])
        found = model.decision_function(features[test])
        scores[test] = found - found.mean()  # every fold has an intercept of its own
    return scores, labels


def told_apart(samples: np.ndarray, real: np.ndarray) -> float:
    """AUROC of `held_out_scores`: 0.5 cannot tell, 1 always can."""
    return auroc(*held_out_scores(samples, real))


def taught(windows: np.ndarray, real: np.ndarray, order: int) -> float:
    """Bits per base of the windows `real (R, L)` under a Markov model trained on `windows (S, L)` alone.

    Counts are of four fifths of the windows; the strengths are chosen on the last fifth, so nothing real is read before it is coded.
    """
    chosen = max(1, len(windows) // 5)
    model = BackoffMarkov.fit(list(windows[chosen:]), order).tuned(list(windows[:chosen]))
    gap = np.full((len(real), 1), UNKNOWN, np.uint8)
    return float(-np.nanmean(model.log_probs(np.hstack([real, gap]).ravel())) / np.log(2))
