"""Resample-move: a population of complete sequences under a rising weight of the reward, with
Metropolis-Hastings moves by the model."""

import numpy as np
import torch

from dnadiff.design.generate import SampleBatch, effective_size
from dnadiff.design.method.base import DesignMethod, DesignRun
from dnadiff.design.method.metropolis import Metropolis, Move
from dnadiff.design.pilot import refined
from dnadiff.diffusion.sampler.base import Sampler
from dnadiff.fields import Fraction, PositiveInt, checked_dataclass


@checked_dataclass
class ResampleMove(DesignMethod):
    """Sequential Monte Carlo over complete sequences (resample-move, Gilks and Berzuini 2001; Del
    Moral, Doucet and Jasra 2006).

    The designs of a batch are one population. It begins with samples of the model. In stage k of
    `num_stages` its weights change by exp((beta_k - beta_{k-1}) r(x)), beta_k = beta k /
    num_stages. If the effective sample size falls below `threshold` times the size of the batch,
    sequences with a large weight are copied and others dropped. Then each sequence makes
    `num_moves` moves of `Metropolis` at beta_k, which make copies different again. Reward calls per
    design: 1 + the moves that change something, num_stages * num_moves at most.

    If samples and moves draw one position for each network call (`sampler=first_hitting`, or
    `grouped` with as many groups as positions, and `num_groups=null`), and the model's conditional
    distributions are those of one joint distribution p(x), weighted designs have the distribution
    p(x) exp(beta r(x)) as the population grows, and the mean weight is an unbiased estimate of its
    normalizing constant for a population of any size. Otherwise the designs have no weights: the
    samples that a population begins with have another distribution than the one that its moves
    leave unchanged. Their last stage always resamples, so that no weights are lost, and its beta is
    `refined` if a pilot chose it.

    Args:
        num_stages: steps of beta.
        num_moves: proposals in a stage.
        num_positions, num_groups: as in `Metropolis`.
        threshold: 0 never resamples (annealed importance sampling), 1 resamples whenever the
            weights differ.

    Examples:
        >>> ResampleMove(num_stages=32).num_moves
        1
    """

    num_stages: PositiveInt = 32
    num_moves: PositiveInt = 1
    num_positions: PositiveInt = 8
    num_groups: PositiveInt | None = None
    threshold: Fraction = 0.5

    has_weights = reads_whole = True
    needs = Metropolis.needs

    def supports_weights(self, sampler: Sampler, length: int) -> bool:
        return (
            super().supports_weights(sampler, length)
            and self.num_groups is None
            and sampler.draws_one_by_one(length)
        )

    def design(self, run: DesignRun) -> SampleBatch:
        x, of_samples = run.sampled()
        given = np.zeros(len(x)) if of_samples is None else of_samples
        log_weight = torch.from_numpy(given).to(run.exact_device)
        if bool(log_weight.isneginf().any()):
            # Impossible under the template: there are no conditional probabilities to move them by.
            ancestors, log_weight = run.resampled(log_weight, self.num_stages)
            x = x[ancestors]
        move = Move(run, self)
        value = run.rewards(x)
        weighted = self.supports_weights(run.generator.sampler, x.shape[1])
        goal = run.goal
        rise = goal.beta / self.num_stages
        more = 0.0
        for stage in range(self.num_stages):
            log_weight = log_weight + rise * value
            last = stage + 1 == self.num_stages and not weighted
            if last:
                weights = log_weight.cpu().numpy()
                more = refined(value.cpu().numpy(), weights, goal.beta, goal.level)
                log_weight = log_weight + more * value
            if last or effective_size(log_weight.cpu().numpy()) < self.threshold * len(x):
                ancestors, log_weight = run.resampled(log_weight, stage)
                x = x[ancestors]
                value = value[ancestors]
            for number in range(stage * self.num_moves, (stage + 1) * self.num_moves):
                x, value = move(x, value, rise * (stage + 1) + more, number)
        return run.batch(x, value, log_weight if weighted else None)
