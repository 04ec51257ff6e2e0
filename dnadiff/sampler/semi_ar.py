"""Semi-autoregressive sampling (MDLM, arXiv 2406.07524): any length, window after window from left to right."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from dnadiff.draws import Draws, hash64
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Sampler, Samples, part_of, whole


class SemiAR(Sampler):
    """Another sampler in windows that move on by `stride` tokens, each seeing the end of the one before.

    The first window is sampled whole; every later one fills its last `stride` positions given the others (the last window fewer, so
    that it ends with the sequence). What is visible in a window is given, also to `Gibbs`. Exact only up to the window: what lies further
    back is forgotten, and the law is no longer the same on both strands. A sequence no longer than the window is left to the other sampler.

    Args:
        sampler: fills the masks of a window.
        window: tokens that the network sees at once; None is the network's `max_length` (the command `sample` takes the training
            window).
        stride: new tokens in each later window; None is half the window.
    """

    exact = False

    def __init__(self, sampler: Sampler, window: int | None = None, stride: int | None = None) -> None:
        super().__init__(sampler.temperature, sampler.top_k, sampler.nucleus)
        window, stride = (None if value is None else whole(name, value) for name, value in (("window", window), ("stride", stride)))
        if window is not None and stride is not None and stride > window:
            raise ValueError(f"stride {stride} is larger than the window {window}; set sampler.stride to at most {window}")
        if sampler.causal:
            raise ValueError("semi_ar is for samplers that unmask; sampler=ar goes on for any length by itself")
        self.sampler, self.window, self.stride = sampler, window, stride

    def fitted(self, max_length: int | None) -> SemiAR:
        """See `Sampler.fitted`: the window is settled.

        Raises:
            ValueError: if the window is more than the network takes, or less than the stride.
        """
        if max_length is not None and self.window is not None and self.window > max_length:
            raise ValueError(
                f"window {self.window} is more than the {max_length} tokens that this network takes; set sampler.window to that or less"
            )
        return self if self.window is not None or max_length is None else SemiAR(self.sampler, max_length, self.stride)

    def check_length(self, length: int) -> None:
        """See `Sampler.check_length`: the window is what the other sampler serves."""
        self.sampler.check_length(self.window_for(length))

    def window_for(self, length: int) -> int:
        """See `Sampler.window_for`."""
        return length if self.window is None else min(self.window, length)

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        window = self.window_for(length)
        return len(self.starts(length, window)) * self.sampler.num_steps_for(window)

    @property
    def supports_weights(self) -> bool:
        """See `Sampler.supports_weights`: as the sampler inside."""
        return self.sampler.supports_weights

    def starts(self, length: int, window: int) -> list[int]:
        """First position of each window."""
        stride = self.stride or max(1, window // 2)
        return [*range(0, length - window, stride), length - window]

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
        length, fitted = x_init.shape[1], self.fitted(getattr(getattr(denoiser, "backbone", None), "max_length", None))
        window, x, nfe, rows = fitted.window_for(length), x_init.clone(), 0, 0
        for number, start in enumerate(fitted.starts(length, window)):
            part = slice(start, start + window)
            noise = draws if number == 0 else replace(draws, seed=hash64(draws.seed, "window", number))
            # What is visible is given or of an earlier window: nothing here to refine for a sampler that would (`Gibbs`).
            settled = (x != process.vocab.mask_id if frozen is None else frozen | (x != process.vocab.mask_id))[:, part]
            law = part_of(denoiser, columns=part)
            result = self.sampler.sample(law, process, x[:, part], noise, settled, cond, None if valid is None else valid[:, part])
            x = torch.cat([x[:, :start], result.tokens, x[:, start + window :]], 1)
            nfe, rows = nfe + result.nfe, rows + result.rows
        return Samples(x, nfe, rows)
