import numpy as np
import pytest

from dnadiff.genomics.metrics.sample_quality import (
    discriminator_auroc,
    train_on_samples_bits,
)


def random_windows(number, length, seed, probs=(0.3, 0.2, 0.2, 0.3)):
    return list(
        np.random.default_rng(seed).choice(4, size=(number, length), p=probs).astype(np.uint8)
    )


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
