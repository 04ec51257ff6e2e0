"""SEDD's analytic sampler: the Tweedie step for ratios of probabilities (arXiv 2310.16834)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.parameterization import log_expm1
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.ancestral import Ancestral
from dnadiff.sampler.base import CountedDenoiser, Samples, time_left, to_fill
from dnadiff.vocab import Vocab


def reveal_chance(log_total: Tensor, sigma_t: Tensor, sigma_s: Tensor) -> Tensor:
    """(e^(sigma_t - sigma_s) - 1) times the sum of the letters' ratios, at most 1; `log_total` is the log of the sum."""
    return (log_expm1(sigma_t - sigma_s) + log_total).exp().clamp(max=1.0)


def posterior(log_score: Tensor, xt: Tensor, sigma_t: Tensor, sigma_s: Tensor, vocab: Vocab) -> Tensor:
    """The law of xs at sigma_s < sigma_t given log-ratios (..., V) at xt (...): what the steps below draw from.

    For tests and users; the sampler needs no table. A masked token turns into letter y with (e^(sigma_t - sigma_s) - 1) s_y; visible
    tokens stay. Where ratios that nothing normalises would give more than 1 in all, they are scaled to 1.
    """
    letters = log_score.masked_fill(~vocab.is_emitted(log_score.device), -torch.inf)
    chance = reveal_chance(letters.logsumexp(-1), sigma_t, sigma_s)[..., None]
    is_mask = torch.nn.functional.one_hot(torch.tensor(vocab.mask_id, device=xt.device), log_score.shape[-1])
    opened = chance * torch.softmax(letters, -1) + (1 - chance) * is_mask
    visible = torch.nn.functional.one_hot(xt, log_score.shape[-1])
    return torch.where((xt == vocab.mask_id)[..., None], opened, visible.to(opened))


class Analytic(Ancestral):
    """Tweedie steps on the grid of `Ancestral`: how many tokens open is said by the network's ratios.

    For ratios that come from probabilities (every objective but `sedd`, and guided models) this is the ancestral step, and done
    as that. SEDD's are asked for at every masked position before a coin can fall; where the network is not told the time,
    a sequence that did not change is not asked again: of its answer the sums and a token drawn at each position are kept.
    The arguments are those of `GridSampler`.
    """

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
        if getattr(getattr(denoiser, "parameterization", None), "normalised", True):
            return super().sample(denoiser, process, x_init, draws, frozen, cond, valid)
        length, told = x_init.shape[1], getattr(denoiser, "time_conditioning", True)
        x, masked, calls = x_init.clone(), to_fill(x_init, process, frozen), CountedDenoiser(denoiser, cond, valid)
        banned = ~process.vocab.is_emitted(x.device)
        uniform = draws.uniform("token", length)  # each position is drawn once
        still = (1 - process.noise.alpha(self.times())).tolist()
        time = [time_left(share / still[0], x, masked, process, valid) for share in still]
        sigma = [process.noise.sigma(t.to(uniform))[:, None] for t in time]
        stale = torch.ones(len(x), dtype=torch.bool, device=x.device)
        log_ratio = torch.zeros(x.shape, dtype=uniform.dtype, device=uniform.device)  # of all letters, without the factor of the time
        token = x_init.clone()
        for i in range(self.num_steps):
            if self.leaves(i) or not masked.any():
                break
            last = i == self.num_steps - 1
            asks = masked & (stale | told | (last and self.noise_removal == "argmax"))[:, None]
            if asks.any():
                log_score = calls.log_score(x, time[i], asks).masked_fill(banned, -torch.inf)
                asked = asks.to(uniform.device)
                log_ratio[asked] = log_score.logsumexp(-1).to(log_ratio) + log_expm1(sigma[i]).expand(x.shape)[asked]
                log_probs = torch.log_softmax(log_score, -1)
            chance = reveal_chance(log_ratio - log_expm1(sigma[i]), sigma[i], sigma[i + 1])
            opens = masked if last else masked & (draws.at(i).uniform("reveal", length) < chance).to(x.device)
            drawn = asks & opens if told else asks  # what may be looked at later is drawn now
            if drawn.any():
                token[drawn] = self.reveal(i, log_probs[drawn[asks]], uniform[drawn.to(uniform.device)]).to(x)
            x, masked, stale = torch.where(opens, token, x), masked & ~opens, opens.any(-1)
        return Samples(x, calls.nfe, calls.rows)
