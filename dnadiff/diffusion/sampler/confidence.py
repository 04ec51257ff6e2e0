"""Unmask first the positions where the network is most confident, judged by its distributions."""

from typing import Literal

from torch import Tensor

from dnadiff.diffusion.sampler.adaptive import ORDERS, StepsSampler
from dnadiff.fields import checked_dataclass


@checked_dataclass
class Confidence(StepsSampler):
    """In each of K calls the positions with the most confident distributions are unmasked; their
    tokens are drawn afterwards.

    The order depends on distributions and not on tokens. So one position per call samples from the
    model's distribution, and a product distribution is sampled exactly with any number of calls.
    Positions of one call are drawn independently.

    Args:
        num_steps: see `StepsSampler`.
        order: `max` (probability of the most probable token), `margin` (over the second, arXiv
            2502.06768) or `entropy`.
        temperature, top_k, nucleus: see `Sampler`; the order is that of the model's own
            distributions.

    Examples:
        >>> Confidence(num_steps=32, order="margin").num_steps_for(length=512)
        32
    """

    order: Literal["max", "margin", "entropy"] = "entropy"

    exact = True
    has_weights = True

    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        return ORDERS[self.order](log_probs)
