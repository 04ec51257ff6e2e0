"""Noise that is partly masks and partly random tokens (GIDD, arXiv 2503.04482)."""

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from dnadiff.diffusion.noise import NoiseSchedule, refuse_cut
from dnadiff.diffusion.process import Marginal, MixtureProcess, Process
from dnadiff.fields import Probability, checked_dataclass


class HybridNoise(NoiseSchedule):
    """alpha = a/(1 + c), with a of the schedule of the masks, and c = B (a (1 - a))^(gamma/2).

    With m = 1 - a, m/(1 + c) of the tokens are masks and c/(1 + c) are random. With a = 1 - t it is
    GIDD's schedule (section 4), and with another one the same at other times.

    Args:
        masks: a(t).
        p_uniform, gamma: see `HybridProcess`.
    """

    def __init__(self, masks: NoiseSchedule, p_uniform: float, gamma: float) -> None:
        self.masks = masks
        self.gamma = gamma
        self.scale = 2**gamma * p_uniform / (1 - p_uniform)  # B

    def random(self, t: Tensor) -> Tensor:
        """c(t)."""
        visible = self.masks.alpha(t)
        return self.scale * (visible * (1 - visible)).clamp(min=0) ** (self.gamma / 2)

    def alpha(self, t: Tensor) -> Tensor:
        return self.masks.alpha(t) / (1 + self.random(t))

    def dalpha(self, t: Tensor) -> Tensor:
        c = self.random(t)
        slope = self.masks.dalpha(t) / self.masks.alpha(t)
        growth = self.gamma / 2 * (self.masks.weight(t) + slope)  # of log c
        return self.alpha(t) * (slope - c / (1 + c) * growth)

    def inverse(self, alpha: Tensor) -> Tensor:
        low = torch.zeros_like(alpha)
        high = torch.ones_like(alpha)
        for _ in range(60):  # halves, down to the last digit
            middle = (low + high) / 2
            later = self.alpha(middle) > alpha
            low = torch.where(later, middle, low)
            high = torch.where(later, high, middle)
        return high


@checked_dataclass
class HybridProcess(MixtureProcess):
    """Most noisy tokens are masks, some are random: a model learns to revise what is visible (GIDD,
    arXiv 2503.04482, section 4).

    Args:
        vocab: the vocabulary.
        noise: alpha(t) of the masks alone.
        p_uniform: p_u, the share of tokens that are random where it is largest, in the middle; 0
            is the absorbing process.
        gamma: how fast they become fewer towards both ends, as (t (1 - t))^(gamma/2) under
            `noise=loglinear`; at most 2, so that no token ever turns back.
    """

    described = "hybrid noise (masks and random tokens)"

    p_uniform: Probability = 0.2
    gamma: Annotated[float, Interval(gt=0, le=2)] = 1.0

    def __post_init__(self) -> None:
        self.masks = masks = self.noise
        self.noise = self.hybrid = HybridNoise(masks, self.p_uniform, self.gamma)
        if self.p_uniform == 0:  # the prior has no other token than the mask
            left = masks.mask_probability(1.0)
            refuse_cut(masks, 0.0, left, "p_uniform 0", "set another noise, or p_uniform above 0")
        else:  # near t = 0 a random token has the probability t^(gamma/2)
            self.time_power = 4 / self.gamma

    def pi(self, t: Tensor) -> Tensor:
        b = self.marginal(t, t.dtype).b
        return b / b.sum(-1, keepdim=True).clamp(min=torch.finfo(b.dtype).tiny)

    def marginal(self, t: Tensor, dtype: torch.dtype = torch.float64) -> Marginal:
        masked, random = (share[..., None].to(dtype) for share in self._shares(t))
        emitted = self.vocab.is_emitted(t.device).to(dtype)
        is_mask = torch.arange(self.vocab.size, device=t.device) == self.vocab.mask_id
        b = random / emitted.sum() * emitted + masked * is_mask
        return Marginal(self.noise.alpha(t)[..., None].to(dtype), b)

    def arrival_rate(self, t: Tensor, x: Tensor) -> Tensor:
        # alpha d(b/alpha)/dt without differences of large numbers at t = 0 and 1
        masks = self.masks
        half = self.gamma / 2
        to_mask = -masks.dalpha(t) / masks.alpha(t)
        to_random = self._shares(t)[1] * (half * masks.weight(t) + (1 - half) * to_mask)
        remaining = self.noise.alpha(t) / masks.alpha(t)
        to_token = to_random / len(self.vocab.emitted)
        return torch.where(x == self.vocab.mask_id, to_mask * remaining, to_token)

    def noise_tokens(self, t: Tensor, uniform: Tensor) -> Tensor:
        masked, random = self._shares(t)
        share = masked / (masked + random)
        token = self.vocab.uniform_token((uniform - share) / (1 - share))
        return torch.where(uniform < share, self.vocab.mask_id, token)

    def typical_weight(self, t: Tensor) -> Tensor:
        return self.masks.weight(t) / self.masks.alpha(t)  # of a mask

    def ends(self, x0: Tensor) -> Tensor:
        return super().ends(x0) if self.p_uniform else Process.ends(self, x0)

    def _shares(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities of a mask and of a random token."""
        c = self.hybrid.random(t)
        return (1 - self.masks.alpha(t)) / (1 + c), c / (1 + c)
