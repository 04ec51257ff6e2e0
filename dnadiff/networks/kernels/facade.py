"""The facade: chooses a back end, checks shapes and types, and calls it with tensors that it reads.

Every function takes `scan`, a key of `SCANS` or "auto": the environment variable DNADIFF_SCAN,
else the fastest back end that works. Every function raises ValueError if shapes or types do not
fit or `scan` is unknown, and RuntimeError if the requested `scan` cannot run on this machine.
"""

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
    Piece,
    ScanInputs,
    ScanStates,
    Walk,
)
from dnadiff.networks.kernels.cpu import CppBackend
from dnadiff.networks.kernels.native import (
    cache_folder,
    constant_in_graphs,
    processor,
    short_hash,
)
from dnadiff.networks.kernels.portable import (
    MambaSSMBackend,
    PortableBackend,
    ReferenceBackend,
    difference,
)
from dnadiff.networks.kernels.triton_rowwise import TritonBackend
from dnadiff.progress import log
from dnadiff.store.disk import write_bytes

AUTO = "auto"
_NATIVE_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # read by back ends that keep types
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


class AnyType(Backend):
    """A back end for tensors of any floating-point type and number.

    Scans and convolutions are computed in float32 (float64 stays). Half precision and autocast are
    left to PyTorch in the operations on single positions. Both only if the back end does not read
    half precision itself.
    """

    def __init__(self, own: Backend) -> None:
        self.own = own

    def description(self) -> str:
        return self.own.description()

    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        u = inputs.u
        block = walk.block
        if u.numel():
            y, *found = self.own.scan(ScanInputs(*self._cast(u, *inputs)), walk)
            return ScanStates(y.to(u.dtype), *found)
        y = u * inputs.D.to(u.dtype)
        last = walk.initial
        if last is None:
            last = u.new_zeros(len(u), *inputs.A.shape, dtype=compute_dtype(u.dtype))
        if block is None or walk.restart:
            return ScanStates(y, None, last)
        return ScanStates(y, last[:, None].expand(-1, -(-u.shape[1] // block), -1, -1), last)

    def scans(self, forward: ScanInputs, backward: ScanInputs) -> tuple[Tensor, Tensor]:
        if forward.u.numel() == 0:
            return super().scans(forward, backward)
        y, y_rev = self.own.scans(*(ScanInputs(*self._cast(x.u, *x)) for x in (forward, backward)))
        return y.to(forward.u.dtype), y_rev.to(backward.u.dtype)

    def gated_scan(self, inputs: ScanInputs, z: Tensor) -> Tensor:
        if inputs.u.numel() and self.own.keeps_dtype:  # it may be one kernel
            return self.own.gated_scan(inputs, z)
        return super().gated_scan(inputs, z)

    def short_conv(
        self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool = False,
        near: OptionalTensor = None, block: int = 0,
    ) -> Tensor:  # fmt: skip
        if x.numel() == 0:
            return x * bias.to(x.dtype)
        wide, taps, shift, near = self._cast(x, x, weight, bias, near)
        return self.own.short_conv(wide, taps, shift, reverse, near, block).to(x.dtype)

    def short_convs(
        self, x: Tensor, forward: Sequence[Tensor], backward: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        if x.numel() == 0:
            return super().short_convs(x, forward, backward)
        wide, *filters = self._cast(x, x, *forward, *backward)
        y, y_rev = self.own.short_convs(wide, filters[:2], filters[2:])
        return y.to(x.dtype), y_rev.to(x.dtype)

    def gated_sum(self, y: Tensor, y_rev: OptionalTensor, z: Tensor) -> Tensor:
        return self._rowwise(y, y_rev, z).gated_sum(y, y_rev, z)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        _check_shape("weight", weight, x.shape[-1:])
        return self._rowwise(x, weight).rms_norm(x, weight, eps)

    def add_norm(
        self, x: Tensor, added: OptionalTensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        _check_shape("added", added, x.shape, " as x")
        _check_shape("weight", weight, x.shape[-1:])
        return self._rowwise(x, added, weight).add_norm(x, added, weight, eps)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        _check_shape("weight", weight, (len(weight), x.shape[-1]))
        return self._rowwise(x, weight).linear(x, weight)

    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._rowwise(x, weight).narrow_linear(x, weight)

    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._rowwise(x, weight).linear_halves(x, weight)

    def fuses(self, hidden: Tensor, weights: MixerWeights, valid: OptionalTensor = None) -> bool:
        """Whether the mixers are kernels; otherwise they combine the operations."""
        same = all(
            x.dtype == torch.float32 and x.device == hidden.device
            for x in (hidden, *weights.tensors())
        )
        return (
            same
            and hidden.numel() > 0
            and (valid is None or valid.dtype == torch.bool)
            and not torch.is_autocast_enabled(hidden.device.type)
            and self.own.fuses_mixer(weights)
        )

    def mixer(
        self, hidden: Tensor, weights: MixerWeights, valid: OptionalTensor,
        piece: Piece | None = None,
    ) -> Tensor:  # fmt: skip
        """A whole mixer: projections, convolutions, scans and gate; where the back end has one, in
        one kernel.

        Args:
            hidden: (Bt, L, D).
            weights: of the mixer.
            valid: (Bt, L) bool, False on padding, which has no influence on other positions.
            piece: of sequences whose other pieces are in other processes.

        Returns:
            (Bt, L, D).
        """
        if piece is None and self.fuses(hidden, weights, valid):
            return self.own.mixer(hidden, weights, valid)
        return super().mixer(hidden, weights, valid, piece)

    def continued_mixer(
        self, hidden: Tensor, weights: MixerWeights, past: OptionalTensor, state: OptionalTensor,
        valid: OptionalTensor = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """A whole mixer of one piece of a sequence after others: for sampling, where pieces are
        short and calls many. It may be one kernel where gradients are off and there is no padding.

        The forward direction continues the pieces before; the reverse one, if there is one, is
        confined to the piece.

        Args:
            hidden: (Bt, n, D).
            weights, valid: as in `mixer`.
            past: (Bt, K - 1, E) inputs of the convolution before the piece, and
            state: (Bt, E, N) of the scan before it, both zero if None.

        Returns:
            (Bt, n, D), and `past` and `state` for the next piece.
        """
        way = weights.ways[0]
        E, K = way.conv_weight.shape
        shape = len(hidden), *way.A_log.shape
        _check_state("state", state, shape, compute_dtype(hidden.dtype))
        _check_shape("past", past, (len(hidden), K - 1, E))
        if valid is None and not torch.is_grad_enabled() and self.fuses(hidden, weights):
            out, x, state = self.own.continued_mixer(hidden, weights, past, state)
        else:
            out, x, state = super().continued_mixer(hidden, weights, past, state, valid)
        return out, last_inputs(x, K), state

    def two_stream_mixer(
        self, noised: Tensor, clean: Tensor, weights: MixerWeights, block: int,
        valid: OptionalTensor, clean_output: bool,
    ) -> tuple[Tensor, OptionalTensor]:  # fmt: skip
        """A whole mixer of a noised and a clean stream in blocks: both directions in each block of
        the first, the forward one in the second.

        The forward direction of each noised block starts from the state and the last inputs of the
        clean stream before the block. Where this is one kernel, these states are never in memory.

        Args:
            noised, clean: (Bt, L, D).
            weights: of both directions; the second one is that of the noised stream in reverse.
            block: b, 1 to L positions.
            valid: as in `mixer`.
            clean_output: whether the output of the clean stream is needed; otherwise only its
                states are computed.

        Returns:
            (Bt, L, D) of the noised stream and, if it is needed, of the clean one.
        """
        _check_shape("clean", clean, noised.shape, " as noised")
        L = noised.shape[1]
        if isinstance(block, bool) or not isinstance(block, int) or not 1 <= block <= L:
            raise ValueError(
                f"block_size {block!r} does not fit sequences of {L} positions; expected an "
                f"integer from 1 to {L}"
            )
        given = noised, clean, weights, block, valid, clean_output
        if self.fuses(noised, weights, valid):
            return self.own.two_stream_mixer(*given)
        return super().two_stream_mixer(*given)

    def _cast(self, like: Tensor, *tensors: OptionalTensor) -> list[Any]:
        """The tensors in the types that the back end reads for inputs of the type of `like`."""
        wide = compute_dtype(like.dtype)
        kept = _NATIVE_TYPES if self.own.keeps_dtype else ()
        return [x if x is None or x.dtype in kept else x.to(wide) for x in tensors]

    def _rowwise(self, x: Tensor, *others: OptionalTensor) -> Backend:
        """The back end for an operation on single positions."""
        device = x.device.type
        if x.numel() and self.own.keeps_dtype:
            return self.own
        autocast = device != "meta" and torch.is_autocast_enabled(device)
        same = all(other is None or other.dtype == x.dtype for other in others)
        exact = same and not autocast and x.dtype in (torch.float32, torch.float64)
        return self.own if exact and x.numel() else SCANS["portable"]


def kernels(scan: str, x: Tensor, num_states: int = 0, states: bool = False) -> AnyType:
    """The back end for tensors like x; arguments and errors as `choose`."""
    return AnyType(SCANS[choose(scan, x.device.type, x.dtype, num_states, states)])


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
    (Bt, L, E), N = _check_rows("u", u), A.shape[-1]
    shapes = (Bt, L, E), (E, N), (Bt, L, N), (Bt, L, N), (E,), (E,)
    like = f" for u of shape {(Bt, L, E)} and {N} states"
    for name, x, shape in zip(ScanInputs._fields[1:], inputs[1:], shapes, strict=True):
        _check_shape(name, x, shape, like)
    _check_state("initial_state", initial_state, (len(u), *A.shape), compute_dtype(u.dtype))
    states = return_last_state or initial_state is not None
    walk = Walk(reverse, initial_state, states=return_last_state)
    y, _, last = kernels(scan, u, A.shape[1], states).scan(inputs, walk)
    return (y, last) if return_last_state else y


def last_inputs(x: Tensor, num_taps: int) -> Tensor:
    """The inputs (Bt, K - 1, E) that a convolution of K taps needs before the piece that follows x
    (Bt, L, E); zero before the first position."""
    missing = num_taps - 1 - x.shape[1]
    return F.pad(x, (0, 0, missing, 0)) if missing > 0 else x[:, -missing:]


def for_mixer(
    hidden: Tensor, weights: MixerWeights, valid: OptionalTensor, scan: str, states: bool = False
) -> AnyType:
    """The back end for a mixer whose operands (see `AnyType.mixer`) fit; `states` is as in
    `choose`."""
    (D, E), in_proj = weights.out_proj.shape, weights.in_proj.shape
    if _check_rows("hidden", hidden)[2] != D or in_proj != (2 * E, D):
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and in_proj {tuple(in_proj)} do not fit out_proj "
            f"{(D, E)}"
        )
    _check_shape("valid", valid, hidden.shape[:2], " as hidden")
    return kernels(scan, hidden, weights.ways[0].A_log.shape[1], states)


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
    path = cache_folder() / f"threads-{short_hash(f'{model}{os.cpu_count()} {most}')}"
    chosen = 0
    with suppress(OSError, ValueError):
        chosen = int(path.read_text())
    if not 1 <= chosen <= most:
        if load()[0] > _BUSY * most:
            return most
        chosen = trial(most)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_bytes(path, f"{chosen}\n".encode())
        if chosen < most:
            log.info(
                f"{chosen} of {most} threads, because more are not faster here (OMP_NUM_THREADS "
                f"sets another number; kept in {path})"
            )
    torch.set_num_threads(chosen)
    return chosen
