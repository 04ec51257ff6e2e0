"""The operations of a mixer around its scan, as Triton programs of one warp: both convolutions, the
gate, and addition with the next norm.

Positions may be in blocks, each convolved on its own with inputs given before or after it. All are
bound by memory bandwidth: each array is read or written once (values shared by neighboring
positions come from the L1 cache), in vectors of 16 bytes along the channels, of fewer if the
distance between rows is not a multiple of 16. The backward pass of the convolutions recomputes the
slopes of four neighbors instead of writing them: 8 bytes per channel and position instead of 16 or
more. Gradients of weights are partial sums, one per program.
"""

import triton
import triton.language as tl
from triton.language import constexpr

from dnadiff.networks.kernels.triton_kernels import multiples, read, write

# mypy: ignore-errors
# Triton compiles these functions: tuples grow in loops, which Python's type rules do not allow.


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-1.4426950408889634 * x))


@triton.jit
def _place(E, BE: constexpr, spans):
    """Columns of this program and whether they exist, its span of positions, and its sequence."""
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(E, BE)
    e = (pid % blocks) * BE + tl.arange(0, BE)
    return e, e < E, pid // blocks % spans, pid // blocks // spans


@triton.jit
def _at(x, t, e, e_ok, L, x_l):
    ok = ((t >= 0) & (t < L))[:, None] & e_ok[None, :]
    return tl.load(x + t[:, None] * x_l + e[None, :], mask=ok, other=0.0).to(tl.float32)


@triton.jit
def _store(to, values, t, e, e_ok, b, L, E):
    """Store the values of positions t of sequence b in a contiguous array."""
    at, ok = (b * L + t)[:, None] * E + e[None, :], (t < L)[:, None] & e_ok[None, :]
    write(to, at, values, ok)


# In the functions below `source` is (x, the inputs given to its blocks, columns and whether they
# exist, L, E, the distance between positions of x, the length of blocks).


@triton.jit
def _near(source, t, BEFORE: constexpr, K: constexpr, BLOCKS: constexpr, GIVEN: constexpr):
    """x at positions t - BEFORE; if BLOCKS, of t's block alone, and if GIVEN of the K - 1 inputs
    before (BEFORE > 0) or after it."""
    x, given, e, e_ok, L, E, x_l, block = source
    if BLOCKS:
        s, exists = t - BEFORE, (t >= 0) & (t < L)
        first = t // block * block
        after = tl.minimum(first + block, L)
        inside = (s >= first) & (s < after)
        ok = (exists & inside)[:, None] & e_ok[None, :]
        near = tl.load(x + s[:, None] * x_l + e[None, :], mask=ok, other=0.0).to(tl.float32)
        if GIVEN and BEFORE != 0:
            row = t // block * (K - 1) + (s - first + K - 1 if BEFORE > 0 else s - after)
            ok = (exists & (inside == 0))[:, None] & e_ok[None, :]
            at = given + row[:, None] * E + e[None, :]
            near += tl.load(at, mask=ok, other=0.0).to(tl.float32)
    else:
        near = _at(x, t - BEFORE, e, e_ok, L, x_l)
    return near


@triton.jit
def _row(w, e, e_ok):
    return tl.load(w + e, mask=e_ok, other=0.0)[None, :]


@triton.jit(do_not_specialize=["L", "spans", "block"])
def convolve(
    x, w0, w1, bias0, bias1, given, y0, y1, L, E, spans, x_b, x_l, block, given_b,
    ALIGN: constexpr, K: constexpr, TT: constexpr, BE: constexpr,
    AHEAD: constexpr, BACK: constexpr, BLOCKS: constexpr, GIVEN: constexpr,
):  # fmt: skip
    """silu of the causal convolution (w0, K x E) if AHEAD and of its mirror image (w1) if BACK; if
    BLOCKS, of each block alone."""
    E, x_b, x_l, given_b = multiples((E, x_b, x_l, given_b), ALIGN)
    e, e_ok, span, b = _place(E, BE, spans)
    t = span * TT + tl.arange(0, TT)
    source = (x + b * x_b, given + b * given_b, e, e_ok, L, E, x_l, block)
    ahead, back = tl.zeros((TT, BE), tl.float32), tl.zeros((TT, BE), tl.float32)
    if AHEAD:
        ahead += _row(bias0, e, e_ok)
    if BACK:
        back += _row(bias1, e, e_ok)
    for o in tl.static_range(2 * K - 1):
        if (AHEAD and o < K) or (BACK and o > K - 2):
            near = _near(source, t, K - 1 - o, K, BLOCKS, GIVEN)
            if AHEAD and o < K:
                ahead += near * _row(w0 + o * E, e, e_ok)
            if BACK and o > K - 2:
                back += near * _row(w1 + (2 * K - 2 - o) * E, e, e_ok)
    if AHEAD:
        _store(y0, ahead * _sigmoid(ahead), t, e, e_ok, b, L, E)
    if BACK:
        _store(y1, back * _sigmoid(back), t, e, e_ok, b, L, E)


@triton.jit
def _before_silu(
    source, dy, t, w, bias, dy_l, K: constexpr, SIGN: constexpr, BLOCKS: constexpr, GIVEN: constexpr
):
    """The gradient of what silu is applied to, at positions t; SIGN is 1 for the causal convolution
    and -1 for its mirror image."""
    _, _, e, e_ok, L, E, _, _ = source
    a = _row(bias, e, e_ok)
    for k in tl.static_range(K):
        near = _near(source, t, SIGN * (K - 1 - k), K, BLOCKS, GIVEN)
        a += near * _row(w + k * E, e, e_ok)
    s = _sigmoid(a)
    return _at(dy, t, e, e_ok, L, dy_l) * s * (1.0 + a * (1.0 - s))


@triton.jit
def _conv_gradients(
    source, dy, w, bias, sums, dx, t, dy_l,
    K: constexpr, SIGN: constexpr, BLOCKS: constexpr, GIVEN: constexpr,
):  # fmt: skip
    """dx plus the gradient of one direction, and the sums of that direction over t: K weights and
    the bias."""
    _, _, e, e_ok, _, E, _, block = source
    for j in tl.static_range(K):
        da = _before_silu(source, dy, t + SIGN * j, w, bias, dy_l, K, SIGN, BLOCKS, GIVEN)
        if BLOCKS:
            same = (t + SIGN * j + block) // block == (t + block) // block
            da = tl.where(same[:, None], da, 0.0)
        dx += da * _row(w + (K - 1 - j) * E, e, e_ok)
        if j == 0:
            new = ()
            for k in tl.static_range(K):
                near = _near(source, t, SIGN * (K - 1 - k), K, BLOCKS, GIVEN)
                new += (sums[k] + tl.sum(da * near, axis=0),)
            new += (sums[K] + tl.sum(da, axis=0),)
            sums = new
    return dx, sums


@triton.jit(do_not_specialize=["L", "spans", "block"])
def convolve_backward(
    x, w0, w1, bias0, bias1, given, dy0, dy1, dx, partial, L, E, spans, x_b, x_l, dy_b, dy_l, block,
    given_b,
    ALIGN: constexpr, K: constexpr, TT: constexpr, TILES: constexpr, BE: constexpr,
    AHEAD: constexpr, BACK: constexpr,
    BLOCKS: constexpr, GIVEN: constexpr,
):  # fmt: skip
    """dx, and partial (programs along time, 2, K + 1, E): sums for the weights and biases of both
    directions."""
    E, x_b, x_l, dy_b, dy_l, given_b = multiples((E, x_b, x_l, dy_b, dy_l, given_b), ALIGN)
    e, e_ok, span, b = _place(E, BE, spans)
    source = (x + b * x_b, given + b * given_b, e, e_ok, L, E, x_l, block)
    dy0, dy1 = dy0 + b * dy_b, dy1 + b * dy_b
    sums0, sums1 = (), ()
    for _ in tl.static_range(K + 1):
        sums0 += (tl.zeros((BE,), tl.float32),)
        sums1 += (tl.zeros((BE,), tl.float32),)
    for tile in range(TILES):
        t = (span * TILES + tile) * TT + tl.arange(0, TT)
        total = tl.zeros((TT, BE), tl.float32)
        if AHEAD:
            total, sums0 = _conv_gradients(
                source, dy0, w0, bias0, sums0, total, t, dy_l, K, 1, BLOCKS, GIVEN
            )
        if BACK:
            total, sums1 = _conv_gradients(
                source, dy1, w1, bias1, sums1, total, t, dy_l, K, -1, BLOCKS, GIVEN
            )
        _store(dx, total, t, e, e_ok, b, L, E)
    to = partial + (b * spans + span) * (2 * K + 2) * E + e
    for k in tl.static_range(K + 1):
        tl.store(to + k * E, sums0[k], mask=e_ok)
        tl.store(to + (K + 1 + k) * E, sums1[k], mask=e_ok)


@triton.jit(do_not_specialize=["L", "spans", "block", "rows"])
def convolve_given(
    x, w, bias, given, dy, dgiven, L, E, spans, x_b, x_l, dy_b, dy_l, block, rows,
    ALIGN: constexpr, K: constexpr, TT: constexpr, BE: constexpr, SIGN: constexpr,
):  # fmt: skip
    """The gradients of the `rows` inputs given to the blocks of a sequence, K - 1 before (SIGN 1)
    or after (-1) each of them."""
    E, x_b, x_l, dy_b, dy_l = multiples((E, x_b, x_l, dy_b, dy_l), ALIGN)
    e, e_ok, span, b = _place(E, BE, spans)
    row = span * TT + tl.arange(0, TT)
    source = (x + b * x_b, given + b * rows * E, e, e_ok, L, E, x_l, block)
    first = row // (K - 1) * block
    after = tl.minimum(first + block, L)
    t = row % (K - 1) + (first - (K - 1) if SIGN == 1 else after)
    total = tl.zeros((TT, BE), tl.float32)
    for j in tl.static_range(1, K):
        s = t + SIGN * j
        s = tl.where((s >= first) & (s < after) & (row < rows), s, L)
        da = _before_silu(source, dy + b * dy_b, s, w, bias, dy_l, K, SIGN, True, True)
        total += da * _row(w + (K - 1 - j) * E, e, e_ok)
    _store(dgiven, total, row, e, e_ok, b, rows, E)


@triton.jit
def _gate_inputs(y, y_rev, z, y_b, y_l, rev_b, rev_l, z_b, z_l, t, e, e_ok, b, L, BOTH: constexpr):
    """y + y_rev, and z."""
    total = _at(y + b * y_b, t, e, e_ok, L, y_l)
    if BOTH:
        total += _at(y_rev + b * rev_b, t, e, e_ok, L, rev_l)
    return total, _at(z + b * z_b, t, e, e_ok, L, z_l)


@triton.jit(do_not_specialize=["L", "spans"])
def gate(
    y, y_rev, z, out, L, E, spans, y_b, y_l, rev_b, rev_l, z_b, z_l,
    ALIGN: constexpr, TT: constexpr, BE: constexpr, BOTH: constexpr,
):  # fmt: skip
    """(y + y_rev) silu(z)."""
    E, y_b, y_l, rev_b, rev_l, z_b, z_l = multiples((E, y_b, y_l, rev_b, rev_l, z_b, z_l), ALIGN)
    e, e_ok, span, b = _place(E, BE, spans)
    t = span * TT + tl.arange(0, TT)
    total, x = _gate_inputs(y, y_rev, z, y_b, y_l, rev_b, rev_l, z_b, z_l, t, e, e_ok, b, L, BOTH)
    _store(out, total * x * _sigmoid(x), t, e, e_ok, b, L, E)


@triton.jit(do_not_specialize=["L", "spans"])
def gate_backward(
    dout, y, y_rev, z, dy, dz, L, E, spans, dout_b, dout_l, y_b, y_l, rev_b, rev_l, z_b, z_l,
    ALIGN: constexpr, TT: constexpr, BE: constexpr, BOTH: constexpr,
):  # fmt: skip
    """dy, which is also dy_rev, and dz."""
    E, dout_b, dout_l, y_b, y_l, rev_b, rev_l, z_b, z_l = multiples(
        (E, dout_b, dout_l, y_b, y_l, rev_b, rev_l, z_b, z_l), ALIGN
    )
    e, e_ok, span, b = _place(E, BE, spans)
    t = span * TT + tl.arange(0, TT)
    total, x = _gate_inputs(y, y_rev, z, y_b, y_l, rev_b, rev_l, z_b, z_l, t, e, e_ok, b, L, BOTH)
    g, s = _at(dout + b * dout_b, t, e, e_ok, L, dout_l), _sigmoid(x)
    _store(dy, g * x * s, t, e, e_ok, b, L, E)
    _store(dz, g * total * s * (1.0 + x * (1.0 - s)), t, e, e_ok, b, L, E)


@triton.jit(do_not_specialize=["rows"])
def add_norm(
    x,
    added,
    weight,
    total,
    out,
    scale,
    rows,
    D,
    eps,
    ALIGN: constexpr,
    TT: constexpr,
    BD: constexpr,
    ADD: constexpr,
):
    """total = x + added, out = total / rms(total) * weight, scale = 1 / rms(total); rows are
    contiguous."""
    D = D // ALIGN * ALIGN
    t, e = tl.program_id(0).to(tl.int64) * TT + tl.arange(0, TT), tl.arange(0, BD)
    at, ok = t[:, None] * D + e[None, :], (t < rows)[:, None] & (e < D)[None, :]
    s = read(x, at, ok)
    if ADD:
        s += read(added, at, ok)
        rounded = s.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=ok)
        s = rounded.to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(s * s, axis=1) / D + eps)
    w = read(weight, e, e < D)
    write(out, at, s * r[:, None] * w[None, :], ok)
    tl.store(scale + t, r, mask=t < rows)


@triton.jit(do_not_specialize=["rows"])
def add_norm_backward(
    dout, dtotal, total, weight, scale, dx, dadded, partial, rows, D,
    ALIGN: constexpr, TT: constexpr, TILES: constexpr, BD: constexpr, ADD: constexpr,
    LATER: constexpr,
):  # fmt: skip
    """The gradient of the sum, written for x and, if ADD, for `added`; LATER: the sum has a
    gradient of its own."""
    D = D // ALIGN * ALIGN
    e = tl.arange(0, BD)
    w = read(weight, e, e < D)
    dw = tl.zeros((BD,), tl.float32)
    pid = tl.program_id(0).to(tl.int64)
    for tile in range(TILES):
        t = (pid * TILES + tile) * TT + tl.arange(0, TT)
        at, ok = t[:, None] * D + e[None, :], (t < rows)[:, None] & (e < D)[None, :]
        r = read(scale, t, t < rows)
        unit = read(total, at, ok) * r[:, None]
        g = read(dout, at, ok)
        dw += tl.sum(g * unit, axis=0)
        g *= w[None, :]
        g = r[:, None] * (g - unit * (tl.sum(g * unit, axis=1) / D)[:, None])
        if LATER:
            g += read(dtotal, at, ok)
        write(dx, at, g, ok)
        if ADD:
            write(dadded, at, g, ok)
    tl.store(partial + pid * D + e, dw, mask=e < D)


@triton.jit
def _logits(row, bias, column, N, BIAS: constexpr):
    """The logits of these columns in float32; -inf past the end."""
    inside = column < N
    x = tl.load(row + column, mask=inside, other=float("-inf")).to(tl.float32)
    if BIAS:
        x += read(bias, column, inside)
    return x


@triton.jit(do_not_specialize=["first"])
def add_log_sum(
    logits, bias, ids, log_sum, picked, N, stride, first, K, BN: constexpr, BK: constexpr,
    BIAS: constexpr
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
    x = read(row, column, inside)
    if BIAS:
        x += read(bias, column, inside)
    tl.store(picked + m * K + k, x, mask=inside)


@triton.jit(do_not_specialize=["first"])
def logits_gradient(
    logits, bias, ids, log_sum, d_log_sum, d_picked, N, stride, first, K: constexpr,
    BN: constexpr, BIAS: constexpr
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
