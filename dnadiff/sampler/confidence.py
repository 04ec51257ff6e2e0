"""Reveal first what the network is sure about, judged by its distributions."""

from __future__ import annotations

from torch import Tensor

from dnadiff.sampler.adaptive import ORDERS, StepsSampler, check_order


class Confidence(StepsSampler):
    """In each of K calls the positions whose distribution is surest; their tokens are drawn afterwards.

    The order looks at distributions and not at tokens, so one position at a time has the model's law (and a product law comes out
    exactly in any number of calls). Positions of one call are drawn independently, as ever.

    Args:
        num_steps: see `StepsSampler`.
        order: `max` (probability of the likeliest token), `margin` (over the second, arXiv 2502.06768) or `entropy`.
        temperature: see `Sampler`; the order is that of the model's own distributions.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
    """

    def __init__(
        self,
        num_steps: int | None = None,
        order: str = "entropy",
        temperature: float = 1.0,
        top_k: int | None = None,
        nucleus: float = 1.0,
    ) -> None:
        super().__init__(num_steps, temperature, top_k, nucleus)
        self.order = check_order(order)

    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        """See `AdaptiveSampler.score`."""
        return ORDERS[self.order](log_probs)
