"""SVDD: one of several candidates at every step, drawn in proportion to exp(beta r)."""

import math

import torch

from dnadiff.design.method.base import Particles, Step, Stepwise
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class SVDD(Stepwise):
    """Soft value-based decoding (arXiv 2408.08252): each step draws candidates, and one is chosen
    by the reward of its predicted x0.

    A candidate is chosen with a probability proportional to exp(beta_k r); the paper takes the best
    one, its limit for large `beta`. The weight of the choice is the mean of exp(beta_k r) over the
    candidates, which makes the designs weighted samples of p(x) exp(beta r(x)), as in nested
    sequential Monte Carlo. Designs are independent of each other. Reward calls per design:
    `num_candidates` times steps / `every`; other steps draw one candidate.

    Args:
        num_candidates: at each step.

    Examples:
        >>> SVDD(num_candidates=8, every=4).num_candidates
        8
    """

    num_candidates: PositiveInt = 4

    def advance(self, step: Step) -> Particles:
        run = step.run
        before = step.particles
        rows = step.evaluated.to(run.exact_device)
        count = self.num_candidates if bool(rows.any()) else 1
        candidates = []
        value = before.value[:, None].repeat(1, count)
        for candidate in range(count):
            number = step.index * self.num_candidates + candidate
            candidates.append(step.filled(step.drawn(step.log_probs_now, "candidate", number)))
            if bool(rows.any()):
                value[rows, candidate] = run.rewards(step.predict(candidates[-1], number))
        # A sequence that is not evaluated keeps its potential, and takes its first candidate.
        log_potential = torch.where(
            rows[:, None], step.beta[:, None] * value, before.log_potential[:, None]
        )
        uniform = run.draws.at(step.index).uniform("choice", 1).to(value.device)
        chosen = (uniform >= log_potential.softmax(-1).cumsum(-1)).sum(-1).clamp(max=count - 1)
        chosen = torch.where(rows, chosen, 0)[:, None]  # (B, 1)
        every = torch.stack(candidates, 1)  # (B, n, L)
        x = every.take_along_dim(chosen[..., None].to(every.device), 1)[:, 0]
        # What the constraints cost is the same for all candidates: it depends on the tokens that
        # were visible.
        added = log_potential.logsumexp(-1) - math.log(count) - before.log_potential
        value, potential = (of.gather(1, chosen)[:, 0] for of in (value, log_potential))
        return step.weighted(x, value, potential, added)
