"""The log-sum of exponentials of rows of logits and its gradient, as Triton kernels: one read, or
one read and one write, of each logit.

Both are bound by memory bandwidth: 2 bytes of a bfloat16 logit forward, 4 backward, where separate
operations of PyTorch in float32 move about 40 each way.
"""

# mypy: ignore-errors
# Triton compiles these functions: values change their types in loops, which Python's type rules do
# not allow.

import triton
import triton.language as tl


@triton.jit
def _logits(row, bias, column, N, BIAS: tl.constexpr):
    """The logits of these columns in float32; -inf past the end."""
    inside = column < N
    x = tl.load(row + column, mask=inside, other=float("-inf")).to(tl.float32)
    if BIAS:
        x += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["first"])
def add_log_sum(
    logits, bias, ids, log_sum, picked, N, stride, first, K, BN: tl.constexpr, BK: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """Of one row: log_sum = log(exp(log_sum) + sum_v exp(logit_v)), and the logits of the `ids`
    that are in this block, first to first + N."""
    m = tl.program_id(0).to(tl.int64)
    row = logits + m * stride
    # A maximum and a sum for each place of the tile: one reduction between threads at the end.
    # Finite, so that -inf minus it is -inf.
    largest, total = tl.full((BN,), -1e30, tl.float32), tl.zeros((BN,), tl.float32)
    for start in range(0, N, BN):
        x = _logits(row, bias, start + tl.arange(0, BN), N, BIAS)
        higher = tl.maximum(largest, x)
        total = total * tl.exp(largest - higher) + tl.exp(x - higher)
        largest = higher
    top = tl.max(largest, 0)
    block = top + tl.log(tl.sum(total * tl.exp(largest - top), 0))
    before = tl.load(log_sum + m)
    high = tl.maximum(tl.maximum(before, block), -1e30)
    tl.store(log_sum + m, high + tl.log(tl.exp(before - high) + tl.exp(block - high)))
    k = tl.arange(0, BK)
    column = tl.load(ids + m * K + k, mask=k < K, other=-1) - first
    inside = (column >= 0) & (column < N)
    x = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(picked + m * K + k, x, mask=inside)


@triton.jit(do_not_specialize=["first"])
def logits_gradient(
    logits, bias, ids, log_sum, d_log_sum, d_picked, N, stride, first, K: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """Replace a tile of logits by its gradient: softmax times d_log_sum, plus d_picked where a
    column is one of `ids`."""
    tiles = tl.cdiv(N, BN)
    program = tl.program_id(0).to(tl.int64)
    m, column = program // tiles, program % tiles * BN + tl.arange(0, BN)
    row = logits + m * stride
    gradient = tl.exp(_logits(row, bias, column, N, BIAS) - tl.load(log_sum + m)) * tl.load(
        d_log_sum + m
    )
    for k in tl.static_range(K):
        gradient += tl.where(
            column == tl.load(ids + m * K + k) - first, tl.load(d_picked + m * K + k), 0.0
        )
    tl.store(row + column, gradient.to(logits.dtype.element_ty), mask=column < N)
