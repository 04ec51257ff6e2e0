"""What small models learn from samples: to discriminate them from real windows, and to predict real
windows."""

from __future__ import annotations

import numpy as np

from dnadiff.kmers import UNKNOWN
from dnadiff.markov.model import BackoffMarkov

_FOLDS = 5


def cross_validated_scores(
    samples: np.ndarray, real: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Cross-validated scores of logistic regressions that discriminate samples from real windows.

    Five folds. Features are the square roots of k-mer frequencies from the counts `samples (S, W)`
    and `real (R, W)`, each scaled to unit variance. Returns scores (S + R,) float and labels (S +
    R,) bool, True for samples.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.concatenate([samples, real]).astype(float)
    features = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    labels = np.arange(len(counts)) < len(samples)
    scores = np.empty(len(counts))
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(
        features, labels
    ):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)).fit(
            features[train], labels[train]
        )
        decision = model.decision_function(features[test])
        scores[test] = decision - decision.mean()  # each fold has its own intercept
    return scores, labels


def auroc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve of `scores (N,)` for `labels (N,)` bool; ties count half
    (Mann-Whitney U)."""
    from scipy.stats import rankdata

    positive = int(labels.sum())
    above = rankdata(scores)[labels].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (len(labels) - positive)))


def discriminator_auroc(samples: np.ndarray, real: np.ndarray) -> float:
    """AUROC of `cross_validated_scores`: 0.5 is chance, 1 separates samples from real windows
    perfectly."""
    return auroc(*cross_validated_scores(samples, real))


def train_on_samples_bits(samples: np.ndarray, real: np.ndarray, order: int) -> float:
    """Bits per base of the real windows `real (R, L)` under a Markov model trained on
    `samples (S, L)` only.

    Counts come from four fifths of the samples, and the back-off strengths from the last fifth:
    real windows are only tested on.
    """
    num_tuning = max(1, len(samples) // 5)
    model = BackoffMarkov.fit(list(samples[num_tuning:]), order).tuned(list(samples[:num_tuning]))
    gap = np.full((len(real), 1), UNKNOWN, np.uint8)
    return float(-np.nanmean(model.log_probs(np.hstack([real, gap]).ravel())) / np.log(2))
