"""Self-correction of finished sequences: the model changes tokens with which it disagrees (GIDD,
arXiv 2503.04482)."""

from dataclasses import field

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import MixtureProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, RefiningSampler, Sampler
from dnadiff.fields import Positive, PositiveInt, checked_dataclass


@checked_dataclass
class SelfCorrection(RefiningSampler):
    """Samples of another sampler, or given sequences, in which one token per call is replaced by a
    more probable one.

    Each call predicts every token from the others at t = 0 and draws a proposal for each at a low
    temperature. Of the proposals that are more probable than the token, the one with the largest
    ratio of the two probabilities replaces it. A sequence is finished when there is none. If the
    predictions are the conditional distributions of one p(x), every change multiplies p(x) by that
    ratio: this searches for probable sequences and does not sample, so it lowers the diversity.
    Deviation from GIDD: the ratio decides which position is changed first.

    Args:
        sampler: draws what is corrected, from the masks of a template.
        num_corrections: the most network calls for corrections.
        temperature, top_k, nucleus: of the proposals; the other sampler has its own.

    Examples:
        >>> from dnadiff.diffusion.sampler.reverse import Reverse
        >>> SelfCorrection(Reverse(num_steps=64), num_corrections=16).num_steps_for(length=512)
        80
    """

    sampler: Sampler
    num_corrections: PositiveInt = 64
    temperature: Positive = field(default=0.1, kw_only=True)

    process_type = MixtureProcess

    def check_model(self, denoiser: BaseDenoiser) -> None:
        super().check_model(denoiser)
        self.sampler.check_model(denoiser)

    def check_length(self, length: int) -> None:
        self.sampler.check_length(length)

    def num_steps_for(self, length: int) -> int:
        return self.sampler.num_steps_for(length) + self.num_corrections

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: MixtureProcess,
        draws: Draws,
    ) -> Tensor:
        noisy = masked if calls.start_t is not None else masked & (x == process.vocab.mask_id)
        x = self.sampler.fill(x, noisy, calls, process, draws)
        clean = torch.zeros(len(x), device=x.device)
        changing = masked
        for step in range(self.num_corrections):
            if not changing.any():
                break
            log_probs = calls.log_probs(x, clean, changing)
            uniform = draws.at(step).uniform("propose", x.shape[1])
            proposed = self.unmasked(x, changing, step, log_probs, uniform)
            both = torch.stack([proposed, x], -1)[changing]
            new, old = log_probs.gather(-1, both).unbind(-1)
            gain = new.new_zeros(x.shape).masked_scatter(changing, new - old)
            largest, place = gain.max(-1, keepdim=True)
            here = torch.arange(x.shape[1], device=x.device) == place
            x = torch.where(here & (largest > 0), proposed, x)
            changing = changing & (largest > 0)
        return x
