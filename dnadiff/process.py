"""The absorbing ("masking") process: how x0 becomes xt, and how likely a masked token is unmasked.
Nothing here depends on a network."""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.draws import Draws, float64_device
from dnadiff.noise import NoiseSchedule
from dnadiff.vocab import Vocab


def unmask_probability(alpha_t: Tensor, alpha_s: Tensor, remask: Tensor | float = 0.0) -> Tensor:
    """Probability that a masked token is unmasked between t and s, if visible ones are remasked
    with probability `remask`.

    (alpha_s - (1 - r) alpha_t)/(1 - alpha_t), which keeps the marginal alpha_s (arXiv 2503.00307,
    eq. 5); shapes broadcast.
    """
    return (alpha_s - (1 - remask) * alpha_t) / (1 - alpha_t)


class AbsorbingProcess:
    """Each token turns into `vocab.mask_id` independently, with probability 1 - alpha(t) of the
    `noise` schedule, and stays there."""

    def __init__(self, vocab: Vocab, noise: NoiseSchedule) -> None:
        self.vocab, self.noise = vocab, noise

    def maskable(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """The positions of `x (B, L)` that the process can mask: masks and tokens that a sample may
        contain, (B, L) bool.

        An N of a genome, the special tokens of DNA and positions outside `valid` stay visible at
        all times.
        """
        found = self.vocab.is_emitted(x.device)[x] | (x == self.vocab.mask_id)
        return found if valid is None else found & valid

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

    def prior(self, batch_size: int, length: int, device: torch.device | str = "cpu") -> Tensor:
        """x at t = 1: `(batch_size, length)` masks."""
        return torch.full(
            (batch_size, length), self.vocab.mask_id, dtype=torch.int64, device=device
        )

    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """xt given x0: `x0 (B, L)`, `t (B,)`, `maskable (B, L)` bool (others stay visible) ->
        `(B, L)`."""
        return self.corrupt_rate(x0, 1 - self.noise.alpha(t), maskable, draws)

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
