"""The façade: checks shapes, chooses a scan, and calls it.

A scan is a module of this package with the seven operations below, `unsupported(device_type, dtype) -> reason` and `detail() -> str`;
a new one is that file and its row in `SCANS`. Names without a module, and why, are in `ABSENT`.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from dnadiff.kernels import cpu, mamba_ssm, portable, reference

# The fastest first for each device; `auto` stops at portable, which runs anywhere.
SCANS = {"cpu": cpu, "mamba_ssm": mamba_ssm, "portable": portable, "reference": reference}
ABSENT = {"triton": "this version has no Triton kernel; on CUDA there are mamba_ssm and portable"}

_log = logging.getLogger("dnadiff")


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    delta_bias: Tensor | None = None,
    *,
    reverse: bool = False,
    scan: str = "auto",
) -> Tensor:
    """The output of a selective state space model: Mamba, arXiv 2312.00752v2, section 3.6 and Algorithm 2 (S6).

    With step = softplus(delta + delta_bias), zero initial state and position by position

        h_l = exp(step_l A) h_{l-1} + step_l B_l u_l        y_l = sum_n C_l[n] h_l[:, n] + D u_l

    As in the published code, B enters as step * B, not by the exact zero-order hold of the paper's equation (4).
    A position with a very negative delta (-1e4) has step 0 and leaves the state as it is: padding.

    Args:
        u: (Bt, L, E) input.
        delta: (Bt, L, E) step size before the softplus.
        A: (E, N) negative decay rates.
        B: (Bt, L, N) input weights of the states.
        C: (Bt, L, N) output weights of the states.
        D: (E,) weight of the skip connection.
        delta_bias: (E,) added to delta.
        reverse: run from the last position to the first; h_{l-1} above becomes h_{l+1}.
        scan: a key of `SCANS`, or "auto": the environment variable DNADIFF_SCAN, else the fastest that works.

    Returns:
        (Bt, L, E) in u's dtype, computed in float64 if u is float64 and in float32 otherwise.

    Raises:
        ValueError: if shapes do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    (Bt, L, E), N = _three("u", u), A.shape[-1]
    expected = {"delta": (Bt, L, E), "A": (E, N), "B": (Bt, L, N), "C": (Bt, L, N), "D": (E,), "delta_bias": (E,)}
    given = {"delta": delta, "A": A, "B": B, "C": C, "D": D, "delta_bias": delta_bias}
    for name, x in given.items():
        if x is not None and x.shape != expected[name]:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {expected[name]} for u of shape {(Bt, L, E)} and {N} states")
    dtype = _compute_dtype(u)
    module = SCANS[_choose(scan, u.device.type, dtype)]
    if u.numel() == 0:
        return u * D.to(u.dtype)
    inputs = [None if x is None else x.to(dtype) for x in (u, *given.values())]
    return module.selective_scan(*inputs, reverse).to(u.dtype)


def short_conv(x: Tensor, weight: Tensor, bias: Tensor, *, reverse: bool = False, scan: str = "auto") -> Tensor:
    """silu of a depthwise causal convolution: a_l = bias + sum_k weight[:, k] x_{l-K+1+k}.

    Args:
        x: (Bt, L, E).
        weight: (E, K); the last tap meets the position itself.
        bias: (E,).
        reverse: the mirror image, which reads ahead: a_l = bias + sum_k weight[:, k] x_{l+K-1-k}.
        scan: as in `selective_scan`.

    Returns:
        (Bt, L, E) in x's dtype.

    Raises:
        ValueError: if shapes do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    E = _three("x", x)[2]
    if weight.dim() != 2 or weight.shape[0] != E or bias.shape != (E,):
        raise ValueError(f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} must be ({E}, K) and ({E},) for x {tuple(x.shape)}")
    dtype = _compute_dtype(x)
    module = SCANS[_choose(scan, x.device.type, dtype)]
    if x.numel() == 0:
        return x * bias.to(x.dtype)
    inputs = (x.to(dtype), weight.to(dtype), bias.to(dtype))
    return module.short_conv(*inputs, reverse).to(x.dtype)


def gated_sum(y: Tensor, y_rev: Tensor | None, z: Tensor, *, scan: str = "auto") -> Tensor:
    """(y + y_rev) silu(z): what a mixer hands to its output projection.

    Types narrower than float32, and autocast, are left to PyTorch, here and in the operations that follow, whichever scan is
    named; a name that is unknown or cannot run is refused all the same.

    Args:
        y: (Bt, L, E).
        y_rev: (Bt, L, E), or None for zero.
        z: (Bt, L, E).
        scan: as in `selective_scan`.

    Returns:
        (Bt, L, E).

    Raises:
        ValueError: if shapes do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    shape = _three("y", y)
    for name, x in (("y_rev", y_rev), ("z", z)):
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {tuple(shape)} as y")
    return _rowwise(scan, y, y_rev, z).gated_sum(y, y_rev, z)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, scan: str = "auto") -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (arXiv 1910.07467, equation 4).

    Args:
        x: (..., D).
        weight: (D,).
        eps: added to the mean square.
        scan: as in `selective_scan`.

    Returns:
        (..., D).

    Raises:
        ValueError: if shapes do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    if weight.dim() != 1 or x.shape[-1:] != weight.shape:
        raise ValueError(f"weight {tuple(weight.shape)} must be (D,) for x (..., D), which is {tuple(x.shape)}")
    return _rowwise(scan, x, weight).rms_norm(x, weight, eps)


def narrow_linear(x: Tensor, weight: Tensor, *, scan: str = "auto") -> Tensor:
    """x weight^T for few columns of x: the step sizes of a mixer from their low-rank form.

    Args:
        x: (Bt, L, R).
        weight: (E, R).
        scan: as in `selective_scan`.

    Returns:
        (Bt, L, E).

    Raises:
        ValueError: if shapes do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    if weight.dim() != 2 or _three("x", x)[2] != weight.shape[1]:
        raise ValueError(f"weight {tuple(weight.shape)} must be (E, {x.shape[2]}) for x {tuple(x.shape)}")
    return _rowwise(scan, x, weight).narrow_linear(x, weight)


def linear(x: Tensor, weight: Tensor, *, scan: str = "auto") -> Tensor:
    """x weight^T by the fastest library for it.

    Args:
        x: (..., R).
        weight: (E, R).
        scan: as in `selective_scan`.

    Returns:
        (..., E).

    Raises:
        ValueError: if shapes do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    _check_product(x, weight)
    return _rowwise(scan, x, weight).linear(x, weight)


def linear_halves(x: Tensor, weight: Tensor, *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """The first and the second half of the columns of x weight^T: what a mixer convolves, and its gate.

    Args:
        x: (..., R).
        weight: (2 E, R).
        scan: as in `selective_scan`.

    Returns:
        Two of (..., E).

    Raises:
        ValueError: if shapes do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    _check_product(x, weight)
    return _rowwise(scan, x, weight).linear_halves(x, weight)


def check_scan(scan: str) -> str:
    """Give back the name of a scan, or refuse it before anything is computed.

    Raises:
        ValueError: if it is unknown.
        RuntimeError: if it is forced and cannot run on this machine at all.
    """
    if scan != "auto" and scan not in SCANS and scan not in ABSENT:
        raise ValueError(f"unknown scan {scan!r}; known are auto, {', '.join([*SCANS, *ABSENT])} (argument scan or variable DNADIFF_SCAN)")
    if scan != "auto" and (reason := _failure(scan)):
        raise RuntimeError(f"scan {scan!r} was asked for and cannot run: {reason}")
    return scan


def available_scans() -> dict[str, str]:
    """Every scan and why it cannot run on this machine; an empty reason means that it can."""
    return {name: _failure(name) for name in SCANS} | ABSENT


def chosen_scan(scan: str, device_type: str, dtype: torch.dtype) -> str:
    """The scan that runs where `scan` is asked for, perhaps "auto".

    Raises:
        ValueError: if it is unknown.
        RuntimeError: if it is forced and cannot run.
    """
    return _choose(scan, device_type, _compute_dtype(torch.empty(0, dtype=dtype)))


def _three(name: str, x: Tensor) -> torch.Size:
    if x.dim() != 3:
        raise ValueError(f"{name} must be (batch, length, channels), got shape {tuple(x.shape)}")
    return x.shape


def _check_product(x: Tensor, weight: Tensor) -> None:
    if weight.dim() != 2 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"weight {tuple(weight.shape)} must be (E, R) for x (..., R), which is {tuple(x.shape)}")


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _rowwise(scan: str, x: Tensor, *others: Tensor | None) -> ModuleType:
    """The module for operations on single positions."""
    device, same = x.device.type, all(other is None or other.dtype == x.dtype for other in others)
    chosen = _choose(scan, device, _compute_dtype(x))
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if autocast or not same or x.dtype not in (torch.float32, torch.float64) or x.numel() == 0:
        return portable
    return SCANS[chosen]


@torch.compiler.assume_constant_result  # the choice is made while tracing, so that a compiled model holds one operator
def _choose(scan: str, device_type: str, dtype: torch.dtype) -> str:
    forced = scan if scan != "auto" else os.environ.get("DNADIFF_SCAN") or "auto"
    if forced == "auto":
        return _fastest(device_type, dtype)
    check_scan(forced)
    if reason := SCANS[forced].unsupported(device_type, dtype):
        raise RuntimeError(f"scan {forced!r} was asked for and cannot run: {reason}")
    return forced


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
    if name in ABSENT:
        return ABSENT[name]
    if name in ("portable", "reference"):
        return ""  # what the others are measured by; nothing in them depends on the machine
    # Autocast, inference mode, function transforms, a default device and whoever counts saved tensors belong to the calling thread.
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(_compare, SCANS[name]).result()


def _compare(module: ModuleType) -> str:
    """How a scan differs from the portable one, or nothing."""
    device = "cuda" if module.unsupported("cpu", torch.float32) else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        return "it needs a CUDA device, and PyTorch finds none"
    try:
        ours, theirs = _probe(module, device), _probe(portable, device)
    except Exception as error:  # a missing driver, compiler or package: whatever it is, it is the reason
        return str(error) or repr(error)
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
    return results
