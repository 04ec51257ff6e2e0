"""The absorbing ("masking") process: how x0 becomes xt, and the distribution of an earlier xs given a prediction of x0.

Training uses `corrupt` and `plug_in_posterior`, samplers use `unmask_probability`. `posterior` is the distribution of a sampler's step
as a table, a reference for tests and users. Nothing here depends on a network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.noise import NoiseSchedule
from dnadiff.vocab import Vocab


def _column(value: Tensor) -> Tensor:
    return value.reshape(-1, 1)


def unmask_probability(alpha_t: Tensor, alpha_s: Tensor, remask: Tensor | float = 0.0) -> Tensor:
    """Probability that a masked token is unmasked between t and s, if visible ones are remasked with probability `remask`.

    (alpha_s - (1 - r) alpha_t)/(1 - alpha_t), which keeps the marginal alpha_s (arXiv 2503.00307, eq. 5); shapes broadcast.
    """
    return (alpha_s - (1 - remask) * alpha_t) / (1 - alpha_t)


class AbsorbingProcess:
    """Each token turns into the mask independently, with probability 1 - alpha(t), and stays there.

    Args:
        vocab: names the mask id.
        noise: the schedule alpha(t).
    """

    def __init__(self, vocab: Vocab, noise: NoiseSchedule) -> None:
        self.vocab = vocab
        self.noise = noise

    def prior(self, batch_size: int, length: int, device: torch.device | str = "cpu") -> Tensor:
        """x at t = 1: `(batch_size, length)` masks."""
        return torch.full((batch_size, length), self.vocab.mask_id, dtype=torch.int64, device=device)

    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """xt given x0: `x0 (B, L)`, `t (B,)`, `maskable (B, L)` bool (others stay visible) -> `(B, L)`."""
        move = _column(1 - self.noise.alpha(t))
        hit = draws.uniform("mask", x0.shape[1]).to(x0.device) < move
        return torch.where(hit & maskable, self.vocab.mask_id, x0)

    def corrupt_count(self, x0: Tensor, count: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """xt with exactly `count (B,)` masks in each row, uniformly distributed over its maskable positions."""
        order = draws.uniform("mask", x0.shape[1]).to(x0.device).masked_fill(~maskable, 2.0)
        rank = order.argsort(-1).argsort(-1)  # maskable positions have the ranks 0..L_i - 1
        return torch.where((rank < _column(count)) & maskable, self.vocab.mask_id, x0)

    def max_remask(self, t: Tensor, s: Tensor) -> Tensor:
        """The largest remasking probability with a valid posterior: min(1, (1 - alpha_s)/alpha_t), `(B,)`."""
        alpha_t = self.noise.alpha(t)
        return ((1 - self.noise.alpha(s)) / alpha_t.clamp(min=torch.finfo(alpha_t.dtype).tiny)).clamp(max=1.0)

    def posterior(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor, remask: Tensor | float = 0.0) -> Tensor:
        """q(xs | xt, x0 ~ log_probs) for s < t: `(B, L, V)` probabilities.

        A masked token is unmasked with probability (alpha_s - (1 - r) alpha_t)/(1 - alpha_t), a visible one is remasked with
        probability r; r = 0 is MDLM's ancestral step (arXiv 2406.07524v2, eq. 7) and r > 0 ReMDM's family
        (arXiv 2503.00307, eq. 5), clamped to `max_remask` so that no probability is negative.

        Args:
            log_probs: (B, L, V) the denoiser's prediction of x0.
            xt: (B, L).
            t: (B,) now.
            s: (B,) next, smaller than t.
            remask: r, a number or (B,).
        """
        alpha_t, alpha_s = self.noise.alpha(t), self.noise.alpha(s)
        r = torch.minimum(torch.as_tensor(remask, dtype=alpha_t.dtype, device=alpha_t.device).clamp(min=0.0), self.max_remask(t, s))
        unmask = unmask_probability(alpha_t, alpha_s, r)[:, None, None]
        is_mask = torch.zeros(log_probs.shape[-1], dtype=log_probs.dtype, device=log_probs.device)
        is_mask[self.vocab.mask_id] = 1.0
        from_mask = unmask * log_probs.exp() + (1 - unmask) * is_mask
        visible = torch.nn.functional.one_hot(xt, log_probs.shape[-1]).to(log_probs.dtype)
        r = r.expand_as(alpha_t)[:, None, None]
        from_token = (1 - r) * visible + r * is_mask
        return torch.where((xt == self.vocab.mask_id)[..., None], from_mask, from_token)

    def plug_in_posterior(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """D3PM's posterior with the predicted distribution substituted for x0: `(B, L, V)` probabilities, s < t.

        q(xs | xt, x0) with the vector of probabilities in place of the one-hot x0, as MDLM (arXiv 2406.07524) states and computes D3PM.
        Without mass on the mask itself it is `posterior` at remask 0. With such mass it differs from that, and from the mixture of
        q(xs | xt, x0) over x0 (arXiv 2107.03006, section 3.3).

        Args:
            log_probs: (B, L, V) the distribution of x0, `BaseDenoiser.x0_log_probs`.
            xt: (B, L).
            t: (B,) now.
            s: (B,) next, smaller than t.
        """
        alpha_t, alpha_s = (self.noise.alpha(time)[:, None, None] for time in (t, s))
        is_mask = torch.zeros(log_probs.shape[-1], dtype=log_probs.dtype, device=log_probs.device)
        is_mask[self.vocab.mask_id] = 1.0
        probs = log_probs.exp()
        on_mask = probs[..., self.vocab.mask_id, None]
        from_mask = torch.where(is_mask > 0, 1 - alpha_s + alpha_s * on_mask, (alpha_s - alpha_t) * probs) / (
            1 - alpha_t + alpha_t * on_mask
        )
        visible = torch.nn.functional.one_hot(xt, log_probs.shape[-1]).to(log_probs.dtype)
        return torch.where((xt == self.vocab.mask_id)[..., None], from_mask, visible)
