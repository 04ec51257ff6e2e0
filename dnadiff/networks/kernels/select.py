"""Which back end ("scan") computes: the fastest that works here, or the one that was asked for."""

from __future__ import annotations

import logging
import math
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from dnadiff.networks.kernels.backend import Backend, MixerWay, ScanInputs
from dnadiff.networks.kernels.cpu import CppBackend
from dnadiff.networks.kernels.native import constant_in_graphs
from dnadiff.networks.kernels.portable import MambaSSMBackend, PortableBackend, ReferenceBackend
from dnadiff.networks.kernels.triton_rowwise import TritonBackend

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

_log = logging.getLogger("dnadiff")


def check_scan(scan: str) -> str:
    """The name of a scan, checked before anything is computed.

    Raises:
        ValueError: if it is unknown.
        RuntimeError: if it is not "auto" and cannot run on this machine.
    """
    if scan == AUTO:
        return scan
    if not isinstance(scan, str) or scan not in SCANS:
        raise ValueError(
            f"unknown scan {scan!r}; known are auto, {', '.join(SCANS)} (argument scan or variable "
            "DNADIFF_SCAN)"
        )
    if reason := _failure(scan):
        raise _cannot_run(scan, reason)
    return scan


def check_states(scan: str) -> None:
    """Raise RuntimeError if a scan that was asked for can neither start from states nor return
    them, as blocks need."""
    requested = _requested(scan)
    if requested in SCANS and (reason := SCANS[requested].lacks_states()):
        raise _cannot_run(requested, f"{reason}; set scan=portable")


def _cannot_run(scan: str, reason: str) -> RuntimeError:
    return RuntimeError(f"scan {scan!r} was asked for and cannot run: {reason}")


def available_scans() -> dict[str, str]:
    """Every scan with the reason why it cannot run on this machine; an empty string if it can."""
    return {name: _failure(name) for name in SCANS}


def chosen_scan(scan: str, device_type: str, dtype: torch.dtype) -> str:
    """The scan that runs if `scan`, perhaps "auto", is requested; errors as `check_scan`."""
    return choose(scan, device_type, compute_dtype(dtype))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which tensors of this type are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def cast_inputs(backend: Backend, inputs: ScanInputs) -> ScanInputs:
    """The inputs in the types that a back end reads."""
    dtype = compute_dtype(inputs.u.dtype)
    u, delta, A, B, C, D = (
        backend.cast(x, dtype)
        for x in (inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C, inputs.D)
    )
    return ScanInputs(
        u,
        delta,
        A,
        B,
        C,
        D,
        None if inputs.delta_bias is None else backend.cast(inputs.delta_bias, dtype),
    )


@constant_in_graphs  # chosen while tracing, so that a compiled model contains one operator
def choose(scan: str, device_type: str, dtype: torch.dtype) -> str:
    """The scan for tensors on a device, computed in float32 or float64; chosen once, with the
    reasons in the log."""
    requested = _requested(scan)
    if requested == AUTO:
        return _fastest(device_type, dtype)
    check_scan(requested)
    if reason := SCANS[requested].unsupported(device_type, dtype):
        raise _cannot_run(requested, reason)
    return requested


@constant_in_graphs
def choose_for(
    scan: str, device_type: str, dtype: torch.dtype, num_states: int, states: bool = False
) -> str:
    """`choose` for a recurrence with this many states per channel; `auto` falls back to portable if
    the fastest cannot compute it.

    `states`: a scan that starts from given states, or returns states.
    """
    name = choose(scan, device_type, dtype)
    if not (
        reason := SCANS[name].too_many_states(num_states)
        or (SCANS[name].lacks_states() if states else "")
    ):
        return name
    if _requested(scan) != AUTO:
        raise _cannot_run(name, f"{reason}; set scan=portable")
    _warn_once(f"selective scan: portable instead of {name}, because of {reason}")
    return "portable"


def _requested(scan: str) -> str:
    return scan if scan != AUTO else os.environ.get("DNADIFF_SCAN") or AUTO


def triton_allowed() -> bool:
    """Whether DNADIFF_SCAN leaves the choice of kernels open, or asks for Triton."""
    return _requested(AUTO) in (AUTO, "triton")


@cache
def _warn_once(message: str) -> None:
    _log.warning(message)


@cache
def _fastest(device_type: str, dtype: torch.dtype) -> str:
    for name, backend in SCANS.items():
        if backend.unsupported(device_type, dtype):
            continue
        if reason := _failure(name):
            _log.warning("selective scan: not %s, because %s", name, reason)
            continue
        _log.info("selective scan: %s (%s)", name, backend.description())
        return name
    raise AssertionError("portable supports everything")


@cache
def _failure(name: str) -> str:
    """Why a scan does not work, found by running it on a tiny input and comparing it with the
    portable one."""
    if not SCANS[name].needs_probe:
        return ""
    # A new thread would open the first GPU, which another process may use: pass the calling
    # thread's current GPU on.
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    _require_memory(_FOR_A_THREAD)
    # Autocast, inference mode, function transforms, the default device and hooks on saved tensors
    # belong to a thread: use a clean one.
    with ThreadPoolExecutor(1) as clean_thread:
        return clean_thread.submit(_compare, SCANS[name], gpu).result()


def _require_memory(size: int) -> None:
    """MemoryError unless that many bytes can be reserved: Python waits forever for a thread that
    finds no memory as it starts."""
    try:
        mmap.mmap(-1, size).close()
    except OSError as error:
        raise MemoryError(f"fewer than {size >> 20} MB of memory are left") from error


def _compare(backend: Backend, gpu: int) -> str:
    """How a back end differs from the portable one; an empty string if it does not."""
    device = (
        torch.device("cuda", gpu)
        if backend.unsupported("cpu", torch.float32)
        else torch.device("cpu")
    )
    if device.index is not None and not torch.cuda.is_available():
        return "it needs a CUDA device, and PyTorch finds none"
    # No call of PyTorch saves both if they differ.
    cpu = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # missing in the stubs
    products = (torch.backends.cuda.matmul, cpu)
    before = [product.fp32_precision for product in products]
    try:
        for product in products:
            product.fp32_precision = (
                "ieee"  # with TF32 or bfloat16 products, rounding alone would exceed the tolerance
            )
        ours, theirs = (
            _probe(each, device, backend.fused_two_streams) for each in (backend, SCANS["portable"])
        )
    except (
        Exception
    ) as error:  # a missing driver, compiler or package: whatever it is, it is the reason
        if _lacks_memory(
            error
        ):  # another scan would compute slightly different numbers, much more slowly
            raise MemoryError(
                f"there is no memory left for the kernels of {type(backend).__name__} ({error})"
            ) from error
        return str(error) or repr(error)
    finally:
        for product, precision in zip(products, before, strict=True):
            product.fp32_precision = precision
    worst = torch.stack(
        [(x - y).abs().max() / (1e-6 + y.abs().max()) for x, y in zip(ours, theirs, strict=True)]
    ).max()
    return "" if worst < 1e-4 else f"its results differ from the portable scan's by {worst:.1e}"


def _lacks_memory(error: Exception) -> bool:
    """Whether an allocation failed; PyTorch and the dynamic linker say so in words alone."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("bad_alloc", "allocate memory", "failed to map segment")
    )


def _probe(backend: Backend, device: torch.device, streams: bool) -> list[Tensor]:
    """Outputs and gradients of all operations, in both directions; with `streams` also those of a
    mixer of two streams.

    33 positions exceed a chunk, 37 channels exceed two of the widest vectors, and 15 = 8 + 4 + 2 +
    1 states and ranks: every loop of the C++ kernels over tiles and over remainders runs.
    """
    E, N = 37, 15
    wave = torch.arange(2 * 33 * E, dtype=torch.float32).view(2, 33, E).mul(0.7).sin().to(device)
    square = wave.flatten(0, 1)[:E] / 4
    B, C, A, D = wave[..., :N], wave[..., N : 2 * N], square[:, :N] - 0.5, wave[0, 0]
    results: list[Tensor] = []
    for reverse in (False, True):
        inputs = [x.clone().requires_grad_() for x in (wave, A, B, C, D, D.flip(0), square)]
        u, *scan_inputs, w = inputs
        first, gate = backend.linear_halves(u, torch.cat([w, w.flip(0)]))
        x = backend.rms_norm(backend.short_conv(first, w[:, :4], D, reverse), scan_inputs[-1], 1e-2)
        delta = backend.narrow_linear(gate[..., :N], w[:, :N])
        y = backend.selective_scan(ScanInputs(x, delta, *scan_inputs), reverse)
        gated = backend.gated_sum(y, x if reverse else None, gate)
        out = backend.linear(gated, w)
        results += [part.detach() for part in (first, gate, x, delta, y, gated, out)]
        results += torch.autograd.grad((out * wave.flip(2)).sum(), inputs)
    inputs = [x.clone().requires_grad_() for x in (wave, A, D)]
    u, A, D = inputs
    both = backend.short_convs(u, (A[:, :4], D), (A[:, 4:8], D.flip(0)))
    forward, backward = (
        ScanInputs(x, gate.detach(), A, x[..., :N], x[..., N : 2 * N], D) for x in both
    )
    total, normed = backend.add_norm(*backend.scans(forward, backward), D, 1e-2)
    out = backend.gated_scan(ScanInputs(normed, total, A, B, C, D, D.flip(0)), u)
    results += [
        total.detach(),
        normed.detach(),
        out.detach(),
        *torch.autograd.grad((out * wave.flip(2)).sum(), inputs),
    ]
    results += [part for num_ways in (1, 2) for part in _probe_mixer(backend, device, num_ways)]
    return results + _probe_two_streams(backend, device) if streams else results


def _probe_mixer(backend: Backend, device: torch.device, num_ways: int) -> list[Tensor]:
    """Output and gradients of a mixer, with padding in one sequence.

    57 = 48 + 6 + 2 + 1 positions, and products with 70 = 4 16 + 6, 37, 31 and 7 columns: every loop
    over tiles and remainders runs.
    """
    hidden, _, in_proj, out_proj, valid, ways = _mixer_inputs(device, num_ways)
    return _results(
        [backend.mixer(hidden, in_proj, out_proj, ways, valid)], [hidden, in_proj, out_proj], ways
    )


def _probe_two_streams(backend: Backend, device: torch.device) -> list[Tensor]:
    """The same for two streams in blocks of 5 positions, which begin anywhere in a chunk."""
    noised, clean, in_proj, out_proj, valid, ways = _mixer_inputs(device, 2)
    outputs = backend.two_stream_mixer(noised, clean, in_proj, out_proj, ways, 5, valid, True)
    return _results([x for x in outputs if x is not None], [noised, clean, in_proj, out_proj], ways)


def _mixer_inputs(
    device: torch.device, num_ways: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[MixerWay]]:
    L, D, E, R, N = 57, 37, 70, 7, 12
    ways = [
        MixerWay(
            *(_wave(device, *s) for s in ((E, 4), (E,), (R + 2 * N, E), (E, R), (E,), (E, N), (E,)))
        )
        for _ in range(num_ways)
    ]
    valid = torch.ones(2, L, dtype=torch.bool, device=device)
    valid[1, 50:] = False
    clean = _wave(device, 2, L, D).detach().flip(1).requires_grad_()
    return _wave(device, 2, L, D), clean, _wave(device, 2 * E, D), _wave(device, D, E), valid, ways


def _results(outputs: list[Tensor], inputs: list[Tensor], ways: list[MixerWay]) -> list[Tensor]:
    total = torch.stack(
        [(out * _wave(out.device, *out.shape).detach()).sum() for out in outputs]
    ).sum()
    return [
        *(out.detach() for out in outputs),
        *torch.autograd.grad(total, [*inputs, *(weight for way in ways for weight in way)]),
    ]


def _wave(device: torch.device, *shape: int) -> Tensor:
    count = torch.arange(math.prod(shape), dtype=torch.float32).add(sum(shape))
    return count.mul(0.7).sin().view(shape).to(device).div(4).requires_grad_()
