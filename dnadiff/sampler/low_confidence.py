"""LLaDA's order (arXiv 2502.09992, low-confidence remasking): draw everywhere, keep the tokens that came out likely."""

from __future__ import annotations

from torch import Tensor

from dnadiff.sampler.adaptive import StepsSampler


class LowConfidence(StepsSampler):
    """In each of K calls a token is drawn at every masked position; those with the highest probability stay, the rest are masked again.

    Likely tokens are kept more often than they are drawn, so the law is not the model's, whatever the number of calls: two
    positions of (.7, .3) in two calls give .805. It trades variety for likelihood, as a low temperature does. The arguments are those of
    `StepsSampler`.
    """

    exact = False
    tokens_first = True
    has_weights = False

    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        """See `AdaptiveSampler.score`: the model's own probability of the token, whatever temperature drew it."""
        return log_probs.gather(-1, tokens[:, None])[:, 0]
