"""What `log_sum` does with each block of logits, in PyTorch, on any device and in any type."""

from __future__ import annotations

import torch
from torch import Tensor


def add_log_sum(
    logits: Tensor, bias: Tensor | None, ids: Tensor, first: int, log_sum: Tensor, picked: Tensor
) -> None:
    """Add a block of columns to the log-sums `log_sum (M,)` and to the gathered columns
    `picked (M, K)`, in place.

    Args:
        logits: (M, N) logits of the columns from `first` on, without their bias; their memory may
            be overwritten.
        bias: (N,), or None for zero.
        ids: (M, K), columns to gather; those of other blocks are ignored.
        first: the first column of the block.
        log_sum: (M,) log-sums of the blocks before, float32 or wider.
        picked: (M, K).
    """
    wide = _with_bias(logits, bias, log_sum.dtype)
    columns, inside = _columns(ids, first, wide)
    picked.copy_(torch.where(inside, wide.gather(1, columns), picked))
    log_sum.copy_(torch.logaddexp(log_sum, wide.logsumexp(1)))


def logits_gradient(
    logits: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    first: int,
    log_sum: Tensor,
    d_log_sum: Tensor,
    d_picked: Tensor,
) -> None:
    """Replace a block of logits by its gradient; arguments as in `add_log_sum`, with the log-sums
    of all blocks."""
    wide = _with_bias(logits, bias, log_sum.dtype)
    wide.sub_(log_sum[:, None]).exp_().mul_(d_log_sum[:, None])
    columns, inside = _columns(ids, first, wide)
    wide.scatter_add_(1, columns, torch.where(inside, d_picked, 0.0))
    if wide is not logits:
        logits.copy_(wide)


def _with_bias(logits: Tensor, bias: Tensor | None, wide: torch.dtype) -> Tensor:
    logits = logits.to(wide)
    return logits if bias is None else logits.add_(bias.to(wide))


def _columns(ids: Tensor, first: int, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of a block to gather, and whether they are those of `ids` or just any."""
    end = first + logits.shape[1]
    return (ids - first).clamp(0, end - first - 1), (ids >= first) & (ids < end)
