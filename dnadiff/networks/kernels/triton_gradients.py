"""The backward pass of the selective scan as Triton programs; `triton_kernels` describes the layout
and the limits."""

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
    write,
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
                    g += read(dkept + (row * spans + t // SEGMENT) * N * E, tile, tile_ok)
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
    dy = either(dy0, dy1, direction) + b * dy_b
    rows = tl.num_programs(0).to(tl.int64) // tl.cdiv(E, BE) // chunks
    at, sums_at = row * chunks + c, (block * rows + row) * L * N
    du = either(du0, du1, direction) + b * L * E
    ddelta = either(ddelta0, ddelta1, direction) + b * L * E
    dB, dC, z, dz = dB + sums_at, dC + sums_at, z + b * z_b, dz + b * L * E
    g, da = (
        state(passed + at * N * E + tile, tile_ok, CARRIED, NP, BE),
        tl.zeros((NP, BE), tl.float32),
    )
    dshift, dskip = tl.zeros((BE,), tl.float32), tl.zeros((BE,), tl.float32)
    begin, length = c * chunk, tl.minimum(chunk, V - c * chunk)
    per = (SEGMENT + SPAN - 1) // SPAN  # spans of a segment
    CROSSING: constexpr = SEGMENT % SPAN > 0
    count = length // SEGMENT * per + tl.cdiv(length % SEGMENT, SPAN)
    for s in range(count):
        span = count - 1 - s
        segment = begin // SEGMENT + span // per
        start, stop = segment * SEGMENT + span % per * SPAN, tl.minimum((segment + 1) * SEGMENT, V)
        kept_at = states + (row * spans + segment * per + span % per) * N * E + tile
        h = state(kept_at, tile_ok, HELD, NP, BE)
        # Channels are read for all positions at once, as one tile: a vector of 32 channels has one
        # element per thread, and each would have to be moved through shared memory on its own to
        # where the states of its channel are.
        live, p = position(start + tl.arange(0, SPAN), stop, L, V, back, RESTART, CROSSING)
        every, ok = (p * E)[None, :] + e[:, None], e_ok[:, None] & live[None, :]
        x = read(delta + (p * delta_l)[None, :], e[:, None], ok) + shift[:, None]
        step, small = softplus(x)
        slope = tl.where(x >= 0, 1.0, small) / (1.0 + small)
        if EXACT:
            step, slope = tl.where(live[None, :], step, 0.0), tl.where(live[None, :], slope, 0.0)
        steps, slopes = _columns(step, BE, SPAN), _columns(slope, BE, SPAN)
        us = _columns(read(u + (p * u_l)[None, :], e[:, None], ok), BE, SPAN)
        dys = _columns(read(dy + (p * dy_l)[None, :], e[:, None], ok), BE, SPAN)
        before = ()
        for i in tl.static_range(SPAN):
            now, q = position(start + i, stop, L, V, back, RESTART, CROSSING)
            B_t = read(B + q * B_l, n, n_ok & now)
            before += (h,)
            h = tl.exp2(steps[i][None, :] * a) * h + B_t[:, None] * (steps[i] * us[i])[None, :]
        dus, ddeltas = (), ()
        for i in tl.static_range(SPAN - 1, -1, -1):
            now, q = position(start + i, stop, L, V, back, RESTART, CROSSING)
            B_t, C_t = read(B + q * B_l, n, n_ok & now), read(C + q * C_l, n, n_ok & now)
            u_t, dy_t = us[i], dys[i]
            if GATED:
                gate = read(z + q * z_l, e, e_ok & now)
                sigmoid = 1.0 / (1.0 + tl.exp2(-1.4426950408889634 * gate))
                y_t = tl.sum(h * C_t[:, None], axis=0) + skip * u_t
                dgate = dy_t * y_t * sigmoid * (1.0 + gate * (1.0 - sigmoid))
                write(dz + q * E, e, dgate, e_ok & now)
                dy_t = dy_t * (gate * sigmoid)
            tl.store(dC + q * N + n, tl.sum(h * dy_t[None, :], axis=1), mask=n_ok & now)
            g += C_t[:, None] * dy_t[None, :]
            tl.store(dB + q * N + n, tl.sum(g * (steps[i] * u_t)[None, :], axis=1), mask=n_ok & now)
            ddx = tl.sum(g * B_t[:, None], axis=0)
            g *= tl.exp2((steps[i] * one)[None, :] * a)
            dexponent = g * before[i]  # the gradient of step A
            dstep = tl.sum(dexponent * a, axis=0) * 0.6931471805599453 + ddx * u_t
            da += dexponent * steps[i][None, :]
            dshift += dstep * slopes[i]
            dskip += dy_t * u_t
            # Triton has no starred tuples
            dus = (ddx * steps[i] + dy_t * skip,) + dus  # noqa: RUF005
            ddeltas = (dstep * slopes[i],) + ddeltas  # noqa: RUF005
            h = before[i]
        write(du, every, _tile(dus, BE, SPAN), ok)
        write(ddelta, every, _tile(ddeltas, BE, SPAN), ok)
        if LINKED:  # noqa: SIM102, a constant of the compilation
            if span % per == 0:
                g += read(dkept + (row * tl.cdiv(V, SEGMENT) + segment) * N * E, tile, tile_ok)
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
    tl.store(dA + at * N * E + tile, da, mask=tile_ok)
    tl.store(dD + at * E + e, dskip, mask=e_ok)
    tl.store(dbias + at * E + e, dshift, mask=e_ok)
