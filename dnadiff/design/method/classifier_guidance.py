"""Classifier guidance of discrete diffusion."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.method.base import Goal, texts
from dnadiff.design.method.stepwise import Batch, Particles, Step, Stepwise, moved
from dnadiff.design.template import dna_tokenizer

_BASES = "ACGT"


@dataclass(eq=False)
class ClassifierGuidance(Stepwise):
    """Discrete classifier-based guidance (D-CBG, arXiv 2412.10193): a token is drawn from p(x0_l | xt) exp(beta_k (r(x0') - r(x0))).

    x0 is predicted from the same network call, and x0' differs from it in the token at l. Positions of one step do not see each other's
    guidance. Deviation from the paper: its classifier reads noisy sequences, and a reward here reads complete ones. The importance weights,
    log p - log q of each token and beta r at the end, correct for both. Designs are independent of each other.

    Args:
        gradient: False evaluates the reward of every change: 1 + 3 N reward calls for a step that unmasks N tokens. True takes the
            first-order term of a differentiable reward: 2 calls for each step, whatever its size.

    Example:
        >>> ClassifierGuidance(gradient=True).gradient
        True
    """

    gradient: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gradient = checks.boolean("method.gradient", self.gradient)

    @override
    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        super().check(generator, goal)
        dna_tokenizer(generator.tokenizer)
        if self.gradient and not goal.reward.reward.has_gradient:
            raise ValueError(
                f"method.gradient=true needs a differentiable reward, and {goal.reward.name} has no gradient; set method.gradient=false"
            )

    @override
    def advance(self, batch: Batch, particles: Particles, step: Step) -> Particles:
        log_p = log_q = step.log_probs_now
        if step.is_evaluated:
            x0 = batch.predicted(particles.x, step, step.number)
            change = (first_order if self.gradient else every_change)(batch, x0, step.now)
            log_q = (log_p + step.beta * change.to(log_p)).log_softmax(-1)
        uniform = batch.uniform("token", step.now, 0)
        tokens = batch.generator.sampler.unmask(step.index, step.num_steps, log_q, uniform)
        log_ratio = (log_p - log_q).gather(-1, tokens[:, None])[:, 0].double()
        each = torch.zeros(step.now.shape, dtype=torch.float64, device=log_ratio.device).masked_scatter(step.now, log_ratio)
        # Only the complete sequence has a potential: the guided distribution takes the place of earlier ones.
        return moved(batch, particles, replace(step, is_evaluated=step.is_last, beta=batch.goal.beta), tokens, each.sum(-1))


def every_change(batch: Batch, x0: Tensor, now: Tensor) -> Tensor:
    """The change (N, V) of the reward of `x0 (B, L)` if the token at each of the positions `now (B, L)` is replaced by another base."""
    start, end = batch.target.shown
    known = texts(batch.generator, batch.target, x0)
    before = batch.goal.reward(known)
    change = np.zeros((int(now.sum()), 4))
    changed, places = [], []
    for number, (row, column) in enumerate(now.nonzero().tolist()):
        if not start <= column < end:
            continue
        text, at = known[row], column - start
        for base in range(4):
            if text[at] != _BASES[base]:
                changed.append(text[:at] + _BASES[base] + text[at + 1 :])
                places.append((number, base, row))
    if changed:
        number, base, row = np.array(places).T
        change[number, base] = batch.goal.reward(changed) - before[row]
    return _of_tokens(batch, change)


def first_order(batch: Batch, x0: Tensor, now: Tensor) -> Tensor:
    """The first-order term of `every_change`."""
    start, end = batch.target.shown
    known = texts(batch.generator, batch.target, x0)
    slopes = batch.goal.reward.gradient(known)[1]  # (B, end - start, 4)
    change = np.zeros((*now.shape, 4))
    index = np.array([[max(_BASES.find(letter), 0) for letter in text] for text in known])
    change[:, start:end] = slopes - np.take_along_axis(slopes, index[..., None], axis=-1)
    return _of_tokens(batch, change[now.cpu().numpy()])


def _of_tokens(batch: Batch, change: np.ndarray) -> Tensor:
    """(N, V) from the changes (N, 4) of the bases; 0 for other tokens."""
    tokenizer = dna_tokenizer(batch.generator.tokenizer)
    found = np.zeros((len(change), tokenizer.vocab.size))
    found[:, tokenizer.ids_from_bases(range(4)).astype(np.int64)] = change
    return torch.from_numpy(found)
