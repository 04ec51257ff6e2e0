"""Scans and convolutions of a sequence in blocks, for block diffusion with a carried state (BD3-LM,
arXiv 2503.09573v3, on a state space model).

A clean and a noised version of a sequence go through a layer together. In the forward direction
block i of the noised version continues the clean version's blocks 0..i-1: its scan starts from
their state and its convolution from their last inputs. In reverse both versions are confined to a
block.

    clean    y, starts, _ = scan_with_states(clean, b)      short_conv(x0, weight, bias)
    noised   scan_blocks(noised, b, starts)                 conv_blocks(xt, weight, bias, b,
    inputs_before_blocks(x0, K, b)) reverse  scan_blocks(inputs, b, reverse=True)
    conv_blocks(x, weight, bias, b, reverse=True), for both versions

This equals computing every block separately after its clean prefix, with one scan of each version.
Gradients flow through `starts` into the clean version. Blocks have b positions; the last one may
have fewer.

Memory: the states before blocks are N / b numbers per position and channel, where u, delta and y
    are one each. With N = 16 they are as large as u at b = 16, four times as large at b = 4, and at
    b = 1 they are all states of all positions: scans of very short blocks are
limited by the bandwidth of memory, and no kernel can avoid it while the states are an argument.
Nothing else of that size is allocated, except by the portable scan, which also holds one state per
block where blocks start from zero. `two_stream_mixer` computes the whole layer, and in C++ its time
and memory hardly depend on b.

`scan` and the errors are as in `facade`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dnadiff.kernels.arguments import (
    check_block_size,
    check_filter,
    check_inputs_before,
    check_mixer,
    check_rows,
    check_scan_inputs,
    check_state,
)
from dnadiff.kernels.backend import Backend, MixerWay, ScanInputs, ScanStates, taps_before_blocks
from dnadiff.kernels.facade import fuses_mixer
from dnadiff.kernels.select import SCANS, cast_inputs, choose, choose_for, compute_dtype


def scan_with_states(
    inputs: ScanInputs, block_size: int, initial_state: Tensor | None = None, *, scan: str = "auto"
) -> ScanStates:
    """`selective_scan`, and the states that enter the blocks.

    Args:
        inputs: of `selective_scan`, L positions.
        block_size: b, 1 to L positions.
        initial_state: (Bt, E, N) state before the first position, zero if None.

    Returns:
        y (Bt, L, E) in u's dtype; starts (Bt, blocks, E, N), of which the first is the initial
        state, and last (Bt, E, N), in float64 if u is float64 and in float32 otherwise.
    """
    u, backend = _checked(inputs, block_size, scan)
    check_state(
        "initial_state", initial_state, (u.shape[0], *inputs.A.shape), compute_dtype(u.dtype)
    )
    if u.numel() == 0:
        last = (
            u.new_zeros(u.shape[0], *inputs.A.shape, dtype=compute_dtype(u.dtype))
            if initial_state is None
            else initial_state
        )
        return ScanStates(
            u * inputs.D.to(u.dtype),
            last[:, None].expand(-1, -(-u.shape[1] // block_size), -1, -1),
            last,
        )
    y, starts, last = backend.carried_scan(
        cast_inputs(backend, inputs), False, initial_state, block_size
    )
    return ScanStates(y.to(u.dtype), starts, last)


def scan_blocks(
    inputs: ScanInputs,
    block_size: int,
    initial_states: Tensor | None = None,
    *,
    reverse: bool = False,
    scan: str = "auto",
) -> Tensor:
    """`selective_scan` of every block as a sequence of its own.

    Args:
        inputs: of `selective_scan`, L positions.
        block_size: b, 1 to L positions.
        initial_states: (Bt, blocks, E, N) state before each block (in reverse: after it), zero if
            None.
        reverse: run from the last position of each block to its first.

    Returns:
        (Bt, L, E) in u's dtype.
    """
    u, backend = _checked(inputs, block_size, scan)
    blocks = -(-u.shape[1] // block_size)
    check_state(
        "initial_states",
        initial_states,
        (u.shape[0], blocks, *inputs.A.shape),
        compute_dtype(u.dtype),
    )
    if u.numel() == 0:
        return u * inputs.D.to(u.dtype)
    return backend.restarted_scan(
        cast_inputs(backend, inputs), reverse, initial_states, block_size
    ).to(u.dtype)


def conv_blocks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    block_size: int,
    initial: Tensor | None = None,
    *,
    reverse: bool = False,
    scan: str = "auto",
) -> Tensor:
    """`short_conv` of every block as a sequence of its own.

    Args:
        x: (Bt, L, E).
        weight: (E, K).
        bias: (E,).
        block_size: b, 1 to L positions.
        initial: (Bt, blocks, K - 1, E) inputs before each block (in reverse: after it), zero if
            None.
        reverse: as in `short_conv`.

    Returns:
        (Bt, L, E) in x's dtype.
    """
    check_filter(x, weight, bias)
    blocks, dtype = check_block_size(block_size, x.shape[1]), compute_dtype(x.dtype)
    if initial is not None:
        check_inputs_before(initial, x, (x.shape[0], blocks, weight.shape[1] - 1, x.shape[2]))
    backend = SCANS[choose(scan, x.device.type, dtype)]
    if x.numel() == 0:
        return x * bias.to(x.dtype)
    wide, taps, shift = (backend.cast(tensor, dtype) for tensor in (x, weight, bias))
    near = None if initial is None else backend.cast(initial, dtype)
    return backend.block_conv(wide, taps, shift, reverse, near, block_size).to(x.dtype)


def last_inputs(x: Tensor, num_taps: int, initial: Tensor | None = None) -> Tensor:
    """The inputs (Bt, K - 1, E) that a convolution of K taps needs before the piece that follows x
    (Bt, L, E).

    `initial` (Bt, K - 1, E) are those before x, zero if None: they count if x has fewer than K - 1
    positions.
    """
    L, missing = check_rows("x", x)[1], num_taps - 1 - x.shape[1]
    if missing <= 0:
        return x[:, L - num_taps + 1 :]
    return (
        F.pad(x, (0, 0, missing, 0))
        if initial is None
        else torch.cat([initial[:, num_taps - 1 - missing :], x], dim=1)
    )


def inputs_before_blocks(x: Tensor, num_taps: int, block_size: int) -> Tensor:
    """The K - 1 inputs before each block of x (Bt, L, E), (Bt, blocks, K - 1, E); zero before the
    first position."""
    check_block_size(block_size, check_rows("x", x)[1])
    return taps_before_blocks(x, num_taps, block_size)


def fuses_two_streams(
    noised: Tensor,
    clean: Tensor,
    in_proj: Tensor,
    ways: Sequence[MixerWay],
    valid: Tensor | None = None,
    *,
    scan: str = "auto",
) -> bool:
    """Whether `two_stream_mixer` should compute this; otherwise the caller combines the operations
    above."""
    if (
        clean.dtype != noised.dtype
        or clean.device != noised.device
        or not fuses_mixer(noised, in_proj, ways, valid, scan=scan)
    ):
        return False
    return SCANS[choose(scan, noised.device.type, compute_dtype(noised.dtype))].fused_two_streams


def continued_mixer(
    hidden: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay], past: Tensor | None = None, state: Tensor | None = None,
    *, scan: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A whole mixer of one piece of a sequence after others, in one call: for sampling, where
    pieces are short and calls many.

    The forward direction continues the pieces before; the reverse one, if there is one, is confined
    to the piece. Where gradients are off and `fuses_mixer` is true it is one kernel; otherwise the
    caller combines the operations of this module.

    Args:
        hidden: (Bt, n, D).
        in_proj, out_proj, ways: as in `mixer`.
        past: (Bt, K - 1, E) inputs of the convolution before the piece, and
        state: (Bt, E, N) of the scan before it, both zero if None.

    Returns:
        (Bt, n, D), and `past` and `state` for the next piece.
    """
    check_mixer(hidden, in_proj, out_proj, ways, None)
    (Bt, _, _), (E, K), N = hidden.shape, ways[0].conv_weight.shape, ways[0].A_log.shape[1]
    dtype = compute_dtype(hidden.dtype)
    check_state("state", state, (Bt, E, N), dtype)
    if past is not None and past.shape != (Bt, K - 1, E):
        raise ValueError(f"past has shape {tuple(past.shape)}, expected {(Bt, K - 1, E)}")
    backend = SCANS[choose_for(scan, hidden.device.type, dtype, N, states=True)]
    out, x, state = backend.continued_mixer(hidden, in_proj, out_proj, ways, past, state)
    return out, last_inputs(x, K), state


def two_stream_mixer(
    noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay], block_size: int, valid: Tensor | None = None,
    *, clean_output: bool = True, scan: str = "auto",
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """A whole mixer of both streams in one call: projections, convolutions, scans and gate, in both
    directions for the noised stream.

    Where `fuses_two_streams` is true, one kernel scans both streams, and the states before blocks
    are never in memory.

    Args:
        noised, clean: (Bt, L, D).
        in_proj, out_proj, valid: as in `mixer`.
        ways: both directions; the second one is that of the noised stream in reverse.
        block_size: b, 1 to L positions.
        clean_output: whether the output of the clean stream is needed.

    Returns:
        (Bt, L, D) of the noised stream and, if it is needed, of the clean one.
    """
    check_mixer(noised, in_proj, out_proj, ways, valid)
    check_block_size(block_size, noised.shape[1])
    if clean.shape != noised.shape or clean.dtype != noised.dtype:
        raise ValueError(
            f"clean has shape {tuple(clean.shape)} and type {clean.dtype}, expected "
            f"{tuple(noised.shape)} and {noised.dtype} as noised"
        )
    if len(ways) != 2:
        raise ValueError(f"a mixer of two streams has two directions, got {len(ways)}")
    backend = SCANS[
        choose_for(
            scan,
            noised.device.type,
            compute_dtype(noised.dtype),
            ways[0].A_log.shape[1],
            states=True,
        )
    ]
    return backend.two_stream_mixer(
        noised, clean, in_proj, out_proj, ways, block_size, valid, clean_output
    )


def _checked(inputs: ScanInputs, block_size: int, scan: str) -> tuple[Tensor, Backend]:
    u = inputs.u
    check_scan_inputs(inputs)
    check_block_size(block_size, u.shape[1])
    return u, SCANS[
        choose_for(scan, u.device.type, compute_dtype(u.dtype), inputs.A.shape[-1], states=True)
    ]
