"""Mixup of the features that a head reads (mixup: arXiv 1710.09412; on hidden features: Manifold
Mixup, arXiv 1806.05236).

Mixed features have the labels of both sequences, in the same shares. Bases cannot be mixed: a
network reads ids.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dnadiff.draws import hash64
from dnadiff.supervised.classifier import Classifier


class Mixture(NamedTuple):
    """Item i of a batch has the `share` of itself and `1 - share` of item `order[i]`."""

    share: float
    order: Tensor


def draw_mixture(alpha: float, size: int, seed: int, step: int) -> Mixture:
    """A share from Beta(alpha, alpha) and a random order of a batch; the same seed and step give
    the same."""
    random = np.random.default_rng(hash64(seed, "mixup", step))
    return Mixture(float(random.beta(alpha, alpha)), torch.from_numpy(random.permutation(size)))


def mixed_logits(
    classifier: Classifier, ids: Tensor, valid: Tensor | None, mixture: Mixture
) -> Tensor:
    """Logits (B, C) of mixed features. The shorter sequence of a pair ends with zeros."""
    order, share = mixture.order.to(ids.device), mixture.share
    mixed = []
    for features in classifier.read(ids, valid):
        if valid is not None:
            features = torch.where(valid[..., None], features, 0.0)
        mixed.append(share * features + (1 - share) * features[order])
    return classifier.logits(mixed, None if valid is None else valid | valid[order])
