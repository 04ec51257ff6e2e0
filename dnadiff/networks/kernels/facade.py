"""The facade: checks shapes and types, then calls the back end that `select` chooses.

Every function takes `scan`, a key of `dnadiff.networks.kernels.SCANS` or "auto": the environment
variable DNADIFF_SCAN, else the fastest back end that works. Every function raises ValueError if
shapes or types do not fit or `scan` is unknown, and RuntimeError if the requested `scan` cannot run
on this machine.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from dnadiff.networks.kernels.backend import (
    Backend,
    MixerWay,
    ScanInputs,
    ScanStates,
    check_block_size,
    check_filter,
    check_inputs_before,
    check_mixer,
    check_norm,
    check_product,
    check_rows,
    check_scan_inputs,
    check_state,
    taps_before_blocks,
)
from dnadiff.networks.kernels.build import cache_folder
from dnadiff.networks.kernels.select import SCANS, cast_inputs, choose, choose_for, compute_dtype


@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor,
    delta_bias: Tensor | None = None,
    *, reverse: bool = False, initial_state: Tensor | None = None,
    return_last_state: Literal[False] = False, scan: str = "auto",
) -> Tensor: ...  # fmt: skip
@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor,
    delta_bias: Tensor | None = None,
    *, reverse: bool = False, initial_state: Tensor | None = None, return_last_state: Literal[True],
    scan: str = "auto",
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor,
    delta_bias: Tensor | None = None,
    *, reverse: bool = False, initial_state: Tensor | None = None, return_last_state: bool = False,
    scan: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The output of a selective state space model: Mamba, arXiv 2312.00752v2, section 3.6 and
    Algorithm 2 (S6).

    With step = softplus(delta + delta_bias), the initial state (zero if it is None) and position by
    position

        h_l = exp(step_l A) h_{l-1} + step_l B_l u_l        y_l = sum_n C_l[n] h_l[:, n] + D u_l

    As in the published code, B enters as step * B, not by the exact zero-order hold of the paper's
    equation (4). A position with a very negative delta (-1e4) has step 0 and leaves the state
    unchanged: padding.

    Scans of consecutive pieces, each from the last state of the piece before, are one long scan. A
    piece multiplies its initial state by exp(A sum of its steps) in all.
    `dnadiff.networks.kernels.facade` has scans of blocks.

    Args:
        u: (Bt, L, E) input.
        delta: (Bt, L, E) step size before the softplus.
        A: (E, N) negative decay rates.
        B: (Bt, L, N) input weights of the states.
        C: (Bt, L, N) output weights of the states.
        D: (E,) weight of the skip connection.
        delta_bias: (E,) added to delta.
        reverse: run from the last position to the first; h_{l-1} above becomes h_{l+1}.
        initial_state: (Bt, E, N) state before the first position (in reverse: after the last), in
            the type of the computation.
        return_last_state: also return the state after the last position (in reverse: the first).

    Returns:
        (Bt, L, E) in u's dtype, computed in float64 if u is float64 and in float32 otherwise; then
        perhaps (Bt, E, N) in that type.

    Raises:
        RuntimeError: also if the requested `scan` has no states to start from or to return.
    """
    inputs = ScanInputs(u, delta, A, B, C, D, delta_bias)
    check_scan_inputs(inputs)
    if initial_state is None and not return_last_state:
        backend = _scan_backend(scan, u, A)
        return (
            u * D.to(u.dtype)
            if u.numel() == 0
            else backend.selective_scan(cast_inputs(backend, inputs), reverse).to(u.dtype)
        )
    check_state("initial_state", initial_state, (u.shape[0], *A.shape), compute_dtype(u.dtype))
    backend = SCANS[
        choose_for(scan, u.device.type, compute_dtype(u.dtype), A.shape[-1], states=True)
    ]
    if u.numel() == 0:
        y = u * D.to(u.dtype)
        last = (
            u.new_zeros(u.shape[0], *A.shape, dtype=compute_dtype(u.dtype))
            if initial_state is None
            else initial_state
        )
    else:
        y, _, last = backend.carried_scan(
            cast_inputs(backend, inputs), reverse, initial_state, None
        )
    return (y.to(u.dtype), last) if return_last_state else y.to(u.dtype)


def selective_scans(
    forward: ScanInputs, backward: ScanInputs, *, scan: str = "auto"
) -> tuple[Tensor, Tensor]:
    """`selective_scan` of `forward` from the first position to the last, and of `backward`, of the
    same shapes, in reverse."""
    for inputs in (forward, backward):
        check_scan_inputs(inputs)
    if backward.u.shape != forward.u.shape or backward.A.shape != forward.A.shape:
        raise ValueError(
            f"backward has u {tuple(backward.u.shape)} and A {tuple(backward.A.shape)}, "
            f"expected the shapes of forward: {tuple(forward.u.shape)} and {tuple(forward.A.shape)}"
        )
    backend = _scan_backend(scan, forward.u, forward.A)
    if forward.u.numel() == 0:
        return forward.u * forward.D.to(forward.u.dtype), backward.u * backward.D.to(
            backward.u.dtype
        )
    y, y_rev = backend.scans(cast_inputs(backend, forward), cast_inputs(backend, backward))
    return y.to(forward.u.dtype), y_rev.to(backward.u.dtype)


def gated_scan(inputs: ScanInputs, z: Tensor, *, scan: str = "auto") -> Tensor:
    """`selective_scan` from the first position to the last, times silu(z), (Bt, L, E): a
    unidirectional mixer without its projections."""
    u = inputs.u
    check_scan_inputs(inputs)
    backend = _scan_backend(scan, u, inputs.A)
    if u.numel() == 0 or not backend.fused_gated_scan:
        return gated_sum(selective_scan(*inputs, scan=scan), None, z, scan=scan)
    if z.shape != u.shape:
        raise ValueError(f"z has shape {tuple(z.shape)}, expected {tuple(u.shape)} as u")
    return backend.gated_scan(
        cast_inputs(backend, inputs), backend.cast(z, compute_dtype(u.dtype))
    ).to(u.dtype)


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    reverse: bool = False,
    initial: Tensor | None = None,
    scan: str = "auto",
) -> Tensor:
    """silu of a depthwise causal convolution: a_l = bias + sum_k weight[:, k] x_{l-K+1+k}.

    Args:
        x: (Bt, L, E).
        weight: (E, K); the last tap is that of the position itself.
        bias: (E,).
        reverse: the mirror image, which reads later positions: a_l = bias + sum_k weight[:, k]
            x_{l+K-1-k}.
        initial: (Bt, K - 1, E) inputs before the first position (in reverse: after the last), zero
            if None.

    Returns:
        (Bt, L, E) in x's dtype.
    """
    check_filter(x, weight, bias)
    backend, dtype = _backend(scan, x), compute_dtype(x.dtype)
    wide, taps, shift = (backend.cast(tensor, dtype) for tensor in (x, weight, bias))
    if initial is not None:
        check_inputs_before(initial, x, (x.shape[0], weight.shape[1] - 1, x.shape[2]))
    if x.numel() == 0:
        return x * bias.to(x.dtype)
    if initial is None:
        return backend.short_conv(wide, taps, shift, reverse).to(x.dtype)
    return backend.block_conv(
        wide, taps, shift, reverse, backend.cast(initial, dtype)[:, None], x.shape[1]
    ).to(x.dtype)


def short_convs(
    x: Tensor,
    forward: tuple[Tensor, Tensor],
    backward: tuple[Tensor, Tensor],
    *,
    scan: str = "auto",
) -> tuple[Tensor, Tensor]:
    """`short_conv` of one x in both directions, each with its weight (E, K) and bias (E,)."""
    for weight, bias in (forward, backward):
        check_filter(x, weight, bias)
    backend, dtype = _backend(scan, x), compute_dtype(x.dtype)
    if x.numel() == 0:
        return x * forward[1].to(x.dtype), x * backward[1].to(x.dtype)
    filters = [
        (backend.cast(weight, dtype), backend.cast(bias, dtype))
        for weight, bias in (forward, backward)
    ]
    y, y_rev = backend.short_convs(backend.cast(x, dtype), *filters)
    return y.to(x.dtype), y_rev.to(x.dtype)


def gated_sum(y: Tensor, y_rev: Tensor | None, z: Tensor, *, scan: str = "auto") -> Tensor:
    """(y + y_rev) silu(z), all (Bt, L, E): the input of a mixer's output projection. If y_rev is
    None, it is zero.

    Here and in the operations below, half precision and autocast are left to PyTorch unless the
    back end reads half precision itself.
    """
    shape = check_rows("y", y)
    for name, x in (("y_rev", y_rev), ("z", z)):
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {tuple(shape)} as y")
    return _rowwise(scan, y, y_rev, z).gated_sum(y, y_rev, z)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, scan: str = "auto") -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight of x (..., D) over the last axis, weight (D,) (arXiv
    1910.07467, equation 4)."""
    check_norm(x, None, weight)
    return _rowwise(scan, x, weight).rms_norm(x, weight, eps)


def add_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, eps: float, *, scan: str = "auto"
) -> tuple[Tensor, Tensor]:
    """The residual stream after a branch is added, s = x + added, and `rms_norm` of s, which is the
    input of the next branch.

    Args:
        x: (..., D).
        added: (..., D), perhaps in a narrower type; None adds nothing.
        weight: (D,).
        eps: added to the mean square.

    Returns:
        s in the wider type of the two, and its norm. The norm is computed in that type and returned
        in weight's type, or in autocast's type if the back end has one kernel for both steps.
    """
    check_norm(x, added, weight)
    backend = _rowwise(scan, x, added, weight)
    if not backend.fused_add_norm:
        total = x if added is None else x + added
        return total, rms_norm(total, weight.to(total.dtype), eps, scan=scan).to(weight.dtype)
    return backend.add_norm(x, added, weight, eps)


def narrow_linear(x: Tensor, weight: Tensor, *, scan: str = "auto") -> Tensor:
    """x weight^T, (Bt, L, E), of x (Bt, L, R) with few columns and weight (E, R): step sizes from
    their low-rank form."""
    if weight.dim() != 2 or check_rows("x", x)[2] != weight.shape[1]:
        raise ValueError(
            f"weight {tuple(weight.shape)} must be (E, {x.shape[2]}) for x {tuple(x.shape)}"
        )
    return _rowwise(scan, x, weight).narrow_linear(x, weight)


def linear(x: Tensor, weight: Tensor, *, scan: str = "auto") -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R), by the fastest library for it."""
    check_product(x, weight)
    return _rowwise(scan, x, weight).linear(x, weight)


def linear_halves(x: Tensor, weight: Tensor, *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """Both halves of the columns of x weight^T, each (..., E), of x (..., R) and weight (2 E, R): a
    mixer's input and its gate."""
    check_product(x, weight)
    return _rowwise(scan, x, weight).linear_halves(x, weight)


def fuses_mixer(
    hidden: Tensor,
    in_proj: Tensor,
    ways: Sequence[MixerWay],
    valid: Tensor | None = None,
    *,
    scan: str = "auto",
) -> bool:
    """Whether `mixer` can compute this; otherwise the caller combines the operations above."""
    same = all(
        weight.dtype == torch.float32 and weight.device == hidden.device
        for weight in (hidden, in_proj, *ways[0], *ways[-1])
    )
    if (
        not same
        or hidden.numel() == 0
        or (valid is not None and valid.dtype != torch.bool)
        or torch.is_autocast_enabled(hidden.device.type)
    ):
        return False
    return _scan_backend(scan, hidden, ways[0].A_log).fuses_mixer(hidden, in_proj, ways)


def mixer(
    hidden: Tensor,
    in_proj: Tensor,
    out_proj: Tensor,
    ways: Sequence[MixerWay],
    valid: Tensor | None = None,
    *,
    scan: str = "auto",
) -> Tensor:
    """A whole mixer in one call, for back ends with `fuses_mixer`: projections, convolutions, scans
    and gate.

    Args:
        hidden: (Bt, L, D).
        in_proj: (2 E, D), the scan's input and the gate.
        out_proj: (D, E).
        ways: the direction from the first position to the last, and perhaps that in reverse, whose
            outputs are added.
        valid: (Bt, L) bool, False on padding, which has no influence on other positions.

    Returns:
        (Bt, L, D).
    """
    check_mixer(hidden, in_proj, out_proj, ways, valid)
    return _scan_backend(scan, hidden, ways[0].A_log).mixer(hidden, in_proj, out_proj, ways, valid)


def _backend(scan: str, x: Tensor) -> Backend:
    return SCANS[choose(scan, x.device.type, compute_dtype(x.dtype))]


def _scan_backend(scan: str, u: Tensor, A: Tensor) -> Backend:
    return SCANS[choose_for(scan, u.device.type, compute_dtype(u.dtype), A.shape[-1])]


def _rowwise(scan: str, x: Tensor, *others: Tensor | None) -> Backend:
    """The back end for an operation on single positions."""
    backend, portable, device = _backend(scan, x), SCANS["portable"], x.device.type
    if backend.keeps_dtype:
        return portable if x.numel() == 0 else backend
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    same = all(other is None or other.dtype == x.dtype for other in others)
    if autocast or not same or x.dtype not in (torch.float32, torch.float64) or x.numel() == 0:
        return portable
    return backend


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
    hidden: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay],
    past: Tensor | None = None, state: Tensor | None = None,
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
    noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay],
    block_size: int, valid: Tensor | None = None,
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


_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GAIN = 1.1  # how much faster more threads must be
_SECONDS = 0.15  # of one trial
# that must agree on fewer threads: the first milliseconds on a cold machine are not typical, and
# the choice is kept
_TRIALS = 4
# other running programs, on average over a minute, for each processor that this process uses
_BUSY = 0.5
log = logging.getLogger("dnadiff")


def choose_threads() -> int:
    """Set the number of threads of this process and return it: what the environment says, what an
    earlier trial chose, or a new trial."""
    most = torch.get_num_threads()
    if most == 1 or any(os.environ.get(name) for name in _VARIABLES):
        return most
    path = cache_folder() / f"threads-{_machine(most)}"
    chosen = 0
    with suppress(OSError, ValueError):
        chosen = int(path.read_text())
    if not 1 <= chosen <= most:
        if os.getloadavg()[0] > _BUSY * most:
            return most
        chosen = _trial(most)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_text(f"{chosen}\n")
            part.replace(path)  # another process never reads half of a number
        if chosen < most:
            log.info(
                f"{chosen} of {most} threads, because more are not faster here (OMP_NUM_THREADS "
                f"sets another number; kept in {path})"
            )
    torch.set_num_threads(chosen)
    return chosen


def _machine(most: int) -> str:
    """Identifies the processor and what of it this process may use."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line for line in file if line.startswith("model name")), "")
    except OSError:
        model = ""
    return hashlib.sha256(f"{model}{os.cpu_count()} {most}".encode()).hexdigest()[:16]


def _trial(most: int) -> int:
    """The smallest number of threads, of `most` and its halves, than which no larger one is clearly
    faster in any of `_TRIALS` trials."""
    counts = [most]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    u, table = (
        torch.zeros(16 * most, 64, 64),
        torch.zeros(64, 16),
    )  # half a millisecond with all threads, much longer than it takes to wake them

    def scan() -> float:
        start = time.perf_counter()
        selective_scan(u, u, table, u[..., :16], u[..., :16], table[:, 0])
        return time.perf_counter() - start

    chosen = 1
    with torch.no_grad():
        scan()  # compiled or loaded here
        for _ in range(_TRIALS):
            best = dict.fromkeys(counts, math.inf)
            begin = time.perf_counter()
            while time.perf_counter() - begin < _SECONDS:
                for count in counts:
                    torch.set_num_threads(count)
                    best[count] = min(best[count], scan(), scan())  # the first call starts threads
            fewest = counts[-1]
            for count in reversed(counts):
                if best[count] * _GAIN < best[fewest]:
                    fewest = count
            chosen = max(chosen, fewest)
            if chosen == most:
                break
    return chosen
