"""The log-sum of exponentials and a few single logits of a linear map, for losses over large vocabularies.

With 50,000 tokens the logits of a batch, their log-softmax and the gradients of both are most of a training step's memory and much of
its time. Here they exist for one block of columns at a time, and the backward pass recomputes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from dnadiff.kernels.facade import linear

_ENTRIES = {"cpu": 2**23, "cuda": 2**28}  # logits in a block: 32 MB, 1 GB in float32
_MIN_COLUMNS = 1024  # of a block: narrower products are slow


def linear_log_sum(
    features: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, banned: Sequence[int] = (), block: int | None = None
) -> tuple[Tensor, Tensor]:
    """log sum_v exp(logit_v) and some columns of logits = features weight^T + bias, without holding the logits.

    Products are computed in autocast's type if autocast is on, everything else in float32 (float64 stays). The gradients
    equal those of the plain computation up to rounding. Second derivatives are refused.

    Args:
        features: (M, D).
        weight: (V, D).
        bias: (V,), or None for zero.
        ids: (M, K) int64, columns to gather from each row; none of them may be in `banned`.
        banned: columns that are left out of the sum.
        block: columns at a time; None chooses blocks of 32 MB on a CPU and 1 GB on a GPU.

    Returns:
        (M,) and (M, K), float32 or wider.
    """
    if features.dim() != 2 or weight.dim() != 2 or features.shape[1] != weight.shape[1] or ids.shape[:-1] != features.shape[:1]:
        raise ValueError(
            f"features {tuple(features.shape)}, weight {tuple(weight.shape)} and ids {tuple(ids.shape)} must be (M, D), (V, D) and (M, K)"
        )
    if block is None:
        block = max(_MIN_COLUMNS, _ENTRIES.get(features.device.type, 2**24) // max(1, len(features)))
    device = features.device.type
    product = torch.get_autocast_dtype(device) if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) else None
    out = torch.tensor(sorted(banned), dtype=torch.int64)
    return _LinearLogSum.apply(features, weight, bias, ids, out, block, product or torch.promote_types(features.dtype, weight.dtype))


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b^T by the fastest library for it."""
    return linear(a, b) if a.device.type == "cpu" and a.dtype == torch.float32 else torch_linear(a, b)


def _blocks(
    features: Tensor, weight: Tensor, bias: Tensor | None, banned: Tensor, block: int, wide: torch.dtype
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """For each block: first column, end, logits in the wide type, and its banned columns."""
    for first in range(0, len(weight), block):
        last = min(first + block, len(weight))
        logits = _multiply(features, weight[first:last].to(features.dtype)).to(wide)
        if bias is not None:
            logits += bias[first:last].to(wide)
        yield first, last, logits, (banned[(banned >= first) & (banned < last)] - first).to(features.device)


class _LinearLogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, weight, bias, ids, banned, block, product):
        wide = torch.promote_types(product, torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            x = features.to(product)
            log_sum = x.new_full((len(x),), -torch.inf, dtype=wide)
            picked = x.new_zeros(ids.shape, dtype=wide)
            for first, last, logits, out in _blocks(x, weight, bias, banned, block, wide):
                inside = (ids >= first) & (ids < last)
                picked = torch.where(inside, logits.gather(1, (ids - first).clamp(0, last - first - 1)), picked)
                logits.index_fill_(1, out, -torch.inf)
                log_sum = torch.logaddexp(log_sum, logits.logsumexp(1))
        ctx.save_for_backward(features, weight, bias, ids, banned, log_sum)
        ctx.block, ctx.product = block, product
        return log_sum, picked

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_log_sum, d_picked):
        features, weight, bias, ids, banned, log_sum = ctx.saved_tensors
        product, wide = ctx.product, log_sum.dtype
        with torch.autocast(features.device.type, enabled=False):
            x = features.to(product)
            d_features = torch.zeros(x.shape, dtype=wide, device=x.device)
            d_weight, d_bias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
            for first, last, logits, out in _blocks(x, weight, bias, banned, ctx.block, wide):
                logits.sub_(log_sum[:, None]).exp_().mul_(d_log_sum[:, None])
                logits.index_fill_(1, out, 0.0)
                inside = (ids >= first) & (ids < last)
                logits.scatter_add_(1, (ids - first).clamp(0, last - first - 1), torch.where(inside, d_picked, 0.0))
                if bias is not None:
                    d_bias[first:last] = logits.sum(0)
                logits = logits.to(product)
                d_features += _multiply(logits, weight[first:last].to(product).t())
                d_weight[first:last] = _multiply(logits.t(), x.t())
        return d_features.to(features.dtype), d_weight, d_bias, None, None, None, None
