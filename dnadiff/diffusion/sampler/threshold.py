"""Threshold-parallel decoding (Fast-dLLM, arXiv 2505.22618): keep every drawn token whose
probability reaches a threshold."""

import math

from torch import Tensor

from dnadiff.diffusion.sampler.adaptive import TokensFirstSampler
from dnadiff.fields import PositiveFraction, checked_dataclass


@checked_dataclass
class Threshold(TokensFirstSampler):
    """In each call a token is drawn at every masked position. The most probable one is kept, and
    all with at least this probability.

    Where the network is confident, few calls are enough. Positions are chosen by tokens already
    drawn, so the distribution is not the model's (see `LowConfidence`). `sampler=fast_dllm` adds
    Fast-dLLM's blocks and caches.

    Args:
        threshold: a probability.

    Examples:
        >>> Threshold(threshold=0.8).num_steps_for(length=512)
        512
    """

    threshold: PositiveFraction = 0.9

    def choose(self, rank: Tensor, values: Tensor, unmasked: Tensor, total: Tensor) -> Tensor:
        return (rank == 0) | (values >= math.log(self.threshold))
