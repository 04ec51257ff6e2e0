"""Classifier guidance of discrete diffusion."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.method.base import DesignRun, Goal
from dnadiff.design.method.stepwise import Particles, Step, Stepwise, moved
from dnadiff.design.request import dna_tokenizer
from dnadiff.fields import checked

_BASES = "ACGT"


@checked
@dataclass(eq=False)
class ClassifierGuidance(Stepwise):
    """Discrete classifier-based guidance (D-CBG, arXiv 2412.10193): a token is drawn from p(x0_l |
    xt) exp(beta_k (r(x0') - r(x0))).

    x0 is predicted from the same network call, and x0' differs from it in the token at l. Positions
    of one step do not see each other's guidance. Deviation from the paper: its classifier reads
    noisy sequences, and a reward here reads complete ones. The importance weights, log p - log q of
    each token and beta r at the end, correct for both. Designs are independent of each other.

    Args:
        gradient: False evaluates the reward of every change: 1 + 3 N reward calls for a step that
            unmasks N tokens. True takes the first-order term of a differentiable reward: 2 calls
            for each step, whatever its size. The complete sequence takes one more.

    Examples:
        >>> ClassifierGuidance(gradient=True).gradient
        True
    """

    gradient: bool = False

    @override
    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        super().check(generator, goal)
        dna_tokenizer(generator.tokenizer)
        if self.gradient and not goal.reward.reward.has_gradient:
            raise ValueError(
                f"method.gradient=true needs a differentiable reward, and {goal.reward.name} has "
                "no gradient; set method.gradient=false"
            )

    @override
    def advance(self, run: DesignRun, particles: Particles, step: Step) -> Particles:
        log_p = log_q = step.log_probs_now
        rows = step.evaluated
        if bool(rows.any()):
            x0 = step.predict(run, particles.x, step.index)
            change = torch.zeros(log_p.shape, dtype=torch.float64)
            guided = rows[:, None].expand_as(step.now)[step.now].cpu()
            change[guided] = (first_order if self.gradient else every_change)(
                run, x0, step.now[rows]
            )
            beta = step.beta.cpu()[:, None].expand(step.now.shape)[step.now.cpu()]
            log_q = torch.where(
                guided[:, None].to(log_p.device),
                (log_p + (beta[:, None] * change).to(log_p)).log_softmax(-1),
                log_p,
            )
        uniform = run.uniform("token", step.now, 0)
        tokens = run.generator.sampler.unmask(step.index, step.num_steps, log_q, uniform)
        log_ratio = (log_p - log_q).gather(-1, tokens[:, None])[:, 0].to(run.exact_device).double()
        each = torch.zeros(step.now.shape, dtype=torch.float64, device=run.exact_device)
        each[step.now.to(run.exact_device)] = log_ratio
        # Only a complete sequence has a potential: the guided distribution takes the place of
        # earlier ones.
        last = replace(step, evaluated=step.done, beta=torch.full_like(step.beta, run.goal.beta))
        return moved(run, particles, last, tokens, each.sum(-1))


def every_change(run: DesignRun, x0: Tensor, now: Tensor) -> Tensor:
    """The change (N, V) of the reward of `x0 (B, L)` if the token at each of the positions
    `now (B, L)` is replaced by another base."""
    start, end = run.target.shown
    known = run.texts(x0)
    before = run.goal.reward(known)
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
        change[number, base] = run.goal.reward(changed) - before[row]
    return _of_tokens(run, change)


def first_order(run: DesignRun, x0: Tensor, now: Tensor) -> Tensor:
    """The first-order term of `every_change`."""
    start, end = run.target.shown
    known = run.texts(x0)
    slopes = run.goal.reward.gradient(known)[1]  # (B, end - start, 4)
    change = np.zeros((*now.shape, 4))
    index = np.array([[max(_BASES.find(letter), 0) for letter in text] for text in known])
    change[:, start:end] = slopes - np.take_along_axis(slopes, index[..., None], axis=-1)
    return _of_tokens(run, change[now.cpu().numpy()])


def _of_tokens(run: DesignRun, change: np.ndarray) -> Tensor:
    """(N, V) from the changes (N, 4) of the bases; 0 for other tokens."""
    tokenizer = dna_tokenizer(run.generator.tokenizer)
    found = np.zeros((len(change), tokenizer.vocab.size))
    found[:, tokenizer.ids_from_bases(range(4)).astype(np.int64)] = change
    return torch.from_numpy(found)
