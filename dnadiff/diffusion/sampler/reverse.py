"""Reverse steps of any process (`dnadiff.diffusion.process.Process.reverse`) on a grid of
times."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import Process
from dnadiff.diffusion.sampler.base import CountedDenoiser, GridSampler, redrawn


class Reverse(GridSampler):
    """`num_steps` reverse steps of the process that the model was trained to revert, from its prior
    to t = 0, or from the time of the sequences to begin from.

    A step is ancestral: from p(xs | xt) with the model's predictions of x0. Every token may change
    in every step. Tokens of the template are kept; the masked positions of a template start from
    the prior. For the absorbing process it draws from the distribution of `Ancestral`, which calls
    the network less often. The last step draws every token.

    Examples:
        >>> Reverse(num_steps=64).num_steps_for(length=512)
        64
    """

    exact = True
    process_type = Process
    # x (B, L) after a step, with changes that keep its distribution; see `PredictorCorrector`
    corrected: ClassVar[Callable[..., Tensor] | None] = None

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: Process,
        draws: Draws,
    ) -> Tensor:
        length = x.shape[1]
        times = self.times(x.device)
        if calls.start_t is None:
            x = torch.where(masked, process.prior(len(x), length, x.device, draws), x)
        else:
            times = times * calls.start_t
        for i in range(self.num_steps):
            now = masked & process.changes(x)
            if self.leaves_masks(i) or not now.any():
                break
            log_probs = calls.log_probs(x, times[i].expand(len(x)).float(), now)
            at = (time.expand(len(log_probs)) for time in times[i : i + 2])
            step = process.reverse(self.adjust(log_probs), x[now], *at)
            if i == self.num_steps - 1:  # a schedule may leave noise at t = 0
                step = step.masked_fill(~process.vocab.is_emitted(x.device), -torch.inf)
            if self.takes_argmax(i):
                x = x.masked_scatter(now, step.argmax(-1).to(x))
            else:
                x = redrawn(x, now, step, draws.at(i).uniform("token", length))
                if self.corrected is not None:
                    x = self.corrected(x, masked, i, times[i + 1], calls, process, draws.at(i))
        return x
