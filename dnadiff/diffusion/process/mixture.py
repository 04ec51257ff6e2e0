"""Processes that mix a token with a distribution of noise: uniform noise, masks, or both.

q_t(. | x) = alpha x + b_t with b_t = (1 - alpha) pi_t, where pi_t is the distribution of noise at
time t. A token jumps into z at the rate r_t(z) = z . (b' - (alpha'/alpha) b), and a model that
predicts mu reverts it with q^_t = alpha mu + b_t in place of q_t. D3PM (arXiv 2107.03006) and UDLM
(arXiv 2412.10193) have uniform noise, GIDD (arXiv 2503.04482) a pi_t that depends on time.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.categorical import draw
from dnadiff.diffusion.draws import Draws, float64_device
from dnadiff.diffusion.parameterization import Emitted, Parameterization
from dnadiff.diffusion.process.base import Process


class _Marginal(NamedTuple):
    """alpha (..., 1) and b (..., V) at some times."""

    alpha: Tensor
    b: Tensor

    def of(self, probs: Tensor) -> Tensor:
        """alpha p + b for distributions of x0 (..., V): that of xt."""
        return self.alpha * probs + self.b


class MixtureProcess(Process):
    """A token stays with probability alpha(t), and is noise from pi_t otherwise.

    The predictions mu of a network are the distribution of a token given the noisy tokens at the
    other positions: then q^_t(v)/q^_t(z) are the ratios of probabilities that revert the process.
    A subclass implements `pi`, and `dpi` if it is known. `integrand` is GIDD's theorem 1, which is
    MDLM's loss for masks and UDLM's for uniform noise.
    """

    described = "noise that replaces tokens"

    @abstractmethod
    def pi(self, t: Tensor) -> Tensor:
        """The distribution of noise at times `t (...)`: (..., V), differentiable in t."""

    def dpi(self, t: Tensor) -> Tensor:
        """d pi / dt, (..., V)."""
        t = t.contiguous()
        return torch.func.jvp(self.pi, (t,), (torch.ones_like(t),))[1]

    @override
    def parameterization(self) -> Parameterization:
        return Emitted(self.vocab)

    @override
    def prior(
        self,
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
        draws: Draws | None = None,
    ) -> Tensor:
        draws = draws or Draws.for_batch(0, batch_size, device=device)
        uniform = draws.uniform("prior", length)
        last = torch.ones(batch_size * length, dtype=torch.float64, device=uniform.device)
        return draw(self.pi(last).log(), uniform.flatten()).view(uniform.shape).to(device)

    @override
    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        uniform, local = draws.uniform("noise", x0.shape[1]), float64_device(x0.device)
        times = t.to(local).double()[:, None].expand(x0.shape).flatten()
        probs = self._at(times).of(self._one_hot(x0.to(local).flatten()))
        noised = draw(probs.log(), uniform.flatten()).view(x0.shape).to(x0.device)
        return torch.where(maskable, noised, x0)

    @override
    def integrand(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        at = self._at(t, log_probs.dtype)
        q, guess = at.of(self._one_hot(x0, log_probs.dtype)), at.of(log_probs.exp())
        smallest = torch.finfo(log_probs.dtype).tiny  # the gradient of log 0 would be NaN
        log_ratio = q.clamp(min=smallest).log() - guess.clamp(min=smallest).log()
        now = xt[:, None]
        rho = q.gather(-1, now) / guess.gather(-1, now).clamp(min=smallest)
        log_rho = log_ratio.gather(-1, now)
        divergence = (q * log_ratio).sum(-1, keepdim=True)
        rate = self._rate(t, log_probs.dtype).gather(-1, now) / q.gather(-1, now)
        return (rate * (divergence + rho - log_rho - 1))[:, 0]

    @override
    def reverse(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return self._posterior(
            log_probs, xt, self._at(t, log_probs.dtype), self._at(s, log_probs.dtype)
        )

    @override
    def ends(self, x0: Tensor) -> Tensor:
        last = torch.ones(x0.shape, dtype=torch.float64, device=float64_device(x0.device))
        q, prior = self._at(last).of(self._one_hot(x0.to(last.device))), self.pi(last)
        return (torch.special.xlogy(q, q) - torch.special.xlogy(q, prior)).sum(-1).to(x0.device)

    @override
    def reconstruction(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        first = self._at(t, log_probs.dtype)
        clean = _Marginal(torch.ones_like(first.alpha), torch.zeros_like(first.b))
        return -self._posterior(log_probs, xt, first, clean).gather(-1, x0[:, None])[:, 0]

    def _posterior(self, log_probs: Tensor, xt: Tensor, at: _Marginal, to: _Marginal) -> Tensor:
        """q(xt | xs) q^_s(xs) / q^_t(xt) for each xs, in logarithms: (M, V)."""
        kept = at.alpha / to.alpha
        arrived = (at.b - kept * to.b).gather(-1, xt[:, None]).clamp(min=0)  # from any other token
        stayed = kept * self._one_hot(xt, log_probs.dtype)
        return (arrived + stayed).log() + (
            to.of(log_probs.exp()).log() - at.of(log_probs.exp()).gather(-1, xt[:, None]).log()
        )

    def _at(self, t: Tensor, dtype: torch.dtype = torch.float64) -> _Marginal:
        t = t.to(dtype)
        alpha = self.noise.alpha(t)[..., None]
        return _Marginal(alpha, (1 - alpha) * self.pi(t))

    def _rate(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """r_t of each token, (M, V)."""
        t = t.to(dtype)
        alpha, dalpha = self.noise.alpha(t)[..., None], self.noise.dalpha(t)[..., None]
        return (1 - alpha) * self.dpi(t) - dalpha / alpha * self.pi(t)

    def _one_hot(self, ids: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.nn.functional.one_hot(ids, self.vocab.size).to(dtype)


class UniformProcess(MixtureProcess):
    """Noise that is uniform over the tokens that a sample may contain (UDLM, arXiv 2412.10193)."""

    described = "uniform noise"

    @override
    def pi(self, t: Tensor) -> Tensor:
        emitted = self.vocab.is_emitted(t.device).to(t)
        return (emitted / emitted.sum()).expand(*t.shape, -1)

    @override
    def dpi(self, t: Tensor) -> Tensor:
        return torch.zeros_like(self.pi(t))
