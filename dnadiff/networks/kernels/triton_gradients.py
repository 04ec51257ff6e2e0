"""The backward pass of the selective scan as Triton programs; `triton_kernels` describes the layout
and the limits.

In the device functions `inputs` are the pointers (u, delta, B, C, dy, z) of one sequence and
direction, `strides` their distances between positions, and `where` is (channels, states, channel
mask, state mask, L, V, 1 if the walk runs in reverse).
"""

# mypy: ignore-errors
# Triton compiles these functions: tuples grow in loops, which Python's type rules do not allow.

import triton
import triton.language as tl
from triton.language import constexpr

from dnadiff.networks.kernels.triton_kernels import (
    either,
    multiples,
    place,
    position,
    read,
    silu,
    softplus,
    state,
    tiles,
    weights,
)


@triton.jit(do_not_specialize=["first", "sequences", "L", "chunks", "chunk", "spans"])
def chunk_starts(
    delta0, delta1, C0, C1, dy0, dy1, z, A, bias, dkept, starts, sums,
    first, sequences, L, E, N, chunks, chunk, spans, delta_b, delta_l, C_b, C_l, dy_b, dy_l, z_b,
    z_l,
    ALIGN: constexpr, NP: constexpr, BE: constexpr, SEGMENT: constexpr,
    UNROLL: constexpr,
    GATED: constexpr, EXACT: constexpr, LINKED: constexpr,
):  # fmt: skip
    """The gradient of the state before every chunk from the results of that chunk alone, and the
    sum of its steps.

    Results are outputs and, if LINKED, the states before segments, whose gradients are `dkept`.
    """
    E, delta_b, delta_l, C_b, C_l, dy_b, dy_l, z_b, z_l = multiples(
        (E, delta_b, delta_l, C_b, C_l, dy_b, dy_l, z_b, z_l), ALIGN
    )
    block, c, row, direction, b, back = place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n, e_ok, n_ok, tile, tile_ok = tiles(block, E, N, BE, NP)
    decay, shift = weights(A, bias, direction, e, e_ok, tile, tile_ok, N, E)
    delta = either(delta0, delta1, direction) + b * delta_b
    C = either(C0, C1, direction) + b * C_b
    dy = either(dy0, dy1, direction) + b * dy_b
    g = tl.zeros((NP, BE), tl.float32)
    total = tl.zeros((BE,), tl.float32)
    end = c * chunk + chunk - 1
    for k in range(0, chunk, UNROLL):
        inputs = ()
        for i in tl.static_range(UNROLL):
            t = end - k - i
            live, p = position(t, L, L, L, back, False, False)
            ok = e_ok & live
            dout = read(dy + p * dy_l, e, ok)
            if GATED:
                dout *= silu(read(z + b * z_b + p * z_l, e, ok))
            inputs += ((read(delta + p * delta_l, e, ok), read(C + p * C_l, n, n_ok & live), dout),)
        for i in tl.static_range(UNROLL):
            t = end - k - i
            step, _ = softplus(inputs[i][0] + shift)
            if EXACT:
                step = tl.where(t < L, step, 0.0)
            total += step
            g = tl.exp2(step[None, :] * decay) * (g + inputs[i][1][:, None] * inputs[i][2][None, :])
            if LINKED:  # noqa: SIM102, a constant of the compilation
                if (t % SEGMENT == 0) & (t < L):
                    g += tl.load(
                        dkept + (row * spans + t // SEGMENT) * N * E + tile, mask=tile_ok, other=0.0
                    )
    at = row * chunks + c
    tl.store(starts + at * N * E + tile, g, mask=tile_ok)
    tl.store(sums + at * E + e, total, mask=e_ok)


@triton.jit
def _columns(tile, BE: constexpr, SPAN: constexpr):
    """The SPAN columns of a tile (BE, SPAN), each (BE,). SPAN is 1, 2 or 4."""
    if SPAN == 1:
        columns = (tl.reshape(tile, (BE,)),)
    elif SPAN == 2:
        columns = tl.split(tile)
    else:
        even, odd = tl.split(tl.reshape(tile, (BE, 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        columns = (first, second, third, fourth)
    return columns


@triton.jit
def _tile(columns, BE: constexpr, SPAN: constexpr):
    """The tile of these columns: the inverse of `_columns`."""
    if SPAN == 1:
        tile = columns[0][:, None]
    elif SPAN == 2:
        tile = tl.join(columns[0], columns[1])
    else:
        tile = tl.reshape(
            tl.join(tl.join(columns[0], columns[2]), tl.join(columns[1], columns[3])), (BE, 4)
        )
    return tile


@triton.jit
def _span_states(
    h,
    start,
    stop,
    inputs,
    strides,
    where,
    a,
    shift,
    SPAN: constexpr,
    RESTART: constexpr,
    CROSSING: constexpr,
    EXACT: constexpr,
):
    """The state after SPAN positions, and for each of them the state before it, its step, the slope
    of the softplus, u and dy.

    Channels are read for all positions at once, as one tile: a vector of 32 channels has one
    element per thread, and each would have to be moved through shared memory on its own to where
    the states of its channel are.
    """
    e, n, e_ok, n_ok, L, V, back = where
    BE: constexpr = h.shape[1]
    live, p = position(start + tl.arange(0, SPAN), stop, L, V, back, RESTART, CROSSING)
    at, ok = e[:, None], e_ok[:, None] & live[None, :]
    x = read(inputs[1] + (p * strides[1])[None, :], at, ok) + shift[:, None]
    step, small = softplus(x)
    slope = tl.where(x >= 0, 1.0, small) / (1.0 + small)
    if EXACT:
        step, slope = tl.where(live[None, :], step, 0.0), tl.where(live[None, :], slope, 0.0)
    u, dy = (
        read(inputs[0] + (p * strides[0])[None, :], at, ok),
        read(inputs[4] + (p * strides[4])[None, :], at, ok),
    )
    steps, slopes, us, dys = (
        _columns(step, BE, SPAN),
        _columns(slope, BE, SPAN),
        _columns(u, BE, SPAN),
        _columns(dy, BE, SPAN),
    )
    kept = ()
    for i in tl.static_range(SPAN):
        live, p = position(start + i, stop, L, V, back, RESTART, CROSSING)
        B_t = read(inputs[2] + p * strides[2], n, n_ok & live)
        kept += ((h, steps[i], slopes[i], us[i], dys[i]),)
        h = tl.exp2(steps[i][None, :] * a) * h + B_t[:, None] * (steps[i] * us[i])[None, :]
    return h, kept


@triton.jit
def _gradient_of_gate(dy_t, h, C_t, u_t, skip, z, dz, columns, ok):
    """Stores the gradient of one position's gate; returns the gradient of the output before the
    gate."""
    gate = read(z, columns, ok)
    sigmoid = 1.0 / (1.0 + tl.exp2(-1.4426950408889634 * gate))
    y_t = tl.sum(h * C_t[:, None], axis=0) + skip * u_t
    dgate = dy_t * y_t * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    tl.store(dz + columns, dgate.to(dz.dtype.element_ty), mask=ok)
    return dy_t * (gate * sigmoid)


@triton.jit
def _retreat(
    t, stop, g, h, kept, sums, inputs, strides, outputs, where, a, skip, one, E, N,
    GATED: constexpr, RESTART: constexpr, CROSSING: constexpr,
):  # fmt: skip
    """One position of the walk back: stores its gradients of B, C and z; returns the gradient of
    the state before it, the sums for A, bias and D, and the gradients of u and delta."""
    e, n, e_ok, n_ok, L, V, back = where
    _, _, dB, dC, dz = outputs
    before, step, slope, u_t, dy_t = kept
    live, p = position(t, stop, L, V, back, RESTART, CROSSING)
    ok, row_ok = e_ok & live, n_ok & live
    B_t, C_t = (
        read(inputs[2] + p * strides[2], n, row_ok),
        read(inputs[3] + p * strides[3], n, row_ok),
    )
    if GATED:
        dy_t = _gradient_of_gate(
            dy_t, h, C_t, u_t, skip, inputs[5] + p * strides[5], dz + p * E, e, ok
        )
    tl.store(dC + p * N + n, tl.sum(h * dy_t[None, :], axis=1), mask=row_ok)
    g += C_t[:, None] * dy_t[None, :]
    tl.store(dB + p * N + n, tl.sum(g * (step * u_t)[None, :], axis=1), mask=row_ok)
    ddx = tl.sum(g * B_t[:, None], axis=0)
    g *= tl.exp2((step * one)[None, :] * a)
    q = g * before  # the gradient of the exponent step A
    dstep = tl.sum(q * a, axis=0) * 0.6931471805599453 + ddx * u_t
    sums = (sums[0] + q * step[None, :], sums[1] + dstep * slope, sums[2] + dy_t * u_t)
    return g, sums, ddx * step + dy_t * skip, dstep * slope


@triton.jit
def _retreat_span(
    start, stop, h, g, sums, inputs, strides, outputs, where, a, shift, skip, one, E, N,
    SPAN: constexpr, GATED: constexpr, RESTART: constexpr, CROSSING: constexpr,
    EXACT: constexpr,
):  # fmt: skip
    """The walk back over SPAN positions, of which h is the state before the first."""
    e, _, e_ok, _, L, V, back = where
    BE: constexpr = h.shape[1]
    h, kept = _span_states(
        h, start, stop, inputs, strides, where, a, shift, SPAN, RESTART, CROSSING, EXACT
    )
    dus, ddeltas = (), ()
    for j in tl.static_range(SPAN):
        t, now = start + SPAN - 1 - j, kept[SPAN - 1 - j]
        g, sums, du, ddelta = _retreat(
            t,
            stop,
            g,
            h,
            now,
            sums,
            inputs,
            strides,
            outputs,
            where,
            a,
            skip,
            one,
            E,
            N,
            GATED,
            RESTART,
            CROSSING,
        )
        # Triton has no starred tuples
        h, dus, ddeltas = now[0], (du,) + dus, (ddelta,) + ddeltas  # noqa: RUF005
    live, p = position(start + tl.arange(0, SPAN), stop, L, V, back, RESTART, CROSSING)
    at, ok = (p * E)[None, :] + e[:, None], e_ok[:, None] & live[None, :]
    tl.store(outputs[0] + at, _tile(dus, BE, SPAN).to(outputs[0].dtype.element_ty), mask=ok)
    tl.store(outputs[1] + at, _tile(ddeltas, BE, SPAN).to(outputs[1].dtype.element_ty), mask=ok)
    return g, sums


@triton.jit(do_not_specialize=["first", "sequences", "L", "V", "chunks", "chunk", "spans"])
def gradients(
    u0, u1, delta0, delta1, B0, B1, C0, C1, dy0, dy1, z, A, D, bias, states, passed, dkept,
    du0, du1, ddelta0, ddelta1, dB, dC, dz, dA, dD, dbias, dinitial,
    first, sequences, L, E, N, V, chunks, chunk, spans, u_b, u_l, delta_b, delta_l, B_b, B_l, C_b,
    C_l, dy_b, dy_l, z_b, z_l, one,
    ALIGN: constexpr, NP: constexpr, BE: constexpr, SEGMENT: constexpr,
    SPAN: constexpr,
    CARRIED: constexpr, GATED: constexpr, HELD: constexpr,
    RESTART: constexpr, EXACT: constexpr, LINKED: constexpr, FIRST: constexpr,
):  # fmt: skip
    """All gradients, with g_l = C_l dy_l + exp(step_{l+1} A) g_{l+1}.

    SPAN positions from the last to the first: their states are recomputed from the stored one and
    stay in registers during the walk back. The states are 0 unless HELD. If LINKED, the states
    before segments are results with the gradients `dkept`. FIRST: stores the gradient of the
    initial state or, if RESTART, of those of all segments. `one` is 1: with it the decays are
    computed twice, where the compiler would keep them in registers that it does not have. dB, dC:
    (blocks of channels, rows, L, N), one summand per block; dA, dD, dbias: one summand per row and
    chunk.
    """
    E, u_b, u_l, delta_b, delta_l = multiples((E, u_b, u_l, delta_b, delta_l), ALIGN)
    B_b, B_l, C_b, C_l, dy_b, dy_l, z_b, z_l = multiples(
        (B_b, B_l, C_b, C_l, dy_b, dy_l, z_b, z_l), ALIGN
    )
    block, c, row, direction, b, back = place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n, e_ok, n_ok, tile, tile_ok = tiles(block, E, N, BE, NP)
    a, shift = weights(A, bias, direction, e, e_ok, tile, tile_ok, N, E)
    skip = read(D + direction * E, e, e_ok)
    u, delta = either(u0, u1, direction) + b * u_b, either(delta0, delta1, direction) + b * delta_b
    B, C = either(B0, B1, direction) + b * B_b, either(C0, C1, direction) + b * C_b
    inputs = (u, delta, B, C, either(dy0, dy1, direction) + b * dy_b, z + b * z_b)
    strides, where = (u_l, delta_l, B_l, C_l, dy_l, z_l), (e, n, e_ok, n_ok, L, V, back)
    rows = tl.num_programs(0).to(tl.int64) // tl.cdiv(E, BE) // chunks
    du, ddelta = (
        either(du0, du1, direction) + b * L * E,
        either(ddelta0, ddelta1, direction) + b * L * E,
    )
    at, sums_at = row * chunks + c, (block * rows + row) * L * N
    outputs = (du, ddelta, dB + sums_at, dC + sums_at, dz + b * L * E)
    g = state(passed + at * N * E + tile, tile_ok, CARRIED, NP, BE)
    sums = (
        tl.zeros((NP, BE), tl.float32),
        tl.zeros((BE,), tl.float32),
        tl.zeros((BE,), tl.float32),
    )
    begin, per, length = (
        c * chunk,
        (SEGMENT + SPAN - 1) // SPAN,
        tl.minimum(chunk, V - c * chunk),
    )  # per: spans of a segment
    count = length // SEGMENT * per + tl.cdiv(length % SEGMENT, SPAN)
    for s in range(count):
        span = count - 1 - s
        segment = begin // SEGMENT + span // per
        start, stop = segment * SEGMENT + span % per * SPAN, tl.minimum((segment + 1) * SEGMENT, V)
        h = state(
            states + (row * spans + segment * per + span % per) * N * E + tile,
            tile_ok,
            HELD,
            NP,
            BE,
        )
        g, sums = _retreat_span(
            start, stop, h, g, sums, inputs, strides, outputs, where, a, shift, skip, one, E, N,
            SPAN, GATED, RESTART, SEGMENT % SPAN > 0, EXACT,
        )  # fmt: skip
        if LINKED:  # noqa: SIM102, a constant of the compilation
            if span % per == 0:
                g += tl.load(
                    dkept + (row * tl.cdiv(V, SEGMENT) + segment) * N * E + tile,
                    mask=tile_ok,
                    other=0.0,
                )
        if RESTART:  # noqa: SIM102
            if span % per == 0:
                if FIRST:
                    tl.store(
                        dinitial + (row * (V // SEGMENT) + segment) * N * E + tile, g, mask=tile_ok
                    )
                g = tl.zeros((NP, BE), tl.float32)
    if FIRST and not RESTART:  # noqa: SIM102
        if c == 0:
            tl.store(dinitial + row * N * E + tile, g, mask=tile_ok)
    tl.store(dA + at * N * E + tile, sums[0], mask=tile_ok)
    tl.store(dD + at * E + e, sums[2], mask=e_ok)
    tl.store(dbias + at * E + e, sums[1], mask=e_ok)
