"""The forward pass of the selective scan as Triton programs, and the functions that it shares with
`triton_gradients`.

One program is one warp. It holds the states of BE channels of one direction of one sequence in
registers, as a tile (NP, BE), and loops over a chunk of time: no shared memory, no barrier, and
only every SPAN-th state in memory. If batch, directions and channels do not fill the GPU, time is
cut into chunks: `chunk_ends` computes the state at the end of every chunk from a zero state,
`carry` turns these into the state before each chunk, and `outputs` starts there. Partial sums over
channels go to memory and the caller adds them in a fixed order.
"""

# The limit on an H200 is latency, neither exponentials nor bytes: a warp with 255 registers waits
# most of the time for its own results, and only two of them fit a scheduler (measured:
# docs/results/performance.md). Inputs are therefore read one iteration before they are used. Decays
# are exp2 of steps times A log2(e), which the caller multiplies once. Sizes that change from call
# to call (`do_not_specialize`) do not cause a new compilation.

# mypy: ignore-errors
# Triton compiles these functions: tuples grow in loops, which Python's type rules do not allow.

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def softplus(x):
    """softplus(x) and exp(-|x|): max(x, 0) + log1p(t), log1p by a polynomial of relative error
    2e-7, also where log(1 + t) loses t."""
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
def place(channel_blocks, chunks, sequences, first):
    """Of this program: block of channels, chunk, row of the (directions x batch) axis, direction,
    sequence, and 1 if it runs in reverse."""
    pid = tl.program_id(0).to(tl.int64)
    block = pid % channel_blocks
    rest = pid // channel_blocks
    row = rest // chunks
    direction = row // sequences
    return block, rest % chunks, row, direction, row % sequences, direction + first


@triton.jit
def either(a, b, direction):
    """The pointer of a direction."""
    chosen = a
    if direction == 1:
        chosen = b
    return chosen


@triton.jit
def position(t, stop, L, V, back, RESTART: constexpr, CROSSING: constexpr):
    """Whether step t of a walk over V positions exists, and its position in memory.

    V is L unless RESTART, when it is a multiple of the length of blocks, and positions from L on do
    not exist. If CROSSING, none does that is not before `stop`.
    """
    p = t + back * (V - 1 - 2 * t)
    live = t < V
    if RESTART:
        live = live & (p < L)
    if CROSSING:
        live = live & (t < stop)
    return live, p


@triton.jit
def multiples(sizes, ALIGN: constexpr):
    """The sizes, which the compiler then knows as multiples of ALIGN: it reads rows in vectors only
    if the distance between them is one."""
    found = sizes
    if ALIGN > 1:
        found = ()
        for i in tl.static_range(len(sizes)):
            found += (sizes[i] // ALIGN * ALIGN,)
    return found


@triton.jit
def read(pointer, columns, mask):
    """Elements in float32; zero where masked."""
    return tl.load(pointer + columns, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def write(pointer, columns, values, mask):
    """Store values in the type of the memory."""
    tl.store(pointer + columns, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def silu(x):
    """x sigmoid(x)."""
    return x / (1.0 + tl.exp2(-1.4426950408889634 * x))


@triton.jit
def tiles(block, E, N, BE: constexpr, NP: constexpr):
    """Channels and states of a block, whether they exist, and the same for tiles of both."""
    e, n = block * BE + tl.arange(0, BE), tl.arange(0, NP)
    e_ok, n_ok = e < E, n < N
    return e, n, e_ok, n_ok, n[:, None] * E + e[None, :], n_ok[:, None] & e_ok[None, :]


@triton.jit
def weights(A, bias, direction, e, e_ok, tile, tile_ok, N, E):
    """The decay rates and the bias of a direction."""
    decay = read(A + direction * N * E, tile, tile_ok)
    return decay, read(bias + direction * E, e, e_ok)


@triton.jit
def state(pointers, mask, GIVEN: constexpr, NP: constexpr, BE: constexpr):
    """A tile of states; zero unless GIVEN."""
    h = tl.zeros((NP, BE), tl.float32)
    if GIVEN:
        h = tl.load(pointers, mask=mask, other=0.0)
    return h


@triton.jit(do_not_specialize=["first", "sequences", "L", "chunks", "chunk"])
def chunk_ends(
    u0, u1, delta0, delta1, B0, B1, A, bias, ends, sums,
    first, sequences, L, E, N, chunks, chunk, u_b, u_l, delta_b, delta_l, B_b, B_l,
    ALIGN: constexpr, NP: constexpr, BE: constexpr, UNROLL: constexpr,
):  # fmt: skip
    """The state at the end of every chunk from zero at its start, and the sum of its steps."""
    E, u_b, u_l, delta_b, delta_l, B_b, B_l = multiples(
        (E, u_b, u_l, delta_b, delta_l, B_b, B_l), ALIGN
    )
    block, c, row, direction, b, back = place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n, e_ok, n_ok, tile, tile_ok = tiles(block, E, N, BE, NP)
    decay, shift = weights(A, bias, direction, e, e_ok, tile, tile_ok, N, E)
    u = either(u0, u1, direction) + b * u_b
    delta = either(delta0, delta1, direction) + b * delta_b
    B = either(B0, B1, direction) + b * B_b
    h = tl.zeros((NP, BE), tl.float32)
    total = tl.zeros((BE,), tl.float32)
    begin = c * chunk
    for k in range(0, chunk, UNROLL):
        inputs = ()
        for i in tl.static_range(UNROLL):
            t = begin + k + i
            live, p = position(t, L, L, L, back, False, False)
            ok = e_ok & live
            inputs += (
                (
                    read(u + p * u_l, e, ok),
                    read(delta + p * delta_l, e, ok),
                    read(B + p * B_l, n, n_ok & live),
                ),
            )
        for i in tl.static_range(UNROLL):
            step, _ = softplus(inputs[i][1] + shift)
            total += step
            h = (
                tl.exp2(step[None, :] * decay) * h
                + inputs[i][2][:, None] * (step * inputs[i][0])[None, :]
            )
    at = row * chunks + c
    tl.store(ends + at * N * E + tile, h, mask=tile_ok)
    tl.store(sums + at * E + e, total, mask=e_ok)


@triton.jit(do_not_specialize=["sequences", "chunks", "from_last"])
def carry(
    ends, sums, A, initial, sequences, E, N, chunks, from_last,
    ALIGN: constexpr, NP: constexpr, BE: constexpr, UNROLL: constexpr,
    CARRIED: constexpr,
):  # fmt: skip
    """Replaces what each chunk adds by what enters it: s_{c+1} = exp(sum of steps of c times A) s_c
    + ends_c, from `initial` if CARRIED, or 0."""
    E = E // ALIGN * ALIGN
    block, _, row, direction, _, _ = place(tl.cdiv(E, BE), 1, sequences, 0)
    e, _, e_ok, _, tile, tile_ok = tiles(block, E, N, BE, NP)
    decay = read(A + direction * N * E, tile, tile_ok)
    s = state(initial + row * N * E + tile, tile_ok, CARRIED, NP, BE)
    for k in range(0, chunks, UNROLL):
        inputs = ()
        for i in tl.static_range(UNROLL):
            live, c = k + i < chunks, row * chunks + k + i + from_last * (chunks - 1 - 2 * (k + i))
            inputs += (
                (read(ends + c * N * E, tile, tile_ok & live), read(sums + c * E, e, e_ok & live)),
            )
        for i in tl.static_range(UNROLL):
            live, c = k + i < chunks, row * chunks + k + i + from_last * (chunks - 1 - 2 * (k + i))
            tl.store(ends + c * N * E + tile, s, mask=tile_ok & live)
            s = tl.exp2(inputs[i][1][None, :] * decay) * s + inputs[i][0]


@triton.jit
def _rows(
    u, delta, B, C, begin, strides, where,
    UNROLL: constexpr, RESTART: constexpr, WRITE: constexpr,
):  # fmt: skip
    """The inputs of UNROLL positions as they are in memory."""
    e, n, e_ok, n_ok, L, V, back = where
    inputs = ()
    for i in tl.static_range(UNROLL):
        live, p = position(begin + i, V, L, V, back, RESTART, False)
        ok, row_ok = e_ok & live, n_ok & live
        inputs += (
            (
                tl.load(u + p * strides[0] + e, mask=ok, other=0.0),
                tl.load(delta + p * strides[1] + e, mask=ok, other=0.0),
                tl.load(B + p * strides[2] + n, mask=row_ok, other=0.0),
                tl.load(C + p * strides[3] + n, mask=row_ok & WRITE, other=0.0),
            ),
        )
    return inputs


@triton.jit(do_not_specialize=["first", "sequences", "L", "V", "chunks", "chunk", "spans"])
def outputs(
    u0, u1, delta0, delta1, B0, B1, C0, C1, z, A, D, bias, entering, y0, y1, states, last,
    first, sequences, L, E, N, V, chunks, chunk, spans, u_b, u_l, delta_b, delta_l, B_b, B_l, C_b,
    C_l, z_b, z_l,
    ALIGN: constexpr, NP: constexpr, BE: constexpr, SEGMENT: constexpr,
    SPAN: constexpr, UNROLL: constexpr,
    CARRIED: constexpr, KEEP: constexpr, WRITE: constexpr, GATED: constexpr,
    RESTART: constexpr, EXACT: constexpr, LAST: constexpr,
):  # fmt: skip
    """y_l = C_l . h_l + D u_l if WRITE, times silu(z_l) if GATED; the state before every SPAN
    positions of a segment if KEEP, and the LAST.

    Each chunk starts from its state in `entering` if CARRIED, from 0 otherwise; if RESTART, each
    segment does. EXACT: a step that does not exist is zero, because a state after it is read.
    """
    E, u_b, u_l, delta_b, delta_l, B_b, B_l, C_b, C_l, z_b, z_l = multiples(
        (E, u_b, u_l, delta_b, delta_l, B_b, B_l, C_b, C_l, z_b, z_l), ALIGN
    )
    block, c, row, direction, b, back = place(tl.cdiv(E, BE), chunks, sequences, first)
    e, n, e_ok, n_ok, tile, tile_ok = tiles(block, E, N, BE, NP)
    decay, shift = weights(A, bias, direction, e, e_ok, tile, tile_ok, N, E)
    skip = read(D + direction * E, e, e_ok)
    u, delta = either(u0, u1, direction) + b * u_b, either(delta0, delta1, direction) + b * delta_b
    B, C = either(B0, B1, direction) + b * B_b, either(C0, C1, direction) + b * C_b
    y = either(y0, y1, direction) + b * L * E
    h = state(
        entering + (row * chunks + c) * N * E + tile, tile_ok, CARRIED and not RESTART, NP, BE
    )
    begin, strides, where = c * chunk, (u_l, delta_l, B_l, C_l), (e, n, e_ok, n_ok, L, V, back)
    following = _rows(
        u, delta, B, C, begin, strides, where, UNROLL, RESTART, WRITE
    )  # read one iteration before they are used
    for k in range(0, tl.minimum(chunk, V - begin), UNROLL):
        if RESTART:  # noqa: SIM102, a constant of the compilation
            if k % SEGMENT == 0:
                h = state(
                    entering + (row * (V // SEGMENT) + (begin + k) // SEGMENT) * N * E + tile,
                    tile_ok,
                    CARRIED,
                    NP,
                    BE,
                )
        if KEEP:  # noqa: SIM102
            if k % SEGMENT % SPAN == 0:
                at = (begin + k) // SEGMENT * ((SEGMENT + SPAN - 1) // SPAN) + k % SEGMENT // SPAN
                tl.store(states + (row * spans + at) * N * E + tile, h, mask=tile_ok)
        inputs, following = (
            following,
            _rows(u, delta, B, C, begin + k + UNROLL, strides, where, UNROLL, RESTART, WRITE),
        )
        for i in tl.static_range(UNROLL):
            t = begin + k + i
            live, p = position(t, V, L, V, back, RESTART, False)
            u_t, B_t = inputs[i][0].to(tl.float32), inputs[i][2].to(tl.float32)
            step, _ = softplus(inputs[i][1].to(tl.float32) + shift)
            if EXACT:
                step = tl.where(live, step, 0.0)
            h = tl.exp2(step[None, :] * decay) * h + B_t[:, None] * (step * u_t)[None, :]
            if WRITE:
                out = tl.sum(h * inputs[i][3].to(tl.float32)[:, None], axis=0) + skip * u_t
                if GATED:
                    out *= silu(read(z + b * z_b + p * z_l, e, e_ok & live))
                write(y + p * E, e, out, e_ok & live)
    if LAST:
        tl.store(last + row * N * E + tile, h, mask=tile_ok & (c == chunks - 1))
