"""The entropy-bounded sampler (arXiv 2505.24857): as many positions in a call as can depend on each other little enough."""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.sampler.adaptive import AdaptiveSampler, entropy
from dnadiff.sampler.base import finite


class EntropyBounded(AdaptiveSampler):
    """Open the positions of lowest entropy for as long as sum(H) - max(H) over them is at most `bound`.

    That is an upper bound on what drawing them independently loses (their mutual information), so `bound` is a budget in nats for each
    call; 0 opens one position at a time, and what is certain with it. The law tends to the model's as the bound falls.
    The published sampler may rank by another proxy of the error; here the entropy is both proxy and bound.

    Args:
        bound: nats, gamma of the paper.
        temperature: see `Sampler`; order and bound are those of the model's own distributions.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
    """

    def __init__(self, bound: float = 0.1, temperature: float = 1.0, top_k: int | None = None, nucleus: float = 1.0) -> None:
        if finite("bound", bound) < 0:
            raise ValueError(f"bound {bound} must be 0 or more nats; set sampler.bound")
        super().__init__(temperature, top_k, nucleus)
        self.bound = bound

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`: at worst one position a call."""
        return length

    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        """See `AdaptiveSampler.score`."""
        return -entropy(log_probs.double() if log_probs.device.type != "mps" else log_probs)

    def choose(self, rank: Tensor, values: Tensor, opened: Tensor, total: Tensor) -> Tensor:
        """See `AdaptiveSampler.choose`."""
        order = rank.argsort(-1)
        nats = -values.gather(-1, order)  # ascending; +inf where nothing is masked
        lost = nats.cumsum(-1) - nats.cummax(-1).values
        within = torch.where(nats.isfinite(), lost, torch.inf) <= self.bound
        within[:, 0] = True
        return within.gather(-1, rank)
