"""Best of n: the baseline of all design methods."""

import torch

from dnadiff.design.generate import SampleBatch
from dnadiff.design.method.base import DesignMethod, DesignRun
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class BestOfN(DesignMethod):
    """For each design, draw `num_candidates` samples of the model and keep the one with the highest
    reward.

    It has no temperature: `beta` is not used, and the distribution of the designs is that of the
    maximum of n rewards. Works with every sampler and every kind of model. Reward calls per design:
    n.

    Args:
        num_candidates: n.

    Examples:
        >>> BestOfN(num_candidates=64)
        BestOfN(num_candidates=64)
    """

    num_candidates: PositiveInt = 16

    uses_beta = False

    def design(self, run: DesignRun) -> SampleBatch:
        best = run.template
        best_value = torch.full((len(run.template),), -torch.inf).double()
        best_value = best_value.to(run.exact_device)
        for candidate in range(self.num_candidates):
            # Candidate j of design i has the noise of sample i n + j.
            numbers = [number * self.num_candidates + candidate for number in run.numbers]
            x, _ = run.sampled(weighted=False, numbers=numbers)
            value = run.rewards(x)
            better = value > best_value
            best = torch.where(better.to(x.device)[:, None], x, best)
            best_value = torch.where(better, value, best_value)
        return run.batch(best, best_value)
