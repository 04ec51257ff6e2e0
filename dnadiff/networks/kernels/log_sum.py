"""The log-sum of exponentials and a few single logits of a linear map, for losses over large
vocabularies.

With 50,000 tokens the logits of a batch, their log-softmax and the gradients of both are most of a
training step's memory and much of its time. Here they exist for one block of columns at a time, and
the backward pass recomputes them. On a GPU, Triton kernels read each logit once, and replace it by
its gradient in place.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from dnadiff.networks.kernels import triton_rowwise
from dnadiff.networks.kernels.backend import OptionalTensor
from dnadiff.networks.kernels.facade import AUTO, SCANS, choose, triton_allowed
from dnadiff.networks.kernels.triton_scan import interpreted
from dnadiff.progress import log

_ENTRIES = {"cpu": 2**23, "cuda": 2**28}  # logits in a block: 32 MB, 1 GB in float32
_MIN_COLUMNS = 1024  # of a block: narrower products are slow
# columns: rows of a block start at multiples of 128 bytes in half precision, whatever the size of
# the vocabulary
_ALIGNED = 64


def linear_log_sum(
    features: Tensor,
    weight: Tensor,
    bias: OptionalTensor,
    ids: Tensor,
    banned: Sequence[int] = (),
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log sum_v exp(logit_v) and some columns of logits = features weight^T + bias, without holding
    the logits.

    Products are computed in autocast's type if autocast is on, everything else in float32 (float64
    stays). The gradients equal those of the plain computation up to rounding. Second derivatives
    are refused.

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
    device = features.device.type
    if block is None:
        columns = _ENTRIES.get(device, 2**24) // max(1, len(features))
        block = max(_MIN_COLUMNS, columns // _ALIGNED * _ALIGNED)
    product = torch.promote_types(features.dtype, weight.dtype)
    if device != "meta" and torch.is_autocast_enabled(device):
        product = torch.get_autocast_dtype(device)
    options = tuple(banned), block, product
    return _LinearLogSum.apply(features, weight, bias, ids.contiguous(), *options)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b^T by the fastest library for it."""
    if a.device.type == "cpu" and a.dtype == torch.float32 and a.numel():
        return SCANS[choose(AUTO, "cpu", a.dtype)].linear(a, b)
    return torch_linear(a, b)


@cache
def _triton_failure(device: torch.device) -> str:
    """Why the Triton kernels are not used on a device; an empty string if they are."""
    if device.type != "cuda" and not interpreted():
        return "it needs a CUDA device"
    reason = _difference(device)
    if reason and device.type == "cuda":
        log.warning("loss over the vocabulary: not Triton, because %s", reason)
    return reason


def _difference(device: torch.device, kernels: Any = triton_rowwise) -> str:
    """How kernels differ from PyTorch on a small input; an empty string if they do
    not."""
    values = torch.arange(3 * 70, dtype=torch.float32, device=device).view(3, 70).sin()
    ids = torch.tensor([[1, 80], [9, 9], [70, 0]], device=device)
    found = []
    try:
        for operations in (kernels, _Portable):
            log_sum, picked, gradient = values[:, 0].clone(), values[:, :2].clone(), values.clone()
            operations.add_log_sum(values.clone(), values[0], ids, 5, log_sum, picked)
            operations.logits_gradient(
                gradient, values[0], ids, 5, log_sum, values[:, 3].contiguous(), picked
            )
            found.append(torch.cat([log_sum, picked.flatten(), gradient.flatten()]))
    # a compiler or driver that is missing or fails: whatever it is, it is the reason
    except Exception as error:
        return str(error) or repr(error)
    worst = float((found[0] - found[1]).abs().max())
    return "" if worst < 1e-4 else f"its results differ from PyTorch's by {worst:.1e}"


class _Portable:
    """What is done with each block of logits, in PyTorch, on any device and in any type."""

    @staticmethod
    def add_log_sum(
        logits: Tensor,
        bias: OptionalTensor,
        ids: Tensor,
        first: int,
        log_sum: Tensor,
        picked: Tensor,
    ) -> None:
        """Add a block of columns to the log-sums `log_sum (M,)` and to the gathered columns
        `picked (M, K)`, in place.

        Args:
            logits: (M, N) logits of the columns from `first` on, without their bias; their memory
                may be overwritten.
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

    @staticmethod
    def logits_gradient(
        logits: Tensor,
        bias: OptionalTensor,
        ids: Tensor,
        first: int,
        log_sum: Tensor,
        d_log_sum: Tensor,
        d_picked: Tensor,
    ) -> None:
        """Replace a block of logits by its gradient; arguments as in `add_log_sum`, with the
        log-sums of all blocks."""
        wide = _with_bias(logits, bias, log_sum.dtype)
        wide.sub_(log_sum[:, None]).exp_().mul_(d_log_sum[:, None])
        columns, inside = _columns(ids, first, wide)
        wide.scatter_add_(1, columns, torch.where(inside, d_picked, 0.0))
        if wide is not logits:
            logits.copy_(wide)


def _with_bias(logits: Tensor, bias: OptionalTensor, wide: torch.dtype) -> Tensor:
    logits = logits.to(wide)
    return logits if bias is None else logits.add_(bias.to(wide))


def _columns(ids: Tensor, first: int, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of a block to gather, and whether they are those of `ids` or just any."""
    end = first + logits.shape[1]
    return (ids - first).clamp(0, end - first - 1), (ids >= first) & (ids < end)


def _blocks(
    features: Tensor, weight: Tensor, bias: OptionalTensor, banned: Sequence[int], block: int
) -> Iterator[tuple[Any, slice, Tensor, OptionalTensor, Tensor]]:
    """Blocks of logits: the operations on them, their columns, weights and biases, and the logits
    without bias, -inf for banned columns.

    The operations are Triton kernels where they run, otherwise PyTorch.
    """
    operations: Any = _Portable
    size = len(weight)
    buffer = None
    if (
        features.dtype != torch.float64
        and triton_allowed()
        and not _triton_failure(features.device)
    ):
        widest = -(-min(block, size) // _ALIGNED) * _ALIGNED
        buffer = features.new_empty(len(features), widest)
        operations = triton_rowwise
    for first in range(0, size, block):
        columns = slice(first, min(first + block, size))
        part = weight[columns].to(features.dtype)
        if buffer is None:
            logits = _multiply(features, part)
        else:
            logits = torch.mm(features, part.t(), out=buffer[:, : len(part)])
        for column in banned:
            if columns.start <= column < columns.stop:
                logits[:, column - first] = -torch.inf
        yield (
            operations,
            columns,
            part,
            None if bias is None else bias[columns].contiguous(),
            logits,
        )


class _LinearLogSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: OptionalTensor, ids: Tensor,
        banned: tuple[int, ...], block: int, product: torch.dtype,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        wide = torch.promote_types(product, torch.float32)
        log_sum = features.new_full((len(features),), -torch.inf, dtype=wide)
        picked = features.new_zeros(ids.shape, dtype=wide)
        with torch.autocast(features.device.type, enabled=False):
            blocks = _blocks(features.to(product), weight, bias, banned, block)
            for operations, columns, _, bias_part, logits in blocks:
                operations.add_log_sum(logits, bias_part, ids, columns.start, log_sum, picked)
        ctx.save_for_backward(features, weight, bias, ids, log_sum)
        ctx.banned = banned
        ctx.block = block
        ctx.product = product
        return log_sum, picked

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_log_sum: Tensor, d_picked: Tensor) -> tuple[OptionalTensor, ...]:
        features, weight, bias, ids, log_sum = ctx.saved_tensors
        wide = log_sum.dtype
        d_log_sum = d_log_sum.contiguous()
        d_picked = d_picked.contiguous()
        d_weight = torch.empty_like(weight)
        d_bias = None if bias is None else torch.empty_like(bias)
        with torch.autocast(features.device.type, enabled=False):
            x = features.to(ctx.product)
            d_features = torch.zeros(x.shape, dtype=wide, device=x.device)
            blocks = _blocks(x, weight, bias, ctx.banned, ctx.block)
            for operations, columns, part, bias_part, logits in blocks:
                operations.logits_gradient(
                    logits, bias_part, ids, columns.start, log_sum, d_log_sum, d_picked
                )
                if d_bias is not None:
                    d_bias[columns] = logits.sum(0, dtype=wide)
                d_features += _multiply(logits, part.t())
                d_weight[columns] = _multiply(logits.t(), x.t())
        return d_features.to(features.dtype), d_weight, d_bias, None, None, None, None
