"""The selective scan as Triton programs; `triton_scan` launches them.

One program is one warp. It holds the states of BE channels of one direction of one sequence in registers, as a tile (NP, BE), and walks
over a chunk of time position by position: no shared memory, no barrier, no state but every SPAN-th ever in memory. Channels lie next
to each other in memory, so a row of inputs is one coalesced read; a direction is a sign in the address. When batch, directions and
channels do not fill the card, time is cut into chunks: `chunk_ends` finds what every chunk adds from a zero state, `carry` turns that
into the state in front of each chunk, `outputs` starts there. `gradients` has its own pair, `chunk_starts` and `carry`, for what passes
backwards. No sum depends on the order in which programs run: partial sums over channels go to memory and are added by the caller.

What bounds it, per position and channel of one direction, 16 states, two-byte inputs, on an H200 (4.3 TB/s measured, 132 multiprocessors
at 1.98 GHz with 16 exponentials a cycle each, that is 4.2e12 a second):

    forward    6 bytes (u, delta, y; B and C are shared by all channels)                       1.4 ps
               17 exponentials (a state's decay, and one for the step)                         4.1 ps   <- the limit; 8.1 in chunks
    backward   12 bytes (u, delta, dy, du, ddelta, every 16th state)  + 8 for sums of dB, dC   4.7 ps
               3 to 4 times 17 exponentials, 16 x 2.5 shuffles for the sums                   12 to 16 ps

So exponentials matter and bytes do not; an associative scan over time would not save exponentials and would add twice the
multiplications and its shuffles. Decays are exp2 of steps times A log2(e), which the caller multiplies once. Sizes that change from call
to call (`do_not_specialize`) make no new kernels.
"""

import triton
import triton.language as tl


@triton.jit
def _softplus(x):
    """softplus(x) and exp(-|x|): max(x, 0) + log1p(t), log1p by a polynomial of relative error 2e-7, also where log(1 + t) loses t."""
    t = tl.exp2(-tl.abs(x) * 1.4426950408889634)
    p = 0.005232623778283596
    p = p * t - 0.029504956677556038
    p = p * t + 0.07822549343109131
    p = p * t - 0.1366320699453354
    p = p * t + 0.1910598874092102
    p = p * t - 0.2484297752380371
    p = p * t + 0.3331909477710724
    p = p * t - 0.4999949336051941
    p = p * t + 0.9999999403953552
    return tl.maximum(x, 0.0) + t * p, t


@triton.jit
def _place(channel_blocks, chunks, sequences, first):
    """Of this program: block of channels, chunk, row of the (directions x batch) axis, direction, sequence, 1 if it reads backwards."""
    pid = tl.program_id(0).to(tl.int64)
    block = pid % channel_blocks
    rest = pid // channel_blocks
    row = rest // chunks
    direction = row // sequences
    return block, rest % chunks, row, direction, row % sequences, direction + first


@triton.jit
def _either(a, b, direction):
    """The pointer of a direction."""
    chosen = a
    if direction == 1:
        chosen = b
    return chosen


@triton.jit
def _read(pointer, columns, mask):
    return tl.load(pointer + columns, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["first", "sequences", "L", "chunks", "chunk"])
def chunk_ends(
    u0, u1, delta0, delta1, B0, B1, A, bias, ends, sums,
    first, sequences, L, E, N, chunks, chunk, u_b, u_l, delta_b, delta_l, B_b, B_l,
    NP: tl.constexpr, BE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The state at the end of every chunk from zero at its start, and the sum of its steps."""
    block, c, row, direction, b, back = _place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n = block * BE + tl.arange(0, BE), tl.arange(0, NP)
    e_ok, n_ok = e < E, n < N
    tile, tile_ok = n[:, None] * E + e[None, :], n_ok[:, None] & e_ok[None, :]
    decay = tl.load(A + direction * N * E + tile, mask=tile_ok, other=0.0)
    shift = tl.load(bias + direction * E + e, mask=e_ok, other=0.0)
    u = _either(u0, u1, direction) + b * u_b
    delta = _either(delta0, delta1, direction) + b * delta_b
    B = _either(B0, B1, direction) + b * B_b
    h = tl.zeros((NP, BE), tl.float32)
    total = tl.zeros((BE,), tl.float32)
    begin = c * chunk
    for k in range(0, chunk, UNROLL):
        inputs = ()
        for i in tl.static_range(UNROLL):
            t = begin + k + i
            live, p = t < L, t + back * (L - 1 - 2 * t)
            ok = e_ok & live
            inputs += ((_read(u + p * u_l, e, ok), _read(delta + p * delta_l, e, ok), _read(B + p * B_l, n, n_ok & live)),)
        for i in tl.static_range(UNROLL):
            step, _ = _softplus(inputs[i][1] + shift)
            total += step
            h = tl.exp2(step[None, :] * decay) * h + inputs[i][2][:, None] * (step * inputs[i][0])[None, :]
    at = row * chunks + c
    tl.store(ends + at * N * E + tile, h, mask=tile_ok)
    tl.store(sums + at * E + e, total, mask=e_ok)


@triton.jit(do_not_specialize=["sequences", "chunks", "from_last"])
def carry(
    ends, sums, A, sequences, E, N, chunks, from_last, NP: tl.constexpr, BE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """What enters every chunk, in place of what it adds: s_{c+1} = exp(sum of steps of c times A) s_c + ends_c, from s = 0."""
    block, _, row, direction, _, _ = _place(tl.cdiv(E, BE), 1, sequences, 0)
    e, n = block * BE + tl.arange(0, BE), tl.arange(0, NP)
    e_ok = e < E
    tile, tile_ok = n[:, None] * E + e[None, :], (n < N)[:, None] & e_ok[None, :]
    decay = tl.load(A + direction * N * E + tile, mask=tile_ok, other=0.0)
    s = tl.zeros((NP, BE), tl.float32)
    for k in range(0, chunks, UNROLL):
        inputs = ()
        for i in tl.static_range(UNROLL):
            live, c = k + i < chunks, row * chunks + k + i + from_last * (chunks - 1 - 2 * (k + i))
            inputs += (
                (
                    tl.load(ends + c * N * E + tile, mask=tile_ok & live, other=0.0),
                    tl.load(sums + c * E + e, mask=e_ok & live, other=0.0),
                ),
            )
        for i in tl.static_range(UNROLL):
            live, c = k + i < chunks, row * chunks + k + i + from_last * (chunks - 1 - 2 * (k + i))
            tl.store(ends + c * N * E + tile, s, mask=tile_ok & live)
            s = tl.exp2(inputs[i][1][None, :] * decay) * s + inputs[i][0]


@triton.jit(do_not_specialize=["first", "sequences", "L", "chunks", "chunk", "spans"])
def outputs(
    u0, u1, delta0, delta1, B0, B1, C0, C1, z, A, D, bias, entering, y0, y1, states,
    first, sequences, L, E, N, chunks, chunk, spans, u_b, u_l, delta_b, delta_l, B_b, B_l, C_b, C_l, z_b, z_l,
    NP: tl.constexpr, BE: tl.constexpr, SPAN: tl.constexpr, UNROLL: tl.constexpr,
    CARRIED: tl.constexpr, KEEP: tl.constexpr, WRITE: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """y_l = C_l . h_l + D u_l if WRITE, times silu(z_l) if GATED; the state in front of every SPAN positions if KEEP."""
    block, c, row, direction, b, back = _place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n = block * BE + tl.arange(0, BE), tl.arange(0, NP)
    e_ok, n_ok = e < E, n < N
    tile, tile_ok = n[:, None] * E + e[None, :], n_ok[:, None] & e_ok[None, :]
    decay = tl.load(A + direction * N * E + tile, mask=tile_ok, other=0.0)
    shift = tl.load(bias + direction * E + e, mask=e_ok, other=0.0)
    skip = tl.load(D + direction * E + e, mask=e_ok, other=0.0)
    u = _either(u0, u1, direction) + b * u_b
    delta = _either(delta0, delta1, direction) + b * delta_b
    B = _either(B0, B1, direction) + b * B_b
    C = _either(C0, C1, direction) + b * C_b
    y = _either(y0, y1, direction) + b * L * E
    if CARRIED:
        h = tl.load(entering + (row * chunks + c) * N * E + tile, mask=tile_ok, other=0.0)
    else:
        h = tl.zeros((NP, BE), tl.float32)
    begin = c * chunk
    for k in range(0, tl.minimum(chunk, L - begin), UNROLL):
        if KEEP:  # noqa: SIM102, known when compiled
            if k % SPAN == 0:
                tl.store(states + (row * spans + (begin + k) // SPAN) * N * E + tile, h, mask=tile_ok)
        inputs = ()
        for i in tl.static_range(UNROLL):
            t = begin + k + i
            live, p = t < L, t + back * (L - 1 - 2 * t)
            ok, row_ok = e_ok & live, n_ok & live
            inputs += (
                (
                    _read(u + p * u_l, e, ok),
                    _read(delta + p * delta_l, e, ok),
                    _read(B + p * B_l, n, row_ok),
                    _read(C + p * C_l, n, row_ok & WRITE),
                ),
            )
        for i in tl.static_range(UNROLL):
            t = begin + k + i
            live, p = t < L, t + back * (L - 1 - 2 * t)
            step, _ = _softplus(inputs[i][1] + shift)
            h = tl.exp2(step[None, :] * decay) * h + inputs[i][2][:, None] * (step * inputs[i][0])[None, :]
            if WRITE:
                out = tl.sum(h * inputs[i][3][:, None], axis=0) + skip * inputs[i][0]
                if GATED:
                    gate = _read(z + b * z_b + p * z_l, e, e_ok & live)
                    out *= gate / (1.0 + tl.exp2(-1.4426950408889634 * gate))
                tl.store(y + p * E + e, out.to(y.dtype.element_ty), mask=e_ok & live)


@triton.jit(do_not_specialize=["first", "sequences", "L", "chunks", "chunk"])
def chunk_starts(
    delta0, delta1, C0, C1, dy0, dy1, z, A, bias, starts, sums,
    first, sequences, L, E, N, chunks, chunk, delta_b, delta_l, C_b, C_l, dy_b, dy_l, z_b, z_l,
    NP: tl.constexpr, BE: tl.constexpr, UNROLL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """The gradient of the state in front of every chunk, as far as it comes from the chunk's own outputs, and the sum of its steps."""
    block, c, row, direction, b, back = _place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n = block * BE + tl.arange(0, BE), tl.arange(0, NP)
    e_ok, n_ok = e < E, n < N
    tile, tile_ok = n[:, None] * E + e[None, :], n_ok[:, None] & e_ok[None, :]
    decay = tl.load(A + direction * N * E + tile, mask=tile_ok, other=0.0)
    shift = tl.load(bias + direction * E + e, mask=e_ok, other=0.0)
    delta = _either(delta0, delta1, direction) + b * delta_b
    C = _either(C0, C1, direction) + b * C_b
    dy = _either(dy0, dy1, direction) + b * dy_b
    g = tl.zeros((NP, BE), tl.float32)
    total = tl.zeros((BE,), tl.float32)
    end = c * chunk + chunk - 1
    for k in range(0, chunk, UNROLL):
        inputs = ()
        for i in tl.static_range(UNROLL):
            t = end - k - i
            live, p = t < L, t + back * (L - 1 - 2 * t)
            ok = e_ok & live
            dout = _read(dy + p * dy_l, e, ok)
            if GATED:
                gate = _read(z + b * z_b + p * z_l, e, ok)
                dout *= gate / (1.0 + tl.exp2(-1.4426950408889634 * gate))
            inputs += ((_read(delta + p * delta_l, e, ok), _read(C + p * C_l, n, n_ok & live), dout),)
        for i in tl.static_range(UNROLL):
            step, _ = _softplus(inputs[i][0] + shift)
            total += step
            g = tl.exp2(step[None, :] * decay) * (g + inputs[i][1][:, None] * inputs[i][2][None, :])
    at = row * chunks + c
    tl.store(starts + at * N * E + tile, g, mask=tile_ok)
    tl.store(sums + at * E + e, total, mask=e_ok)


@triton.jit(do_not_specialize=["first", "sequences", "L", "chunks", "chunk", "spans"])
def gradients(
    u0, u1, delta0, delta1, B0, B1, C0, C1, dy0, dy1, z, A, D, bias, states, passed,
    du0, du1, ddelta0, ddelta1, dB, dC, dz, dA, dD, dbias,
    first, sequences, L, E, N, chunks, chunk, spans, u_b, u_l, delta_b, delta_l, B_b, B_l, C_b, C_l, dy_b, dy_l, z_b, z_l, one,
    NP: tl.constexpr, BE: tl.constexpr, SPAN: tl.constexpr, PART: tl.constexpr, CARRIED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """All gradients, with g_l = C_l dy_l + exp(step_{l+1} A) g_{l+1}.

    SPAN positions from the last to the first: their states are computed again from the stored one, first those in front of every PART
    positions, then those inside a part, which stay in registers while the part is walked back.
    `one` is 1: with it the decays are computed twice, where the compiler would keep them in registers that it does not have.
    dB, dC: (blocks of channels, rows, L, N), one summand for each block; dA, dD, dbias: one summand for each row and chunk.
    """
    block, c, row, direction, b, back = _place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n = block * BE + tl.arange(0, BE), tl.arange(0, NP)
    e_ok, n_ok = e < E, n < N
    tile, tile_ok = n[:, None] * E + e[None, :], n_ok[:, None] & e_ok[None, :]
    a = tl.load(A + direction * N * E + tile, mask=tile_ok, other=0.0)
    shift = tl.load(bias + direction * E + e, mask=e_ok, other=0.0)
    skip = tl.load(D + direction * E + e, mask=e_ok, other=0.0)
    u = _either(u0, u1, direction) + b * u_b
    delta = _either(delta0, delta1, direction) + b * delta_b
    B = _either(B0, B1, direction) + b * B_b
    C = _either(C0, C1, direction) + b * C_b
    rows = tl.num_programs(0).to(tl.int64) // (tl.cdiv(E, BE) * chunks)
    dy = _either(dy0, dy1, direction) + b * dy_b
    du, ddelta = _either(du0, du1, direction) + b * L * E, _either(ddelta0, ddelta1, direction) + b * L * E
    dB, dC = dB + (block * rows + row) * L * N, dC + (block * rows + row) * L * N
    at = row * chunks + c
    if CARRIED:
        g = tl.load(passed + at * N * E + tile, mask=tile_ok, other=0.0)
    else:
        g = tl.zeros((NP, BE), tl.float32)
    da = tl.zeros((NP, BE), tl.float32)
    dskip, dshift = tl.zeros((BE,), tl.float32), tl.zeros((BE,), tl.float32)
    begin = c * chunk
    count = tl.cdiv(tl.minimum(chunk, L - begin), SPAN)
    for s in range(count):
        start = begin + (count - 1 - s) * SPAN
        h = tl.load(states + (row * spans + start // SPAN) * N * E + tile, mask=tile_ok, other=0.0)
        fronts = (h,)
        for k in tl.static_range(SPAN // PART - 1):
            for m in range(PART):
                t = start + k * PART + m
                live, p = t < L, t + back * (L - 1 - 2 * t)
                ok = e_ok & live
                step, _ = _softplus(_read(delta + p * delta_l, e, ok) + shift)
                dx = step * _read(u + p * u_l, e, ok)
                h = tl.exp2(step[None, :] * a) * h + _read(B + p * B_l, n, n_ok & live)[:, None] * dx[None, :]
            fronts += (h,)
        for r in range(SPAN // PART):
            part = SPAN // PART - 1 - r
            h = fronts[0]
            for k in tl.static_range(SPAN // PART - 1):
                h = tl.where(part == k + 1, fronts[k + 1], h)
            first_t = start + part * PART
            kept = ()
            for i in tl.static_range(PART):
                t = first_t + i
                live, p = t < L, t + back * (L - 1 - 2 * t)
                ok = e_ok & live
                x = _read(delta + p * delta_l, e, ok) + shift
                step, small = _softplus(x)
                slope = tl.where(x >= 0, 1.0, small) / (1.0 + small)
                u_t, B_t = _read(u + p * u_l, e, ok), _read(B + p * B_l, n, n_ok & live)
                kept += ((h, step, slope, u_t),)
                h = tl.exp2(step[None, :] * a) * h + B_t[:, None] * (step * u_t)[None, :]
            for j in tl.static_range(PART):
                t = first_t + PART - 1 - j
                live, p = t < L, t + back * (L - 1 - 2 * t)
                ok, row_ok = e_ok & live, n_ok & live
                before, step, slope, u_t = kept[PART - 1 - j]
                B_t, C_t = _read(B + p * B_l, n, row_ok), _read(C + p * C_l, n, row_ok)
                dy_t = _read(dy + p * dy_l, e, ok)
                if GATED:
                    gate = _read(z + b * z_b + p * z_l, e, ok)
                    chance = 1.0 / (1.0 + tl.exp2(-1.4426950408889634 * gate))
                    y_t = tl.sum(h * C_t[:, None], axis=0) + skip * u_t
                    dgate = dy_t * y_t * chance * (1.0 + gate * (1.0 - chance))
                    tl.store(dz + (b * L + p) * E + e, dgate.to(dz.dtype.element_ty), mask=ok)
                    dy_t *= gate * chance
                tl.store(dC + p * N + n, tl.sum(h * dy_t[None, :], axis=1), mask=row_ok)
                g += C_t[:, None] * dy_t[None, :]
                tl.store(dB + p * N + n, tl.sum(g * (step * u_t)[None, :], axis=1), mask=row_ok)
                ddx = tl.sum(g * B_t[:, None], axis=0)
                g *= tl.exp2((step * one)[None, :] * a)
                q = g * before  # the gradient of the exponent step A
                dstep = tl.sum(q * a, axis=0) * 0.6931471805599453 + ddx * u_t
                da += q * step[None, :]
                dshift += dstep * slope
                dskip += dy_t * u_t
                tl.store(du + p * E + e, (ddx * step + dy_t * skip).to(du.dtype.element_ty), mask=ok)
                tl.store(ddelta + p * E + e, (dstep * slope).to(ddelta.dtype.element_ty), mask=ok)
                h = before
    tl.store(dA + at * N * E + tile, da, mask=tile_ok)
    tl.store(dD + at * E + e, dskip, mask=e_ok)
    tl.store(dbias + at * E + e, dshift, mask=e_ok)
