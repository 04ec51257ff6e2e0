import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dnadiff.genomics.metrics.sample_quality import (
    auroc,
    discriminator_auroc,
    train_on_samples_bits,
)


def random_windows(number, length, seed, probs=(0.3, 0.2, 0.2, 0.3)):
    return list(
        np.random.default_rng(seed).choice(4, size=(number, length), p=probs).astype(np.uint8)
    )


def test_auroc_counts_ties_half():
    assert auroc(
        np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])
    ) == pytest.approx(3.5 / 4)
    assert auroc(np.zeros(6), np.arange(6) < 2) == 0.5


@pytest.mark.parametrize("num_values", [3, 20, 1_000_000])
def test_auroc_equals_that_of_scikit_learn(num_values):
    rng = np.random.default_rng(num_values)
    for size in (4, 40, 400):
        scores, labels = rng.integers(num_values, size=size) / 7, rng.permutation(size) < size // 3
        assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_discriminator_and_markov_model_detect_a_different_composition():
    same, other = (
        np.stack(random_windows(60, 200, 1)),
        np.stack(random_windows(60, 200, 2, (0.2, 0.3, 0.3, 0.2))),
    )
    counts = [np.stack([np.bincount(w, minlength=4) for w in windows]) for windows in (same, other)]
    assert (
        discriminator_auroc(*counts) > 0.95
        and 0.25 < discriminator_auroc(counts[0][:30], counts[0][30:]) < 0.75
    )
    entropy = -(0.6 * np.log2(0.3) + 0.4 * np.log2(0.2))
    assert (
        train_on_samples_bits(same[:30], same[30:], 2) == pytest.approx(entropy, abs=0.02)
        and train_on_samples_bits(other, same, 2) > entropy + 0.05
    )
