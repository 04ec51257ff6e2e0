"""The absorbing ("masking") process: how x0 becomes xt, and how likely a masked token is
unmasked."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.draws import Draws, float64_device
from dnadiff.diffusion.parameterization import SUBS, Parameterization
from dnadiff.diffusion.process.base import Process


def unmask_probability(alpha_t: Tensor, alpha_s: Tensor, remask: Tensor | float = 0.0) -> Tensor:
    """Probability that a masked token is unmasked between t and s, if visible ones are remasked
    with probability `remask`.

    (alpha_s - (1 - r) alpha_t)/(1 - alpha_t), which keeps the marginal alpha_s (arXiv 2503.00307,
    eq. 5); shapes broadcast.
    """
    return (alpha_s - (1 - remask) * alpha_t) / (1 - alpha_t)


class AbsorbingProcess(Process):
    """Each token turns into `vocab.mask_id` independently, with probability 1 - alpha(t) of the
    `noise` schedule, and stays there."""

    described = "an absorbing process (masks)"

    @override
    def parameterization(self) -> Parameterization:
        return SUBS(self.vocab)

    def time_at(self, count: Tensor, total: Tensor) -> Tensor:
        """The time (B,) at which `count` of `total` maskable positions, (B,) both, are masked,
        relative to what is masked at t = 1.

        Samplers and likelihoods give this time to a network with time conditioning, with the
        maskable positions of the whole window as `total`. In training the time determines which
        fraction of a whole window is masked, so the tokens that a template gives count as visible
        ones: with 8 masks among 64 tokens it is the time at which an eighth is masked, not that at
        which everything is. Float64 where the device has it.
        """
        fraction = (count / total.clamp(min=1)).clamp(max=1)
        local = fraction.to(float64_device(fraction.device))
        t = self.noise.inverse(1 - local.double() * self.noise.mask_probability(1.0))
        return t if local is fraction else t.float().to(fraction.device)

    @override
    def prior(
        self,
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
        draws: Draws | None = None,
    ) -> Tensor:
        return torch.full(
            (batch_size, length), self.vocab.mask_id, dtype=torch.int64, device=device
        )

    @override
    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        return self.corrupt_rate(x0, 1 - self.noise.alpha(t), maskable, draws)

    @override
    def changes(self, xt: Tensor) -> Tensor:
        return xt == self.vocab.mask_id

    @override
    def integrand(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        nll = -log_probs.gather(-1, x0[:, None])[:, 0]
        return torch.where(xt == self.vocab.mask_id, self.noise.weight(t).to(nll) * nll, 0.0)

    @override
    def reverse(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        unmask = unmask_probability(self.noise.alpha(t), self.noise.alpha(s)).to(log_probs)[:, None]
        is_mask = torch.arange(self.vocab.size, device=xt.device) == self.vocab.mask_id
        step = torch.where(is_mask, torch.log1p(-unmask), unmask.log() + log_probs)
        stays = torch.nn.functional.one_hot(xt, self.vocab.size).log().to(log_probs)
        return torch.where((xt == self.vocab.mask_id)[:, None], step, stays)

    def corrupt_rate(self, x0: Tensor, rate: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """As `corrupt`, with the probability `rate (B,)` of a mask instead of a time."""
        exact = float64_device(x0.device)
        hit = draws.uniform("mask", x0.shape[1]).to(exact) < rate.to(exact)[:, None]
        return torch.where(hit.to(x0.device) & maskable, self.vocab.mask_id, x0)

    def corrupt_count(self, x0: Tensor, count: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """xt with exactly `count (B,)` masks in each row, uniformly distributed over its maskable
        positions."""
        exact = float64_device(x0.device)
        order = draws.uniform("mask", x0.shape[1]).to(exact).masked_fill(~maskable.to(exact), 2.0)
        rank = (
            order.argsort(-1).argsort(-1).to(x0.device)
        )  # maskable positions have the ranks 0..L_i - 1
        return torch.where((rank < count[:, None]) & maskable, self.vocab.mask_id, x0)
