"""Samplers on a uniform grid of times from 1 to 0."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.sampler.base import Sampler

# What the last step does: whether it takes the most probable tokens, and whether it leaves the
# masks.
NOISE_REMOVAL = {"sample": (False, False), "argmax": (True, False), "none": (False, True)}


@dataclass(eq=False)
class GridSampler(Sampler):
    """A sampler on a uniform grid of times from 1 to 0. Its last step unmasks whatever is left.

    If the fraction m of a template is masked, the network is conditioned on the times at which the
    fractions m (1 - alpha(t))/(1 - alpha(1)) are.

    Args:
        num_steps: T.
        noise_removal: what the last step does: `sample` draws, `argmax` takes the most probable
            token (as MDLM's code does after its grid), `none` leaves the masks.
    """

    num_steps: checks.PositiveInt = 128
    _: KW_ONLY
    noise_removal: str = "sample"

    def __post_init__(self) -> None:
        self.num_steps = checks.integer("sampler.num_steps", self.num_steps)
        super().__post_init__()
        if self.noise_removal not in tuple(NOISE_REMOVAL):
            raise ValueError(
                f"sampler.noise_removal {self.noise_removal!r} is not known; choose "
                f"{', '.join(NOISE_REMOVAL)}"
            )
        self._argmax, self._leave = NOISE_REMOVAL[self.noise_removal]

    @override
    def num_steps_for(self, length: int) -> int:
        return self.num_steps

    @override
    def supports_weights(self, length: int) -> bool:
        return (
            super().supports_weights(length) and not self._argmax
        )  # the most probable token is not a draw

    def times(self, device: torch.device | str = "cpu") -> Tensor:
        """The grid, (T + 1,) float64 from 1 to 0."""
        return torch.linspace(1, 0, self.num_steps + 1, dtype=torch.float64, device=device)

    def leaves_masks(self, step: int) -> bool:
        """Whether this step unmasks nothing: the last one with `noise_removal=none`."""
        return self._leave and step == self.num_steps - 1

    def takes_argmax(self, step: int) -> bool:
        """Whether this step takes the most probable tokens: the last one with
        `noise_removal=argmax`."""
        return self._argmax and step == self.num_steps - 1

    @override
    def unmask(self, step: int, num_steps: int, log_probs: Tensor, uniform: Tensor) -> Tensor:
        if self.takes_argmax(step):
            return log_probs.argmax(-1)
        return super().unmask(step, num_steps, log_probs, uniform)
