"""Semi-autoregressive sampling (MDLM, arXiv 2406.07524): sequences of any length, window after
window from left to right."""

from __future__ import annotations

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.sampler.base import OuterSampler, Sampler
from dnadiff.fields import PositiveInt, checked


@checked
class SemiAR(OuterSampler):
    """Another sampler in windows that advance by `stride` tokens; each window sees the end of the
    previous one.

    The first window is sampled completely. Every later one fills its last `stride` positions given
    the others (the last window fewer, so that it ends with the sequence). Visible tokens in a
    window are given, also for `Gibbs`. Exact only up to the window: tokens further back are
    forgotten, and the distribution is no longer the same on both strands. A sequence that is not
    longer than the window is left to the other sampler.

    Args:
        sampler: fills the masks of a window.
        window: tokens that the network reads in one call; None is the network's `max_length` (the
            command `sample` takes the training window).
        stride: new tokens in each later window; None is half the window.

    Examples:
        >>> from dnadiff.diffusion.sampler.grouped import Grouped
        >>> SemiAR(Grouped(num_groups=32), window=256, stride=128).num_steps_for(length=512)
        96
    """

    part_name = "window"
    has_weights = True  # those of the other sampler

    def __init__(
        self, sampler: Sampler, window: PositiveInt | None = None, stride: PositiveInt | None = None
    ) -> None:
        super().__init__(sampler, "grouped")
        self.window = window
        self.stride = stride
        if window is not None and stride is not None and stride > window:
            raise ValueError(
                f"stride {stride} is larger than the window {window}; set sampler.stride to at "
                f"most {window}"
            )

    def check_model(self, denoiser: BaseDenoiser) -> None:
        super().check_model(denoiser)
        self.sampler.check_model(denoiser)

    def fitted(self, denoiser: BaseDenoiser) -> SemiAR:
        max_length = denoiser.max_length
        if max_length is not None and self.window is not None and self.window > max_length:
            raise ValueError(
                f"window {self.window} is more than the {max_length} tokens that this network "
                "takes; set sampler.window to that or less"
            )
        if self.window is not None or max_length is None:
            return self
        return SemiAR(self.sampler, max_length, self.stride)

    def window_for(self, length: int) -> int:
        return length if self.window is None else min(self.window, length)

    def num_steps_for(self, length: int) -> int:
        return len(self.parts(length)) * self.sampler.num_steps_for(self.window_for(length))

    size_for = window_for

    def parts(self, length: int) -> list[slice]:
        window = self.window_for(length)
        stride = self.stride or max(1, window // 2)
        starts = [*range(0, length - window, stride), length - window]
        return [slice(start, start + window) for start in starts]
