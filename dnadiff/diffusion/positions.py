"""Where logits are computed, and how: the choices for speed, which depend on the device and the
number of tokens.

On a GPU the process waits for the number of positions that a mask selects, because it determines
the shapes of what follows. So positions are listed before the network runs: after it, the GPU would
be idle while the process queues the loss and the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Vocabulary sizes: up to the first, computing more logits on a GPU costs less than waiting for it
# to say which are needed; below the second, two copies of log-probabilities cost less than that.
FEW_TOKENS, COPIED_TOKENS = 64, 1024
# From this size on, losses do not hold the logits; smaller arrays are not worth computing twice.
FUSED_TOKENS = 1024
_CHECKED = 16  # calls on a GPU per check for whose result the process waits


class Positions:
    """The chosen positions of a batch: a list of them, or all positions, where the others count 0.

    Args:
        chosen: (B, L) bool.
        everywhere: whether values are computed at all positions.

    Attributes:
        requested: what to ask a denoiser for, (B, L) bool; None is everywhere.
        index: row and column of each chosen position, (M,) each.
    """

    def __init__(self, chosen: Tensor, everywhere: bool = False) -> None:
        self.chosen, self.everywhere = chosen, everywhere
        self.requested = None if everywhere else chosen
        self.index = () if everywhere else chosen.nonzero(as_tuple=True)

    @classmethod
    def fastest(cls, chosen: Tensor, num_tokens: int) -> Positions:
        """All positions, if that is faster than listing the chosen ones."""
        return cls(chosen, chosen.is_cuda and num_tokens <= FEW_TOKENS)

    def at(self, x: Tensor) -> Tensor:
        """The values of x (B, L): (M,), or (B L,) with 0 where nothing is chosen."""
        return self.only(x.flatten()) if self.everywhere else x[self.index]

    def only(self, values: Tensor) -> Tensor:
        """Values computed at the `requested` positions, 0 where nothing is chosen: whatever is
        there may be infinite."""
        return torch.where(self.chosen.flatten(), values, 0.0) if self.everywhere else values


def indices(positions: Tensor | None) -> tuple[Tensor, ...] | None:
    """Row and column of each True in `positions (B, L)`, (M,) each; None for None."""
    return None if positions is None else positions.nonzero(as_tuple=True)


def at(x: Tensor, index: Tensor | tuple[Tensor, ...] | None) -> Tensor:
    """The rows of x (B, L, ...) at an index or a mask; x itself for None."""
    return x if index is None else x[index]


class Occasional:
    """Whether to make a check now: in every call on a CPU, in the first of 16 on a GPU."""

    def __init__(self) -> None:
        self.calls = 0

    def due(self, x: Tensor) -> bool:
        """Count a call with x."""
        self.calls += 1
        return not x.is_cuda or self.calls % _CHECKED == 1


def copies_are_cheap(log_probs: Tensor) -> bool:
    """Whether two copies of log-probabilities (..., V) cost less than asking if they are needed."""
    return log_probs.is_cuda and log_probs.shape[-1] < COPIED_TOKENS
