"""Samplers that may remask visible tokens (ReMDM, arXiv 2503.00307): one loop, and strategies for
how much to remask.

Between t and s a visible token is remasked with probability r, and masked ones are unmasked more
often, so that the fraction of visible tokens stays alpha_s; r = 0 is `Ancestral`. Which tokens
change does not depend on the network and is drawn first, and a sequence is evaluated only in steps
that unmask something in it.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.process import AbsorbingProcess, unmask_probability
from dnadiff.diffusion.sampler.base import Configurable, CountedDenoiser, GridSampler
from dnadiff.fields import Fraction, InnerFraction, checked_dataclass


class Remasking(Configurable, ABC):
    """The probability r that a visible token is masked again."""

    def alpha(self, noise: NoiseSchedule, time: Tensor) -> Tensor:
        """Fraction of visible tokens at each time of the grid, (T + 1,); that of the process by
        default."""
        return noise.alpha(time)

    @abstractmethod
    def probability(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        """r for one step, at most `largest` = min(1, (1 - alpha_s)/alpha_t); all are numbers ()."""

    def per_position(self, probability: Tensor, confidence: Tensor) -> Tensor:
        """r of each position, broadcasting to (B, L), from r () of the step.

        `confidence (B, L)` is the probability of each token when it was drawn, inf where nothing
        can be remasked.
        """
        return probability


@checked_dataclass
class Cap(Remasking):
    """At most `eta` per step (ReMDM-cap)."""

    eta: Fraction = 0.008

    def probability(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        return largest.clamp(max=self.eta)


@checked_dataclass
class Rescale(Remasking):
    """The fraction `eta` of the largest possible r (ReMDM-rescale)."""

    eta: Fraction = 0.015

    def probability(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        return self.eta * largest


class Confident(Remasking):
    """The largest possible r, distributed by a softmax: less probable tokens are remasked more
    often (ReMDM-conf).

    As published, masked positions are unmasked at the ancestral rate. It depends on tokens, so not
    even a product distribution is sampled exactly.
    """

    def probability(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        return largest

    def per_position(self, probability: Tensor, confidence: Tensor) -> Tensor:
        return probability * torch.softmax(-confidence, dim=-1).nan_to_num(
            0.0
        )  # 0 where nothing can be remasked


@checked_dataclass
class Loop(Remasking):
    """Unmask the fraction `alpha_on` until `t_on`, remask `eta` per step at that level until
    `t_off`, unmask the rest (ReMDM-loop).

    Both ramps are linear in time, whatever the schedule. A step across `t_on` or `t_off` belongs to
    its ramp.
    """

    eta: Fraction = 0.02
    t_on: InnerFraction = 0.55
    t_off: InnerFraction = 0.05
    alpha_on: InnerFraction = 0.9

    def __post_init__(self) -> None:
        if self.t_on <= self.t_off:
            raise ValueError(f"t_on {self.t_on} must be above t_off {self.t_off}")

    def alpha(self, noise: NoiseSchedule, time: Tensor) -> Tensor:
        up = self.alpha_on * (1 - time) / (1 - self.t_on)
        rest = 1 - (1 - self.alpha_on) * time / self.t_off
        return torch.where(time > self.t_on, up, rest.clamp(min=self.alpha_on))

    def probability(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        return torch.where(
            alpha_t == alpha_s, largest.clamp(max=self.eta), 0.0
        )  # only on the plateau


class Forward(Remasking):
    """As often as the forward process masks, (alpha_s - alpha_t)/alpha_t: the forward-backward
    corrector."""

    def probability(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        return torch.minimum(
            (alpha_s - alpha_t) / alpha_t.clamp(min=torch.finfo(alpha_t.dtype).tiny), largest
        )


class RemaskingSampler(GridSampler):
    """The loop over the grid. Tokens of the template are never remasked.

    Subclasses set `remasking`. Samples have no importance weights: a weight would have to account
    for tokens that were drawn and remasked.
    """

    remasking: Remasking

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        template = x.clone()
        mask_id = process.vocab.mask_id
        length = x.shape[1]
        confidence = torch.full(x.shape, torch.inf, device=x.device)
        alpha = self.remasking.alpha(process.noise, self.times())
        left = ((1 - alpha) / (1 - alpha[0])).tolist()
        for i in range(self.num_steps):
            if self.leaves_masks(i):
                break
            last = i == self.num_steps - 1
            hidden = masked & (x == mask_id)
            largest = ((1 - alpha[i + 1]) / alpha[i].clamp(min=1e-300)).clamp(max=1.0)
            r = self.remasking.probability(alpha[i], alpha[i + 1], largest).to(confidence)
            r = self.remasking.per_position(r, confidence)
            u = draws.at(i).uniform("move", length)
            remasked = (u < r.to(u)).to(x.device) & masked & ~hidden & (not last)
            moves = (u < unmask_probability(alpha[i].to(u), alpha[i + 1].to(u), r.to(u))).to(
                x.device
            )
            now = hidden if last else hidden & moves
            after = torch.where(remasked, mask_id, x)
            if now.any():
                log_probs = calls.log_probs(
                    x, process.time_of(template, calls.valid, masked, left[i]), now
                )
                uniform = draws.at(i).uniform("token", length)
                after = self.unmasked(after, now, i, log_probs, uniform)
                found = log_probs.gather(-1, after[now][:, None])[:, 0]
                confidence[now] = found.exp().to(confidence)
            confidence[remasked] = torch.inf
            x = after
        return x
