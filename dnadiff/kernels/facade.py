"""The façade: checks shapes, chooses a scan by `select`, and calls it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from dnadiff.kernels import portable
from dnadiff.kernels.select import SCANS, choose, choose_for, compute_dtype, part

_KEPT = (torch.float32, torch.bfloat16, torch.float16)  # types that a scan with KEEPS_DTYPE takes as they are


class ScanInputs(NamedTuple):
    """What `selective_scan` takes, for those that take it more than once."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    delta_bias: Tensor | None = None


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
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    _check_scan_inputs(u, delta, A, B, C, D, delta_bias)
    module, prepare = _scan_module(scan, u, A)
    if u.numel() == 0:
        return u * D.to(u.dtype)
    return module.selective_scan(*prepare(u, delta, A, B, C, D, delta_bias), reverse).to(u.dtype)


def selective_scans(ahead: ScanInputs, back: ScanInputs, *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """`selective_scan` of `ahead` from the first position to the last, and of `back`, of the same shapes, from the last to the first.

    Raises:
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    for inputs in (ahead, back):
        _check_scan_inputs(*inputs)
    if back.u.shape != ahead.u.shape or back.A.shape != ahead.A.shape:
        raise ValueError(
            f"back has u {tuple(back.u.shape)} and A {tuple(back.A.shape)}, expected those of ahead: {tuple(ahead.u.shape)}, ..."
        )
    module, prepare = _scan_module(scan, ahead.u, ahead.A)
    if ahead.u.numel() == 0:
        return ahead.u * ahead.D.to(ahead.u.dtype), back.u * back.D.to(back.u.dtype)
    y, y_rev = part(module, "scans")(prepare(*ahead), prepare(*back))
    return y.to(ahead.u.dtype), y_rev.to(back.u.dtype)


def gated_scan(inputs: ScanInputs, z: Tensor, *, scan: str = "auto") -> Tensor:
    """`selective_scan` forwards, times silu(z), (Bt, L, E): the mixer of one direction in front of its output projection.

    Raises:
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    u = inputs.u
    _check_scan_inputs(*inputs)
    module, prepare = _scan_module(scan, u, inputs.A)
    if u.numel() == 0 or not hasattr(module, "gated_scan"):
        return gated_sum(selective_scan(*inputs, scan=scan), None, z, scan=scan)
    if z.shape != u.shape:
        raise ValueError(f"z has shape {tuple(z.shape)}, expected {tuple(u.shape)} as u")
    return module.gated_scan(*prepare(*inputs), z).to(u.dtype)


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
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    E = _three("x", x)[2]
    if weight.dim() != 2 or weight.shape[0] != E or bias.shape != (E,):
        raise ValueError(f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} must be ({E}, K) and ({E},) for x {tuple(x.shape)}")
    module, prepare = _module(scan, x)
    if x.numel() == 0:
        return x * bias.to(x.dtype)
    return module.short_conv(*prepare(x, weight, bias), reverse).to(x.dtype)


def short_convs(x: Tensor, ahead: tuple[Tensor, Tensor], back: tuple[Tensor, Tensor], *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """`short_conv` of one x forwards and backwards, each with its own weight and bias.

    Raises:
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    E = _three("x", x)[2]
    for weight, bias in (ahead, back):
        if weight.dim() != 2 or weight.shape[0] != E or bias.shape != (E,):
            raise ValueError(
                f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} must be ({E}, K) and ({E},) for x {tuple(x.shape)}"
            )
    module, prepare = _module(scan, x)
    if x.numel() == 0:
        return x * ahead[1].to(x.dtype), x * back[1].to(x.dtype)
    y, y_rev = part(module, "short_convs")(*prepare(x), tuple(prepare(*ahead)), tuple(prepare(*back)))
    return y.to(x.dtype), y_rev.to(x.dtype)


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
        ValueError: if shapes or types do not fit, or `scan` is unknown.
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
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    if weight.dim() != 1 or x.shape[-1:] != weight.shape:
        raise ValueError(f"weight {tuple(weight.shape)} must be (D,) for x (..., D), which is {tuple(x.shape)}")
    return _rowwise(scan, x, weight).rms_norm(x, weight, eps)


def add_norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float, *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """A residual stream with what its last branch adds to it, and that in front of the next: s = x + added, and `rms_norm` of s.

    Args:
        x: (..., D).
        added: (..., D), perhaps in a narrower type; None adds nothing.
        weight: (D,).
        eps: added to the mean square.
        scan: as in `selective_scan`.

    Returns:
        s in the wider type of the two, and the norm, computed in that type and returned in weight's (in autocast's, where the scan has a
        kernel for both steps).

    Raises:
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    if weight.dim() != 1 or x.shape[-1:] != weight.shape or (added is not None and added.shape != x.shape):
        other = "" if added is None else f", added to {tuple(added.shape)}"
        raise ValueError(f"weight {tuple(weight.shape)} must be (D,) for x (..., D), which is {tuple(x.shape)}{other}")
    module = _rowwise(scan, x, weight)
    if not hasattr(module, "add_norm"):
        total = x if added is None else x + added
        return total, rms_norm(total, weight.to(total.dtype), eps, scan=scan).to(weight.dtype)
    return module.add_norm(x, added, weight, eps)


def narrow_linear(x: Tensor, weight: Tensor, *, scan: str = "auto") -> Tensor:
    """x weight^T for few columns of x: the step sizes of a mixer from their low-rank form.

    Args:
        x: (Bt, L, R).
        weight: (E, R).
        scan: as in `selective_scan`.

    Returns:
        (Bt, L, E).

    Raises:
        ValueError: if shapes or types do not fit, or `scan` is unknown.
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
        ValueError: if shapes or types do not fit, or `scan` is unknown.
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
        ValueError: if shapes or types do not fit, or `scan` is unknown.
        RuntimeError: if the scan asked for cannot run here.
    """
    _check_product(x, weight)
    return _rowwise(scan, x, weight).linear_halves(x, weight)


def _three(name: str, x: Tensor) -> torch.Size:
    if x.dim() != 3:
        raise ValueError(f"{name} must be (batch, length, channels), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"{name} has type {x.dtype}, expected float32, bfloat16, float16 or float64")
    return x.shape


def _check_product(x: Tensor, weight: Tensor) -> None:
    if weight.dim() != 2 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"weight {tuple(weight.shape)} must be (E, R) for x (..., R), which is {tuple(x.shape)}")


def _check_scan_inputs(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None) -> None:
    (Bt, L, E), N = _three("u", u), A.shape[-1]
    expected = {"delta": (Bt, L, E), "A": (E, N), "B": (Bt, L, N), "C": (Bt, L, N), "D": (E,), "delta_bias": (E,)}
    given = {"delta": delta, "A": A, "B": B, "C": C, "D": D, "delta_bias": delta_bias}
    for name, x in given.items():
        if x is not None and x.shape != expected[name]:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {expected[name]} for u of shape {(Bt, L, E)} and {N} states")


def _prepared(name: str, x: Tensor) -> tuple[ModuleType, Callable[..., list[Tensor | None]]]:
    """A scan and how its inputs are converted: to what is computed in, unless it reads narrower types itself."""
    module, dtype = SCANS[name], compute_dtype(x.dtype)
    if getattr(module, "KEEPS_DTYPE", False):
        return module, lambda *inputs: [x if x is None or x.dtype in _KEPT else x.to(dtype) for x in inputs]
    return module, lambda *inputs: [None if x is None else x.to(dtype) for x in inputs]


def _module(scan: str, x: Tensor) -> tuple[ModuleType, Callable[..., list[Tensor | None]]]:
    return _prepared(choose(scan, x.device.type, compute_dtype(x.dtype)), x)


def _scan_module(scan: str, u: Tensor, A: Tensor) -> tuple[ModuleType, Callable[..., list[Tensor | None]]]:
    return _prepared(choose_for(scan, u.device.type, compute_dtype(u.dtype), A.shape[-1]), u)


def _rowwise(scan: str, x: Tensor, *others: Tensor | None) -> ModuleType:
    """The module for operations on single positions."""
    device, same = x.device.type, all(other is None or other.dtype == x.dtype for other in others)
    module = SCANS[choose(scan, device, compute_dtype(x.dtype))]
    if getattr(module, "KEEPS_DTYPE", False):
        return portable if x.numel() == 0 else module
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if autocast or not same or x.dtype not in (torch.float32, torch.float64) or x.numel() == 0:
        return portable
    return module
