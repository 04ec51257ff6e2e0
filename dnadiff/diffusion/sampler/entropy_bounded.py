"""The entropy-bounded sampler (arXiv 2505.24857): as many positions per call as a bound on their
dependence allows."""

import torch
from torch import Tensor

from dnadiff.diffusion.sampler.adaptive import AdaptiveSampler, entropy
from dnadiff.fields import NonNegative, checked_dataclass


@checked_dataclass
class EntropyBounded(AdaptiveSampler):
    """Unmask the positions of lowest entropy as long as sum(H) - max(H) over them is at most
    `bound`.

    This is an upper bound on their mutual information, which is what drawing them independently
    loses. So `bound` is a budget in nats for each call; 0 unmasks one position at a time, and
    positions without entropy with it. The distribution converges to the model's as the bound goes
    to 0. The published sampler can rank by another proxy of the error; here the entropy is both
    proxy and bound.

    Args:
        bound: nats, gamma in the paper.
        temperature, top_k, nucleus: see `Sampler`; order and bound are those of the model's own
            distributions.

    Examples:
        >>> EntropyBounded(bound=0.5).num_steps_for(length=512)
        512
    """

    bound: NonNegative = 0.1

    exact = True
    has_weights = True

    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        return -entropy(log_probs.double() if log_probs.device.type != "mps" else log_probs)

    def choose(self, rank: Tensor, values: Tensor, unmasked: Tensor, total: Tensor) -> Tensor:
        order = rank.argsort(-1)
        nats = -values.gather(-1, order)  # ascending; +inf where nothing is masked
        lost = nats.cumsum(-1) - nats.cummax(-1).values
        within = torch.where(nats.isfinite(), lost, torch.inf) <= self.bound
        within[:, 0] = True
        return within.gather(-1, rank)
