"""The facade: chooses a back end, checks shapes and types, and calls it.

Every operation takes `scan`, a key of `SCANS` or "auto": the environment variable DNADIFF_SCAN,
else the fastest back end that works. Every operation raises ValueError if shapes or types do not
fit or `scan` is unknown, and RuntimeError if the requested `scan` cannot run on this machine.
"""

import hashlib
import math
import mmap
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dnadiff.networks.kernels.backend import (
    Backend,
    MixerWeights,
    OptionalTensor,
    ScanInputs,
    ScanStates,
    Walk,
)
from dnadiff.networks.kernels.cpu import CppBackend
from dnadiff.networks.kernels.native import cache_folder, constant_in_graphs, processor
from dnadiff.networks.kernels.portable import (
    MambaSSMBackend,
    PortableBackend,
    ReferenceBackend,
    difference,
)
from dnadiff.networks.kernels.triton_rowwise import TritonBackend
from dnadiff.progress import log

AUTO = "auto"
_FOR_A_THREAD = 64 << 20  # bytes of address space: its stack of 8 MiB and what it allocates first
# The fastest first for each device; `auto` stops at portable, which runs anywhere.
SCANS: dict[str, Backend] = {
    "cpu": CppBackend(),
    "triton": TritonBackend(),
    "mamba_ssm": MambaSSMBackend(),
    "portable": PortableBackend(),
    "reference": ReferenceBackend(),
}


def check_scan(scan: str) -> str:
    """The name of a scan, checked before anything is computed.

    Raises:
        ValueError: if it is unknown.
        RuntimeError: if it is not "auto" and cannot run on this machine.
    """
    if scan == AUTO:
        return scan
    if scan not in SCANS:
        raise ValueError(
            f"unknown scan {scan!r}; known are auto, {', '.join(SCANS)} (argument scan or variable "
            "DNADIFF_SCAN)"
        )
    _refuse(scan, _failure(scan))
    return scan


def check_states(scan: str) -> None:
    """Raise RuntimeError if a scan that was asked for can neither start from states nor return
    them, as blocks need."""
    requested = _requested(scan)
    if requested in SCANS and (reason := SCANS[requested].lacks_states):
        _refuse(requested, f"{reason}; set scan=portable")


def _refuse(scan: str, reason: str) -> None:
    if reason:
        raise RuntimeError(f"scan {scan!r} was asked for and cannot run: {reason}")


def available_scans() -> dict[str, str]:
    """Every scan with the reason why it cannot run on this machine; an empty string if it can."""
    return {name: _failure(name) for name in SCANS}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which tensors of this type are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@constant_in_graphs  # chosen while tracing, so that a compiled model contains one operator
def choose(
    scan: str, device_type: str, dtype: torch.dtype, num_states: int = 0, states: bool = False
) -> str:
    """The scan that runs if `scan`, perhaps "auto", is requested for tensors on a device; chosen
    once, with the reasons in the log. Errors as `check_scan`.

    `auto` falls back to portable if the fastest cannot compute a recurrence with this many states
    per channel or, with `states`, one that starts from given states or returns states.
    """
    requested = _requested(scan)
    dtype = compute_dtype(dtype)
    if requested == AUTO:
        name = _fastest(device_type, dtype)
    else:
        name = check_scan(requested)
        _refuse(name, SCANS[name].unsupported(device_type, dtype))
    backend = SCANS[name]
    reason = ""
    if num_states > backend.max_states:
        most = backend.max_states
        reason = f"{num_states} states a channel; this kernel holds at most {most} in registers"
    elif states:
        reason = backend.lacks_states
    if not reason:
        return name
    if requested != AUTO:
        _refuse(name, f"{reason}; set scan=portable")
    _warn_once(f"selective scan: portable instead of {name}, because of {reason}")
    return "portable"


def _requested(scan: str) -> str:
    return scan if scan != AUTO else os.environ.get("DNADIFF_SCAN") or AUTO


def triton_allowed() -> bool:
    """Whether DNADIFF_SCAN leaves the choice of kernels open, or asks for Triton."""
    return _requested(AUTO) in (AUTO, "triton")


@cache
def _warn_once(message: str) -> None:
    log.warning(message)


@cache
def _fastest(device_type: str, dtype: torch.dtype) -> str:
    for name, backend in SCANS.items():
        if backend.unsupported(device_type, dtype):
            continue
        if reason := _failure(name):
            log.warning("selective scan: not %s, because %s", name, reason)
            continue
        log.info("selective scan: %s (%s)", name, backend.description())
        return name
    raise AssertionError("portable supports everything")


@cache
def _failure(name: str) -> str:
    """Why a scan does not work, found by running it on a tiny input and comparing it with the
    portable one."""
    if SCANS[name].device_type is None:
        return ""
    # A new thread would open the first GPU, which another process may use: pass the calling
    # thread's current GPU on.
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:  # Python waits forever for a thread that finds no memory as it starts
        mmap.mmap(-1, _FOR_A_THREAD).close()
    except OSError as error:
        raise MemoryError(f"fewer than {_FOR_A_THREAD >> 20} MB of memory are left") from error
    # Autocast, inference mode, function transforms, the default device and hooks on saved tensors
    # belong to a thread: use a clean one.
    with ThreadPoolExecutor(1) as clean_thread:
        return clean_thread.submit(difference, SCANS[name], gpu).result()


def _backend(scan: str, x: Tensor, num_states: int = 0, states: bool = False) -> Backend:
    return SCANS[choose(scan, x.device.type, x.dtype, num_states, states)]


def _rowwise(scan: str, x: Tensor, *others: OptionalTensor) -> Backend:
    """The back end for an operation on single positions."""
    backend = _backend(scan, x)
    portable = SCANS["portable"]
    device = x.device.type
    if x.numel() == 0 or backend.keeps_dtype:
        return backend if x.numel() else portable
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    same = all(other is None or other.dtype == x.dtype for other in others)
    exact = same and not autocast and x.dtype in (torch.float32, torch.float64)
    return backend if exact else portable


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor,
    delta_bias: OptionalTensor = None,
    *, reverse: bool = False, initial_state: OptionalTensor = None, return_last_state: bool = False,
    scan: str = AUTO,
) -> Any:  # fmt: skip
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
    y, _, last = _scan(inputs, Walk(reverse, initial_state, states=return_last_state), scan)
    return (y, last) if return_last_state else y


def scan_with_states(
    inputs: ScanInputs, block_size: int, initial_state: OptionalTensor = None, *, scan: str = AUTO
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
    return _scan(inputs, Walk(False, initial_state, block_size, states=True), scan)


def scan_blocks(
    inputs: ScanInputs, block_size: int, initial_states: OptionalTensor = None,
    *, reverse: bool = False, scan: str = AUTO,
) -> Tensor:  # fmt: skip
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
    return _scan(inputs, Walk(reverse, initial_states, block_size, restart=True), scan).y


def _scan(inputs: ScanInputs, walk: Walk, scan: str) -> ScanStates:
    u = inputs.u
    dtype = compute_dtype(inputs.u.dtype)
    block = walk.block
    start = walk.initial
    _check_scan_inputs(inputs)
    batch: tuple[int, ...] = u.shape[:1]
    if block is not None:
        blocks = _num_blocks(block, u.shape[1])
        batch = (*batch, blocks) if walk.restart else batch
    name = "initial_states" if walk.restart else "initial_state"
    _check_state(name, start, (*batch, *inputs.A.shape), dtype)
    states = walk.states or walk.restart or start is not None
    backend = _backend(scan, u, inputs.A.shape[1], states)
    if u.numel():
        y, *found = backend.scan(ScanInputs(*_cast(backend, u.dtype, *inputs)), walk)
        return ScanStates(y.to(u.dtype), *found)
    y = u * inputs.D.to(u.dtype)
    last = u.new_zeros(len(u), *inputs.A.shape, dtype=dtype) if start is None else start
    if block is None or walk.restart:
        return ScanStates(y, None, last)
    return ScanStates(y, last[:, None].expand(-1, blocks, -1, -1), last)


def _cast(backend: Backend, dtype: torch.dtype, *tensors: OptionalTensor) -> list[Any]:
    """The tensors in the types that a back end reads for inputs of this type."""
    wide = compute_dtype(dtype)
    return [None if x is None else backend.cast(x, wide) for x in tensors]


def selective_scans(
    forward: ScanInputs, backward: ScanInputs, *, scan: str = AUTO
) -> tuple[Tensor, Tensor]:
    """`selective_scan` of `forward` from the first position to the last, and of `backward`, of the
    same shapes, in reverse."""
    u = forward.u
    u_rev = backward.u
    backend = _backend(scan, u, forward.A.shape[1])
    if u.numel() == 0:
        return u * forward.D.to(u.dtype), u_rev * backward.D.to(u_rev.dtype)
    y, y_rev = backend.scans(
        *(ScanInputs(*_cast(backend, x.u.dtype, *x)) for x in (forward, backward))
    )
    return y.to(u.dtype), y_rev.to(u_rev.dtype)


def gated_scan(inputs: ScanInputs, z: Tensor, *, scan: str = AUTO) -> Tensor:
    """`selective_scan` from the first position to the last, times silu(z), (Bt, L, E): a
    unidirectional mixer without its projections."""
    u = inputs.u
    _check_shape("z", z, u.shape, " as u")
    backend = _backend(scan, u, inputs.A.shape[1])
    if u.numel() == 0 or not backend.fused_gated_scan:
        return gated_sum(selective_scan(*inputs, scan=scan), None, z, scan=scan)
    *wide, gate = _cast(backend, u.dtype, *inputs, z)
    return backend.gated_scan(ScanInputs(*wide), gate).to(u.dtype)


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor,
    *, reverse: bool = False, initial: OptionalTensor = None, block_size: int | None = None,
    scan: str = AUTO,
) -> Tensor:  # fmt: skip
    """silu of a depthwise causal convolution: a_l = bias + sum_k weight[:, k] x_{l-K+1+k}.

    Args:
        x: (Bt, L, E).
        weight: (E, K); the last tap is that of the position itself.
        bias: (E,).
        reverse: the mirror image, which reads later positions: a_l = bias + sum_k weight[:, k]
            x_{l+K-1-k}.
        initial: (Bt, K - 1, E) inputs before the first position (in reverse: after the last), zero
            if None; of blocks (Bt, blocks, K - 1, E), before (in reverse: after) each of them.
        block_size: every block of so many positions (1 to L) is a sequence of its own.

    Returns:
        (Bt, L, E) in x's dtype.
    """
    _check_filter(x, weight, bias)
    (Bt, L, E), K = x.shape, weight.shape[1]
    block = block_size or 0
    blocks = [] if block_size is None else [_num_blocks(block_size, L)]
    shape = (Bt, *blocks, K - 1, E)
    if initial is not None and (initial.shape != shape or initial.dtype != x.dtype):
        raise ValueError(
            f"initial has shape {tuple(initial.shape)} and type {initial.dtype}, expected {shape} "
            f"and {x.dtype} as x"
        )
    backend = _backend(scan, x)
    if x.numel() == 0:
        return x * bias.to(x.dtype)
    wide, taps, shift, near = _cast(backend, x.dtype, x, weight, bias, initial)
    if near is not None and not block:
        near = near[:, None]
        block = L
    return backend.short_conv(wide, taps, shift, reverse, near, block).to(x.dtype)


def short_convs(
    x: Tensor, forward: tuple[Tensor, Tensor], backward: tuple[Tensor, Tensor], *, scan: str = AUTO
) -> tuple[Tensor, Tensor]:
    """`short_conv` of one x in both directions, each with its weight (E, K) and bias (E,)."""
    backend = _backend(scan, x)
    if x.numel() == 0:
        return x * forward[1].to(x.dtype), x * backward[1].to(x.dtype)
    wide, weight, bias, weight_rev, bias_rev = _cast(backend, x.dtype, x, *forward, *backward)
    y, y_rev = backend.short_convs(wide, (weight, bias), (weight_rev, bias_rev))
    return y.to(x.dtype), y_rev.to(x.dtype)


def last_inputs(x: Tensor, num_taps: int, initial: OptionalTensor = None) -> Tensor:
    """The inputs (Bt, K - 1, E) that a convolution of K taps needs before the piece that follows x
    (Bt, L, E).

    `initial` (Bt, K - 1, E) are those before x, zero if None: they count if x has fewer than K - 1
    positions.
    """
    missing = num_taps - 1 - x.shape[1]
    if missing <= 0:
        return x[:, -missing:]
    if initial is None:
        return F.pad(x, (0, 0, missing, 0))
    return torch.cat([initial[:, -missing:], x], dim=1)


def gated_sum(y: Tensor, y_rev: OptionalTensor, z: Tensor, *, scan: str = AUTO) -> Tensor:
    """(y + y_rev) silu(z), all (Bt, L, E): the input of a mixer's output projection. If y_rev is
    None, it is zero.

    Here and in the operations below, half precision and autocast are left to PyTorch unless the
    back end reads half precision itself.
    """
    _check_shape("y_rev", y_rev, y.shape, " as y")
    _check_shape("z", z, y.shape, " as y")
    return _rowwise(scan, y, y_rev, z).gated_sum(y, y_rev, z)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, scan: str = AUTO) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight of x (..., D) over the last axis, weight (D,) (arXiv
    1910.07467, equation 4)."""
    _check_shape("weight", weight, x.shape[-1:])
    return _rowwise(scan, x, weight).rms_norm(x, weight, eps)


def add_norm(
    x: Tensor, added: OptionalTensor, weight: Tensor, eps: float, *, scan: str = AUTO
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
    _check_shape("added", added, x.shape, " as x")
    _check_shape("weight", weight, x.shape[-1:])
    return _rowwise(scan, x, added, weight).add_norm(x, added, weight, eps)


def _product(x: Tensor, weight: Tensor, scan: str) -> Backend:
    _check_shape("weight", weight, (len(weight), x.shape[-1]))
    return _rowwise(scan, x, weight)


def narrow_linear(x: Tensor, weight: Tensor, *, scan: str = AUTO) -> Tensor:
    """x weight^T, (Bt, L, E), of x (Bt, L, R) with few columns and weight (E, R): step sizes from
    their low-rank form."""
    return _product(x, weight, scan).narrow_linear(x, weight)


def linear(x: Tensor, weight: Tensor, *, scan: str = AUTO) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R), by the fastest library for it."""
    return _product(x, weight, scan).linear(x, weight)


def linear_halves(x: Tensor, weight: Tensor, *, scan: str = AUTO) -> tuple[Tensor, Tensor]:
    """Both halves of the columns of x weight^T, each (..., E), of x (..., R) and weight (2 E, R): a
    mixer's input and its gate."""
    return _product(x, weight, scan).linear_halves(x, weight)


def fuses_mixer(
    hidden: Tensor, weights: MixerWeights, valid: OptionalTensor = None, *, scan: str = AUTO
) -> bool:
    """Whether `mixer` and, for a second stream of hidden's type, `two_stream_mixer` are kernels;
    otherwise the caller combines the operations above."""
    same = all(
        weight.dtype == torch.float32 and weight.device == hidden.device
        for weight in (hidden, *weights.tensors())
    )
    if (
        not same
        or hidden.numel() == 0
        or (valid is not None and valid.dtype != torch.bool)
        or torch.is_autocast_enabled(hidden.device.type)
    ):
        return False
    return _backend(scan, hidden, weights.ways[0].A_log.shape[1]).fuses_mixer(weights)


def mixer(
    hidden: Tensor, weights: MixerWeights, valid: OptionalTensor = None, *, scan: str = AUTO
) -> Tensor:
    """A whole mixer in one call, for back ends with `fuses_mixer`: projections, convolutions, scans
    and gate.

    Args:
        hidden: (Bt, L, D).
        weights: of the mixer.
        valid: (Bt, L) bool, False on padding, which has no influence on other positions.

    Returns:
        (Bt, L, D).
    """
    return _mixer_backend(hidden, weights, valid, scan, False).mixer(hidden, weights, valid)


def continued_mixer(
    hidden: Tensor, weights: MixerWeights, past: OptionalTensor = None,
    state: OptionalTensor = None,
    *, scan: str = AUTO,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A whole mixer of one piece of a sequence after others, in one call: for sampling, where
    pieces are short and calls many.

    The forward direction continues the pieces before; the reverse one, if there is one, is confined
    to the piece. Where gradients are off and `fuses_mixer` is true it is one kernel; otherwise the
    caller combines the operations of this module.

    Args:
        hidden: (Bt, n, D).
        weights: as in `mixer`.
        past: (Bt, K - 1, E) inputs of the convolution before the piece, and
        state: (Bt, E, N) of the scan before it, both zero if None.

    Returns:
        (Bt, n, D), and `past` and `state` for the next piece.
    """
    backend = _mixer_backend(hidden, weights, None, scan, True)
    (Bt, _, _), (E, K), way = hidden.shape, weights.ways[0].conv_weight.shape, weights.ways[0]
    _check_state("state", state, (Bt, *way.A_log.shape), compute_dtype(hidden.dtype))
    _check_shape("past", past, (Bt, K - 1, E))
    out, x, state = backend.continued_mixer(hidden, weights, past, state)
    return out, last_inputs(x, K), state


def two_stream_mixer(
    noised: Tensor, clean: Tensor, weights: MixerWeights, block_size: int,
    valid: OptionalTensor = None,
    *, clean_output: bool = True, scan: str = AUTO,
) -> tuple[Tensor, OptionalTensor]:  # fmt: skip
    """A whole mixer of both streams in one call: projections, convolutions, scans and gate, in both
    directions for the noised stream.

    Where `fuses_mixer` is true, one kernel scans both streams, and the states before blocks
    are never in memory.

    Args:
        noised, clean: (Bt, L, D).
        weights: of both directions; the second one is that of the noised stream in reverse.
        block_size: b, 1 to L positions.
        valid: as in `mixer`.
        clean_output: whether the output of the clean stream is needed.

    Returns:
        (Bt, L, D) of the noised stream and, if it is needed, of the clean one.
    """
    backend = _mixer_backend(noised, weights, valid, scan, True)
    _check_shape("clean", clean, noised.shape, " as noised")
    _num_blocks(block_size, noised.shape[1])
    return backend.two_stream_mixer(noised, clean, weights, block_size, valid, clean_output)


def _mixer_backend(
    hidden: Tensor, weights: MixerWeights, valid: OptionalTensor, scan: str, states: bool
) -> Backend:
    (D, E), in_proj = weights.out_proj.shape, weights.in_proj.shape
    if _check_rows("hidden", hidden)[2] != D or in_proj != (2 * E, D):
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and in_proj {tuple(in_proj)} do not fit out_proj "
            f"{(D, E)}"
        )
    _check_shape("valid", valid, hidden.shape[:2], " as hidden")
    return _backend(scan, hidden, weights.ways[0].A_log.shape[1], states)


def _check_rows(name: str, x: Tensor) -> torch.Size:
    """The shape of a floating-point (batch, length, channels) tensor."""
    if x.dim() != 3:
        raise ValueError(f"{name} must be (batch, length, channels), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(
            f"{name} has type {x.dtype}, expected float32, bfloat16, float16 or float64"
        )
    return x.shape


def _check_shape(name: str, x: OptionalTensor, shape: Sequence[int], like: str = "") -> None:
    if x is not None and x.shape != shape:
        expected = tuple(shape)
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {expected}{like}")


def _check_filter(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """The operands of a short convolution."""
    E = _check_rows("x", x)[2]
    if weight.dim() != 2 or weight.shape[0] != E or bias.shape != (E,):
        raise ValueError(
            f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} must be ({E}, K) and "
            f"({E},) for x {tuple(x.shape)}"
        )


def _check_scan_inputs(inputs: ScanInputs) -> None:
    """The inputs of a selective scan."""
    (Bt, L, E), N = _check_rows("u", inputs.u), inputs.A.shape[-1]
    expected = {
        "delta": (Bt, L, E),
        "A": (E, N),
        "B": (Bt, L, N),
        "C": (Bt, L, N),
        "D": (E,),
        "delta_bias": (E,),
    }
    like = f" for u of shape {(Bt, L, E)} and {N} states"
    for name, shape in expected.items():
        _check_shape(name, getattr(inputs, name), shape, like)


def _check_state(
    name: str, state: OptionalTensor, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A state (..., E, N) of exactly this type: half precision would lose what a state adds up over
    many positions."""
    _check_shape(name, state, shape)
    if state is not None and state.dtype != dtype:
        raise ValueError(
            f"{name} has type {state.dtype}, expected {dtype}, in which this scan computes; "
            f"convert it with .to({dtype})"
        )


def _num_blocks(block_size: int, L: int) -> int:
    """The number of blocks of so many positions."""
    if isinstance(block_size, bool) or not isinstance(block_size, int) or not 1 <= block_size <= L:
        raise ValueError(
            f"block_size {block_size!r} does not fit sequences of {L} positions; expected an "
            f"integer from 1 to {L}"
        )
    return -(-L // block_size)


_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GAIN = 1.1  # how much faster more threads must be
_SECONDS = 0.15  # of one trial
# that must agree on fewer threads: the first milliseconds on a cold machine are not typical, and
# the choice is kept
_TRIALS = 4
# other running programs, on average over a minute, for each processor that this process uses
_BUSY = 0.5


def _trial(
    most: int, scan: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> int:  # fmt: skip
    """The smallest number of threads, of `most` and its halves, than which no larger one is clearly
    faster in any of `_TRIALS` trials of `scan`."""
    counts = [most]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    # half a millisecond with all threads, much longer than it takes to wake them
    u = torch.zeros(16 * most, 64, 64)
    table = torch.zeros(64, 16)
    inputs = u, u, table, u[..., :16], u[..., :16], table[:, 0]

    def seconds() -> float:
        start = clock()
        scan() if scan else selective_scan(*inputs)
        return clock() - start

    chosen = 1
    with torch.no_grad():
        seconds()  # compiled or loaded here
        for _ in range(_TRIALS):
            best = dict.fromkeys(counts, math.inf)
            begin = clock()
            while clock() - begin < _SECONDS:
                for count in counts:
                    torch.set_num_threads(count)
                    # the first call starts threads
                    best[count] = min(best[count], seconds(), seconds())
            fewest = counts[-1]
            for count in reversed(counts):
                if best[count] * _GAIN < best[fewest]:
                    fewest = count
            chosen = max(chosen, fewest)
            if chosen == most:
                break
    return chosen


def choose_threads(
    trial: Callable[[int], int] = _trial, load: Callable[[], tuple[float, ...]] = os.getloadavg
) -> int:
    """Set the number of threads of this process and return it: what the environment says, what an
    earlier trial chose, or a new `trial`, if the machine's average `load` is low."""
    most = torch.get_num_threads()
    if most == 1 or any(os.environ.get(name) for name in _VARIABLES):
        return most
    model = next((f"{line}\n" for line in processor() if line.startswith("model name")), "")
    machine = hashlib.sha256(f"{model}{os.cpu_count()} {most}".encode()).hexdigest()[:16]
    path = cache_folder() / f"threads-{machine}"
    chosen = 0
    with suppress(OSError, ValueError):
        chosen = int(path.read_text())
    if not 1 <= chosen <= most:
        if load()[0] > _BUSY * most:
            return most
        chosen = trial(most)
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
