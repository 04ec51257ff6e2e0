"""SEDD's analytic sampler: the Tweedie step for ratios of probabilities (arXiv 2310.16834)."""

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess, log_expm1
from dnadiff.diffusion.sampler.ancestral import Ancestral
from dnadiff.diffusion.sampler.base import CountedDenoiser


class Analytic(Ancestral):
    """Tweedie steps on the grid of `Ancestral`: the network's ratios determine how many tokens each
    step unmasks.

    For ratios that come from probabilities (every objective but `sedd`, and guided models) this is
    the ancestral step, and implemented as that. SEDD's ratios are needed at every masked position
    before a step can decide. If the network is not conditioned on time, a sequence that did not
    change is not evaluated again: the sums of its ratios and a token drawn at each position are
    kept.

    Examples:
        >>> Analytic(num_steps=64).num_steps_for(length=512)
        64
    """

    exact = True
    has_weights = True

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        if calls.denoiser.normalized:
            return super().fill(x, masked, calls, process, draws)
        length = x.shape[1]
        timed = calls.denoiser.time_conditioning
        banned = ~process.vocab.is_emitted(x.device)
        uniform = draws.uniform("token", length)  # each position is drawn once
        still = (1 - process.noise.alpha(self.times())).tolist()
        time = [process.time_of(x, calls.valid, masked, left / still[0]) for left in still]
        sigma = [process.noise.sigma(t.to(uniform))[:, None] for t in time]
        stale = torch.ones(len(x), dtype=torch.bool, device=x.device)
        log_ratio = torch.zeros(
            x.shape, dtype=uniform.dtype, device=uniform.device
        )  # summed over tokens, without the factor of the time
        token = x.clone()
        for i in range(self.num_steps):
            if self.leaves_masks(i) or not masked.any():
                break
            requested = masked & (stale | timed | self.takes_argmax(i))[:, None]
            if requested.any():
                log_score = calls.log_probs(x, time[i], requested, "log_score")
                log_score = log_score.masked_fill(banned, -torch.inf)
                where = requested.to(uniform.device)
                log_ratio[where] = (
                    log_score.logsumexp(-1).to(log_ratio)
                    + log_expm1(sigma[i]).expand(x.shape)[where]
                )
                log_probs = torch.log_softmax(log_score, -1)
            # (e^(sigma_t - sigma_s) - 1) times the sum of the ratios of all tokens
            probability = (
                (log_expm1(sigma[i] - sigma[i + 1]) + (log_ratio - log_expm1(sigma[i])))
                .exp()
                .clamp(max=1.0)
            )
            last = i == self.num_steps - 1
            now = (
                masked
                if last
                else masked & (draws.at(i).uniform("reveal", length) < probability).to(x.device)
            )
            drawn = (
                requested & now if timed else requested
            )  # without time, tokens for later steps are drawn now
            if drawn.any():
                token = self.unmasked(token, drawn, i, log_probs[drawn[requested]], uniform)
            x = torch.where(now, token, x)
            masked = masked & ~now
            stale = now.any(-1)
        return x
