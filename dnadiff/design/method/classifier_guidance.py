"""Classifier guidance of discrete diffusion."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.method.base import DesignRun, Goal, Particles, Step, Stepwise
from dnadiff.design.request import dna_tokenizer
from dnadiff.fields import checked_dataclass

_BASES = "ACGT"


@checked_dataclass
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

    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        super().check(generator, goal)
        dna_tokenizer(generator.tokenizer)
        if self.gradient and not goal.reward.reward.has_gradient:
            raise ValueError(
                f"method.gradient=true needs a differentiable reward, and {goal.reward.name} has "
                "no gradient; set method.gradient=false"
            )

    def advance(self, step: Step) -> Particles:
        run = step.run
        rows = step.evaluated
        now = step.now
        log_p = log_q = step.log_probs_now
        if bool(rows.any()):
            x0 = step.predict(step.particles.x, step.index)
            change = torch.zeros(log_p.shape, dtype=torch.float64)
            guided = rows[:, None].expand_as(now)[now].cpu()
            found = (first_order if self.gradient else every_change)(run, x0, now[rows])
            bases = dna_tokenizer(run.generator.tokenizer).ids_from_bases(range(4)).tolist()
            change[guided.nonzero(), bases] = torch.from_numpy(found)
            beta = step.beta.cpu()[:, None].expand(now.shape)[now.cpu()]
            steered = (log_p + (beta[:, None] * change).to(log_p)).log_softmax(-1)
            log_q = torch.where(guided[:, None].to(log_p.device), steered, log_p)
        tokens = step.drawn(log_q, "token", 0)
        log_ratio = (log_p - log_q).gather(-1, tokens[:, None])[:, 0].to(run.exact_device).double()
        each = torch.zeros(now.shape, dtype=torch.float64, device=run.exact_device)
        each[now.to(run.exact_device)] = log_ratio
        # Only a complete sequence has a potential: the guided distribution takes the place of
        # earlier ones.
        last = replace(step, evaluated=step.done, beta=torch.full_like(step.beta, run.goal.beta))
        return last.moved(tokens, each.sum(-1))


def every_change(run: DesignRun, x0: Tensor, now: Tensor) -> np.ndarray:
    """The change (N, 4) of the reward of `x0 (B, L)` if the token at each of the positions
    `now (B, L)` is replaced by another base."""
    start, end = run.targets[0].shown
    known = run.texts(x0)
    before = run.goal.reward(known)
    change = np.zeros((int(now.sum()), 4))
    changed = []
    places = []
    for number, (row, column) in enumerate(now.nonzero().tolist()):
        text = known[row]
        at = column - start
        for base, letter in enumerate(_BASES if start <= column < end else ""):
            if text[at] != letter:
                changed.append(text[:at] + letter + text[at + 1 :])
                places.append((number, base, row))
    if changed:
        number, base, row = np.array(places).T
        change[number, base] = run.goal.reward(changed) - before[row]
    return change


def first_order(run: DesignRun, x0: Tensor, now: Tensor) -> np.ndarray:
    """The first-order term of `every_change`."""
    known = run.texts(x0)
    slopes = run.goal.reward.gradient(known)[1]  # (B, end - start, 4)
    change = np.zeros((*now.shape, 4))
    index = np.array([[max(_BASES.find(letter), 0) for letter in text] for text in known])
    before = np.take_along_axis(slopes, index[..., None], axis=-1)
    change[:, slice(*run.targets[0].shown)] = slopes - before
    return change[now.cpu().numpy()]
