"""Threshold-parallel decoding (Fast-dLLM, arXiv 2505.22618): keep every drawn token that is probable enough."""

from __future__ import annotations

import math

from torch import Tensor

from dnadiff.sampler.adaptive import AdaptiveSampler
from dnadiff.sampler.base import finite


class Threshold(AdaptiveSampler):
    """In each call a token is drawn at every masked position; the likeliest stays, and all whose probability is at least `threshold`.

    Where the network is sure of much, few calls do. Positions are chosen by tokens already drawn, so the law is not the
    model's (see `DrawnToken`). Fast-dLLM's blocks are `sampler=semi_ar` around it; its approximate key-value cache is left out.

    Args:
        threshold: a probability.
        temperature: see `Sampler`.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
    """

    exact = False
    tokens_first = True
    has_weights = False

    def __init__(self, threshold: float = 0.9, temperature: float = 1.0, top_k: int | None = None, nucleus: float = 1.0) -> None:
        if not 0 < finite("threshold", threshold) <= 1:
            raise ValueError(f"threshold {threshold} must be a probability in (0, 1]; set sampler.threshold")
        super().__init__(temperature, top_k, nucleus)
        self.threshold = threshold

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`: at worst one position a call."""
        return length

    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        """See `AdaptiveSampler.score`."""
        return log_probs.gather(-1, tokens[:, None])[:, 0]

    def choose(self, rank: Tensor, values: Tensor, opened: Tensor, total: Tensor) -> Tensor:
        """See `AdaptiveSampler.choose`."""
        return (rank == 0) | (values >= math.log(self.threshold))
