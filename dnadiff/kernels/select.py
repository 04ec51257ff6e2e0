"""Which implementation ("scan") computes: the fastest that works here, or the one that was asked for.

A scan is a module of this package with the seven operations of `facade`, `unsupported(device_type, dtype) -> reason` and
`detail() -> str`; a new one is that file and its row in `SCANS`. It may also have `scans`, `gated_scan`, `short_convs` and `add_norm`,
which are made of the others where it has none, `too_many_states(N) -> reason`, and `KEEPS_DTYPE` if it takes half precision as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dnadiff.kernels import composed, cpu, mamba_ssm, portable, reference, triton_scan

# The fastest first for each device; `auto` stops at portable, which runs anywhere.
SCANS = {"cpu": cpu, "triton": triton_scan, "mamba_ssm": mamba_ssm, "portable": portable, "reference": reference}

_log = logging.getLogger("dnadiff")


def check_scan(scan: str) -> str:
    """Give back the name of a scan, or refuse it before anything is computed.

    Raises:
        ValueError: if it is unknown.
        RuntimeError: if it is forced and cannot run on this machine at all.
    """
    if scan != "auto" and scan not in SCANS:
        raise ValueError(f"unknown scan {scan!r}; known are auto, {', '.join(SCANS)} (argument scan or variable DNADIFF_SCAN)")
    if scan != "auto" and (reason := _failure(scan)):
        raise RuntimeError(f"scan {scan!r} was asked for and cannot run: {reason}")
    return scan


def available_scans() -> dict[str, str]:
    """Every scan and why it cannot run on this machine; an empty reason means that it can."""
    return {name: _failure(name) for name in SCANS}


def chosen_scan(scan: str, device_type: str, dtype: torch.dtype) -> str:
    """The scan that runs where `scan` is asked for, perhaps "auto".

    Raises:
        ValueError: if it is unknown.
        RuntimeError: if it is forced and cannot run.
    """
    return choose(scan, device_type, compute_dtype(dtype))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that tensors of a type are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def part(module: ModuleType, name: str) -> Callable[..., Any]:
    """An operation of a scan that is made of its others unless it has its own."""
    return getattr(module, name, None) or partial(getattr(composed, name), module)


@torch.compiler.assume_constant_result  # the choice is made while tracing, so that a compiled model holds one operator
def choose(scan: str, device_type: str, dtype: torch.dtype) -> str:
    """The scan for tensors on a device, computed in float32 or float64; chosen once, with the reasons in the log."""
    forced = scan if scan != "auto" else os.environ.get("DNADIFF_SCAN") or "auto"
    if forced == "auto":
        return _fastest(device_type, dtype)
    check_scan(forced)
    if reason := SCANS[forced].unsupported(device_type, dtype):
        raise RuntimeError(f"scan {forced!r} was asked for and cannot run: {reason}")
    return forced


@torch.compiler.assume_constant_result
def choose_for(scan: str, device_type: str, dtype: torch.dtype, states: int) -> str:
    """`choose` for a recurrence of so many states a channel: `auto` leaves to portable what the fastest cannot hold.

    Raises:
        RuntimeError: if a scan that was asked for cannot.
    """
    name = choose(scan, device_type, dtype)
    limit = getattr(SCANS[name], "too_many_states", None)
    if limit is None or not (reason := limit(states)):
        return name
    if scan != "auto" or os.environ.get("DNADIFF_SCAN", "auto") not in ("", "auto"):
        raise RuntimeError(f"scan {name!r} was asked for and cannot run: {reason}; set scan=portable")
    _say_once(f"selective scan: portable instead of {name}, because of {reason}")
    return "portable"


@cache
def _say_once(message: str) -> None:
    _log.warning(message)


@cache
def _fastest(device_type: str, dtype: torch.dtype) -> str:
    for name, module in SCANS.items():
        if module.unsupported(device_type, dtype):
            continue
        if reason := _failure(name):
            _log.warning("selective scan: not %s, because %s", name, reason)
            continue
        _log.info("selective scan: %s (%s)", name, module.detail())
        return name
    raise AssertionError("portable supports everything")


@cache
def _failure(name: str) -> str:
    """Why a scan does not work, found by calling it on a tiny input and comparing with the portable one."""
    if name in ("portable", "reference"):
        return ""  # what the others are measured by; nothing in them depends on the machine
    # The current card belongs to the calling thread; a thread without one would open the first card, which another process may use.
    card = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    # So do autocast, inference mode, function transforms, a default device and whoever counts saved tensors: not to another thread.
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(_compare, SCANS[name], card).result()


def _compare(module: ModuleType, card: int) -> str:
    """How a scan differs from the portable one, or nothing."""
    device = f"cuda:{card}" if module.unsupported("cpu", torch.float32) else "cpu"
    if device != "cpu" and not torch.cuda.is_available():
        return "it needs a CUDA device, and PyTorch finds none"
    products = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # one by one: PyTorch has no word for two that differ
    before = [product.fp32_precision for product in products]
    try:
        for product in products:
            product.fp32_precision = "ieee"  # short products would tell nearly equal inputs apart
        ours, theirs = _probe(module, device), _probe(portable, device)
    except Exception as error:  # a missing driver, compiler or package: whatever it is, it is the reason
        return str(error) or repr(error)
    finally:
        for product, precision in zip(products, before, strict=True):
            product.fp32_precision = precision
    worst = torch.stack([(x - y).abs().max() / (1e-6 + y.abs().max()) for x, y in zip(ours, theirs, strict=True)]).max()
    return "" if worst < 1e-4 else f"its results differ from the portable scan's by {worst:.1e}"


def _probe(module: ModuleType, device: str) -> list[Tensor]:
    """Outputs and gradients of all operations, in both directions.

    33 positions are more than a chunk, 37 channels more than two of the widest vectors, 15 states and ranks 8 + 4 + 2 + 1: every
    loop of the C++ kernels over tiles and over what remains is run.
    """
    E, N = 37, 15
    wave = torch.arange(2 * 33 * E, dtype=torch.float32).view(2, 33, E).mul(0.7).sin().to(device)
    square = wave.flatten(0, 1)[:E] / 4
    B, C, A, D = wave[..., :N], wave[..., N : 2 * N], square[:, :N] - 0.5, wave[0, 0]
    results = []
    for reverse in (False, True):
        inputs = [x.clone().requires_grad_() for x in (wave, A, B, C, D, D.flip(0), square)]
        u, *scan_inputs, w = inputs
        first, gate = module.linear_halves(u, torch.cat([w, w.flip(0)]))
        x = module.rms_norm(module.short_conv(first, w[:, :4], D, reverse), scan_inputs[-1], 1e-2)
        delta = module.narrow_linear(gate[..., :N], w[:, :N])
        y = module.selective_scan(x, delta, *scan_inputs, reverse)
        gated = module.gated_sum(y, x if reverse else None, gate)
        out = module.linear(gated, w)
        results += [part.detach() for part in (first, gate, x, delta, y, gated, out)]
        results += torch.autograd.grad((out * wave.flip(2)).sum(), inputs)
    inputs = [x.clone().requires_grad_() for x in (wave, A, D)]
    u, A, D = inputs
    both = part(module, "short_convs")(u, (A[:, :4], D), (A[:, 4:8], D.flip(0)))
    ahead, back = ((x, gate.detach(), A, x[..., :N], x[..., N : 2 * N], D, None) for x in both)
    total, normed = part(module, "add_norm")(*part(module, "scans")(ahead, back), D, 1e-2)
    out = part(module, "gated_scan")(normed, total, A, B, C, D, D.flip(0), u)
    return [*results, total.detach(), normed.detach(), out.detach(), *torch.autograd.grad((out * wave.flip(2)).sum(), inputs)]
