"""Sampling by a network that corrects sequences (SUNDAE, arXiv 2112.06749): again and again, some
tokens are replaced by predictions."""

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import MixtureProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, RefiningSampler
from dnadiff.fields import Positive, PositiveFraction, PositiveInt, checked_dataclass


@checked_dataclass
class UnrolledDenoising(RefiningSampler):
    """Start from noise or given sequences; in every step draw all tokens from the predictions given
    the sequence of the step before, and take over a random share of them (arXiv 2112.06749, section
    2.2).

    A sequence is finished when the network proposes no change of any of its tokens, or after
    `num_steps`. So a low temperature, at which proposals repeat, saves network calls. With few
    steps and a small share, tokens of the noise may be left. Tokens of a template are kept and
    read. The samples have no known distribution, as the model has none.

    Args:
        num_steps: the most network calls.
        share: of the tokens that a step takes over, each on its own; 1 is all of them.
        temperature, top_k, nucleus: see `Sampler`; the default temperature is below 1.

    Examples:
        >>> UnrolledDenoising(num_steps=64).num_steps_for(length=512)
        64
    """

    num_steps: PositiveInt = 128
    share: PositiveFraction = 0.3
    temperature: Positive = 0.8

    process_type = MixtureProcess

    def num_steps_for(self, length: int) -> int:
        return self.num_steps

    def check_model(self, denoiser: BaseDenoiser) -> None:
        super().check_model(denoiser)
        if denoiser.time_conditioning:
            raise ValueError(
                f"sampler {type(self).__name__} has no times, and this model is conditioned on "
                f"time; set sampler={denoiser.sampler}, or use a model of objective=sundae"
            )

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: MixtureProcess,
        draws: Draws,
    ) -> Tensor:
        size, length = x.shape
        empty = masked & (x == process.vocab.mask_id)
        x = torch.where(empty, process.prior(size, length, x.device, draws), x)
        no_time = x.new_ones(size, dtype=torch.float32)
        changing = masked
        for step in range(self.num_steps):
            if not changing.any():
                break
            log_probs = calls.log_probs(x, no_time, changing)
            noise = draws.at(step)
            uniform = noise.uniform("token", length)
            proposed = self.unmasked(x, changing, step, log_probs, uniform)
            taken = (noise.uniform("share", length) < self.share).to(x.device)
            changing = changing & (proposed != x).any(-1, keepdim=True)
            x = torch.where(taken, proposed, x)
        return x
