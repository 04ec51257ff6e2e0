"""Samplers that may take tokens back: the remasking family (ReMDM, arXiv 2503.00307), one loop and the choices of how much to remask.

Between t and s a visible token returns to the mask with probability r, and masked ones are revealed so much more often that the
share of visible tokens stays alpha_s: r = 0 is `Ancestral`. Coins do not look at the network, so they fall first, and a sequence
that reveals nothing at a step costs nothing there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.noise import NoiseSchedule
from dnadiff.process import AbsorbingProcess, reveal_chance
from dnadiff.sampler.base import CountedDenoiser, GridSampler, Samples, finite, time_left, to_fill


class Remasking(ABC):
    """How probable it is that a visible token is masked again."""

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def alpha(self, noise: NoiseSchedule, time: Tensor) -> Tensor:
        """Share of visible tokens at each time of the grid, (T + 1,); the process's own unless there is a reason."""
        return noise.alpha(time)

    @abstractmethod
    def chance(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        """r for one step, at most `largest` = min(1, (1 - alpha_s)/alpha_t); all are numbers ()."""

    def spread(self, chance: Tensor, confidence: Tensor) -> Tensor:
        """r of each position, broadcasting to (B, L), where it is not the same for all.

        Args:
            chance: () r of the step.
            confidence: (B, L) probability of each token when it was drawn, inf where there is none to take back.
        """
        return chance


class Cap(Remasking):
    """No more than `eta` a step (ReMDM-cap)."""

    def __init__(self, eta: float = 0.008) -> None:
        self.eta = _share("eta", eta)

    def chance(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        """See `Remasking.chance`."""
        return largest.clamp(max=self.eta)


class Rescale(Remasking):
    """The part `eta` of what is possible (ReMDM-rescale)."""

    def __init__(self, eta: float = 0.015) -> None:
        self.eta = _share("eta", eta)

    def chance(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        """See `Remasking.chance`."""
        return self.eta * largest


class Confident(Remasking):
    """What is possible, spread by a softmax over the tokens: the less probable one was when drawn, the more (ReMDM-conf).

    As published, masked positions are revealed at the ancestral rate. It looks at tokens, so even a product law is bent.
    """

    def chance(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        """See `Remasking.chance`."""
        return largest

    def spread(self, chance: Tensor, confidence: Tensor) -> Tensor:
        """See `Remasking.spread`; 0 where there is nothing to take back."""
        return chance * torch.softmax(-confidence, dim=-1).nan_to_num(0.0)


class Loop(Remasking):
    """Reveal the share `alpha_on` until `t_on`, then remask `eta` a step at that level until `t_off`, then reveal the rest (ReMDM-loop).

    Both ramps are linear in time, whatever the schedule. A step across `t_on` or `t_off` is a step of its ramp.
    """

    def __init__(self, eta: float = 0.02, t_on: float = 0.55, t_off: float = 0.05, alpha_on: float = 0.9) -> None:
        for name, value in (("t_on", t_on), ("t_off", t_off), ("alpha_on", alpha_on)):
            finite(f"remasking.{name}", value)
        if not 1 > t_on > t_off > 0 or not 0 < alpha_on < 1:
            raise ValueError(
                f"t_on {t_on} and t_off {t_off} must satisfy 1 > t_on > t_off > 0, and alpha_on {alpha_on} must lie between 0 and 1"
            )
        self.eta, self.t_on, self.t_off, self.alpha_on = _share("eta", eta), t_on, t_off, alpha_on

    def alpha(self, noise: NoiseSchedule, time: Tensor) -> Tensor:
        """See `Remasking.alpha`."""
        up = self.alpha_on * (1 - time) / (1 - self.t_on)
        rest = 1 - (1 - self.alpha_on) * time / self.t_off
        return torch.where(time > self.t_on, up, rest.clamp(min=self.alpha_on))

    def chance(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        """See `Remasking.chance`: only where the level stays what it is."""
        return torch.where(alpha_t == alpha_s, largest.clamp(max=self.eta), 0.0)


class Forward(Remasking):
    """As often as the forward process masks, (alpha_s - alpha_t)/alpha_t: the forward-backward corrector."""

    def chance(self, alpha_t: Tensor, alpha_s: Tensor, largest: Tensor) -> Tensor:
        """See `Remasking.chance`."""
        return torch.minimum((alpha_s - alpha_t) / alpha_t.clamp(min=torch.finfo(alpha_t.dtype).tiny), largest)


class RemaskingSampler(GridSampler):
    """The loop over the grid. Tokens of the template are never taken back.

    Args:
        remasking: how much is remasked.
        num_steps, temperature, top_k, nucleus, noise_removal: see `GridSampler`.
    """

    has_weights = False  # a token taken back was drawn for nothing, which a weight would have to know

    def __init__(
        self,
        remasking: Remasking,
        num_steps: int = 128,
        temperature: float = 1.0,
        top_k: int | None = None,
        nucleus: float = 1.0,
        noise_removal: str = "sample",
    ) -> None:
        super().__init__(num_steps, temperature, top_k, nucleus, noise_removal)
        self.remasking = remasking

    @torch.no_grad()
    def sample(
        self,
        denoiser: nn.Module,
        process: AbsorbingProcess,
        x_init: Tensor,
        draws: Draws,
        frozen: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Samples:
        """See `Sampler.sample`."""
        self.check_model(denoiser)
        ours, mask_id, length = to_fill(x_init, process, frozen), process.vocab.mask_id, x_init.shape[1]
        x, calls = x_init.clone(), CountedDenoiser(denoiser, cond, valid)
        confidence = torch.full(x.shape, torch.inf, device=x.device)
        alpha = self.remasking.alpha(process.noise, self.times())
        left = ((1 - alpha) / (1 - alpha[0])).tolist()
        for i in range(self.num_steps):
            if self.leaves(i):
                break
            last, hidden = i == self.num_steps - 1, ours & (x == mask_id)
            largest = ((1 - alpha[i + 1]) / alpha[i].clamp(min=1e-300)).clamp(max=1.0)
            remask = self.remasking.spread(self.remasking.chance(alpha[i], alpha[i + 1], largest).to(confidence), confidence)
            coins = draws.at(i).uniform("move", length)
            returns = (coins < remask.to(coins)).to(x.device) & ours & ~hidden & (not last)
            opens = (coins < reveal_chance(alpha[i].to(coins), alpha[i + 1].to(coins), remask.to(coins))).to(x.device)
            opens = hidden if last else hidden & opens
            after = torch.where(returns, mask_id, x)
            if opens.any():
                log_probs = calls.log_probs(x, time_left(left[i], x_init, ours, process, valid), opens)
                tokens = self.reveal(i, log_probs, draws.at(i).uniform("token", length)[opens.to(coins.device)])
                after[opens] = tokens.to(x)
                confidence[opens] = log_probs.gather(-1, tokens[:, None])[:, 0].exp().to(confidence)
            confidence[returns] = torch.inf
            x = after
        return Samples(x, calls.nfe, calls.rows)


def _share(name: str, value: float) -> float:
    if not 0 <= finite(f"remasking.{name}", value) <= 1:
        raise ValueError(f"{name} {value} must be a probability from 0 to 1; set sampler.remasking.{name}")
    return value
