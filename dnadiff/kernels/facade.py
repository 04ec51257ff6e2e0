"""The facade: checks shapes and types, then calls the back end that `select` chooses.

Every function takes `scan`, a key of `dnadiff.kernels.SCANS` or "auto": the environment variable DNADIFF_SCAN, else the fastest back end
that works. Every function raises ValueError if shapes or types do not fit or `scan` is unknown, and RuntimeError if the requested
`scan` cannot run on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dnadiff.kernels.backend import Backend, MixerWay, ScanInputs
from dnadiff.kernels.select import SCANS, choose, choose_for, compute_dtype


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None = None,
    *, reverse: bool = False, scan: str = "auto",
) -> Tensor:  # fmt: skip
    """The output of a selective state space model: Mamba, arXiv 2312.00752v2, section 3.6 and Algorithm 2 (S6).

    With step = softplus(delta + delta_bias), zero initial state and position by position

        h_l = exp(step_l A) h_{l-1} + step_l B_l u_l        y_l = sum_n C_l[n] h_l[:, n] + D u_l

    As in the published code, B enters as step * B, not by the exact zero-order hold of the paper's equation (4).
    A position with a very negative delta (-1e4) has step 0 and leaves the state unchanged: padding.

    Args:
        u: (Bt, L, E) input.
        delta: (Bt, L, E) step size before the softplus.
        A: (E, N) negative decay rates.
        B: (Bt, L, N) input weights of the states.
        C: (Bt, L, N) output weights of the states.
        D: (E,) weight of the skip connection.
        delta_bias: (E,) added to delta.
        reverse: run from the last position to the first; h_{l-1} above becomes h_{l+1}.

    Returns:
        (Bt, L, E) in u's dtype, computed in float64 if u is float64 and in float32 otherwise.
    """
    inputs = ScanInputs(u, delta, A, B, C, D, delta_bias)
    _check_scan_inputs(inputs)
    backend = _scan_backend(scan, u, A)
    if u.numel() == 0:
        return u * D.to(u.dtype)
    return backend.selective_scan(_cast(backend, inputs), reverse).to(u.dtype)


def selective_scans(forward: ScanInputs, backward: ScanInputs, *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """`selective_scan` of `forward` from the first position to the last, and of `backward`, of the same shapes, in reverse."""
    for inputs in (forward, backward):
        _check_scan_inputs(inputs)
    if backward.u.shape != forward.u.shape or backward.A.shape != forward.A.shape:
        raise ValueError(
            f"backward has u {tuple(backward.u.shape)} and A {tuple(backward.A.shape)}, "
            f"expected the shapes of forward: {tuple(forward.u.shape)} and {tuple(forward.A.shape)}"
        )
    backend = _scan_backend(scan, forward.u, forward.A)
    if forward.u.numel() == 0:
        return forward.u * forward.D.to(forward.u.dtype), backward.u * backward.D.to(backward.u.dtype)
    y, y_rev = backend.scans(_cast(backend, forward), _cast(backend, backward))
    return y.to(forward.u.dtype), y_rev.to(backward.u.dtype)


def gated_scan(inputs: ScanInputs, z: Tensor, *, scan: str = "auto") -> Tensor:
    """`selective_scan` from the first position to the last, times silu(z), (Bt, L, E): a unidirectional mixer without its projections."""
    u = inputs.u
    _check_scan_inputs(inputs)
    backend = _scan_backend(scan, u, inputs.A)
    if u.numel() == 0 or not backend.fused_gated_scan:
        return gated_sum(selective_scan(*inputs, scan=scan), None, z, scan=scan)
    if z.shape != u.shape:
        raise ValueError(f"z has shape {tuple(z.shape)}, expected {tuple(u.shape)} as u")
    return backend.gated_scan(_cast(backend, inputs), backend.cast(z, compute_dtype(u.dtype))).to(u.dtype)


def short_conv(x: Tensor, weight: Tensor, bias: Tensor, *, reverse: bool = False, scan: str = "auto") -> Tensor:
    """silu of a depthwise causal convolution: a_l = bias + sum_k weight[:, k] x_{l-K+1+k}.

    Args:
        x: (Bt, L, E).
        weight: (E, K); the last tap is that of the position itself.
        bias: (E,).
        reverse: the mirror image, which reads later positions: a_l = bias + sum_k weight[:, k] x_{l+K-1-k}.

    Returns:
        (Bt, L, E) in x's dtype.
    """
    _check_filter(x, weight, bias)
    backend, dtype = _backend(scan, x), compute_dtype(x.dtype)
    if x.numel() == 0:
        return x * bias.to(x.dtype)
    return backend.short_conv(backend.cast(x, dtype), backend.cast(weight, dtype), backend.cast(bias, dtype), reverse).to(x.dtype)


def short_convs(x: Tensor, forward: tuple[Tensor, Tensor], backward: tuple[Tensor, Tensor], *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """`short_conv` of one x in both directions, each with its weight (E, K) and bias (E,)."""
    for weight, bias in (forward, backward):
        _check_filter(x, weight, bias)
    backend, dtype = _backend(scan, x), compute_dtype(x.dtype)
    if x.numel() == 0:
        return x * forward[1].to(x.dtype), x * backward[1].to(x.dtype)
    filters = [(backend.cast(weight, dtype), backend.cast(bias, dtype)) for weight, bias in (forward, backward)]
    y, y_rev = backend.short_convs(backend.cast(x, dtype), *filters)
    return y.to(x.dtype), y_rev.to(x.dtype)


def gated_sum(y: Tensor, y_rev: Tensor | None, z: Tensor, *, scan: str = "auto") -> Tensor:
    """(y + y_rev) silu(z), all (Bt, L, E): the input of a mixer's output projection. If y_rev is None, it is zero.

    Here and in the operations below, half precision and autocast are left to PyTorch unless the back end reads half precision itself.
    """
    shape = _three("y", y)
    for name, x in (("y_rev", y_rev), ("z", z)):
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {tuple(shape)} as y")
    return _rowwise(scan, y, y_rev, z).gated_sum(y, y_rev, z)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, scan: str = "auto") -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight of x (..., D) over the last axis, weight (D,) (arXiv 1910.07467, equation 4)."""
    _check_norm(x, None, weight)
    return _rowwise(scan, x, weight).rms_norm(x, weight, eps)


def add_norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float, *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """The residual stream after a branch is added, s = x + added, and `rms_norm` of s, which is the input of the next branch.

    Args:
        x: (..., D).
        added: (..., D), perhaps in a narrower type; None adds nothing.
        weight: (D,).
        eps: added to the mean square.

    Returns:
        s in the wider type of the two, and its norm. The norm is computed in that type and returned in weight's type, or in autocast's type
        if the back end has one kernel for both steps.
    """
    _check_norm(x, added, weight)
    backend = _rowwise(scan, x, added, weight)
    if not backend.fused_add_norm:
        total = x if added is None else x + added
        return total, rms_norm(total, weight.to(total.dtype), eps, scan=scan).to(weight.dtype)
    return backend.add_norm(x, added, weight, eps)


def narrow_linear(x: Tensor, weight: Tensor, *, scan: str = "auto") -> Tensor:
    """x weight^T, (Bt, L, E), of x (Bt, L, R) with few columns and weight (E, R): step sizes from their low-rank form."""
    if weight.dim() != 2 or _three("x", x)[2] != weight.shape[1]:
        raise ValueError(f"weight {tuple(weight.shape)} must be (E, {x.shape[2]}) for x {tuple(x.shape)}")
    return _rowwise(scan, x, weight).narrow_linear(x, weight)


def linear(x: Tensor, weight: Tensor, *, scan: str = "auto") -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R), by the fastest library for it."""
    _check_product(x, weight)
    return _rowwise(scan, x, weight).linear(x, weight)


def linear_halves(x: Tensor, weight: Tensor, *, scan: str = "auto") -> tuple[Tensor, Tensor]:
    """Both halves of the columns of x weight^T, each (..., E), of x (..., R) and weight (2 E, R): a mixer's input and its gate."""
    _check_product(x, weight)
    return _rowwise(scan, x, weight).linear_halves(x, weight)


def fuses_mixer(hidden: Tensor, in_proj: Tensor, ways: Sequence[MixerWay], valid: Tensor | None = None, *, scan: str = "auto") -> bool:
    """Whether `mixer` can compute this; otherwise the caller combines the operations above."""
    same = all(weight.dtype == torch.float32 and weight.device == hidden.device for weight in (hidden, in_proj, *ways[0], *ways[-1]))
    if (
        not same
        or hidden.numel() == 0
        or (valid is not None and valid.dtype != torch.bool)
        or torch.is_autocast_enabled(hidden.device.type)
    ):
        return False
    return _scan_backend(scan, hidden, ways[0].A_log).fuses_mixer(hidden, in_proj, ways)


def mixer(
    hidden: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay], valid: Tensor | None = None, *, scan: str = "auto"
) -> Tensor:
    """A whole mixer in one call, for back ends with `fuses_mixer`: projections, convolutions, scans and gate.

    Args:
        hidden: (Bt, L, D).
        in_proj: (2 E, D), the scan's input and the gate.
        out_proj: (D, E).
        ways: the direction from the first position to the last, and perhaps that in reverse, whose outputs are added.
        valid: (Bt, L) bool, False on padding, which has no influence on other positions.

    Returns:
        (Bt, L, D).
    """
    (D, E), N = out_proj.shape, ways[0].A_log.shape[1]
    R, K = ways[0].dt_weight.shape[1], ways[0].conv_weight.shape[1]
    expected = ((E, K), (E,), (R + 2 * N, E), (E, R), (E,), (E, N), (E,))
    shapes = [tuple(tuple(weight.shape) for weight in way) for way in ways]
    if _three("hidden", hidden)[2] != D or in_proj.shape != (2 * E, D) or any(shape != expected for shape in shapes):
        raise ValueError(f"hidden {tuple(hidden.shape)}, in_proj {tuple(in_proj.shape)} and ways {shapes} do not fit out_proj {(D, E)}")
    if valid is not None and valid.shape != hidden.shape[:2]:
        raise ValueError(f"valid has shape {tuple(valid.shape)}, expected {tuple(hidden.shape[:2])} as hidden")
    return _scan_backend(scan, hidden, ways[0].A_log).mixer(hidden, in_proj, out_proj, ways, valid)


def _three(name: str, x: Tensor) -> torch.Size:
    if x.dim() != 3:
        raise ValueError(f"{name} must be (batch, length, channels), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"{name} has type {x.dtype}, expected float32, bfloat16, float16 or float64")
    return x.shape


def _check_product(x: Tensor, weight: Tensor) -> None:
    if weight.dim() != 2 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"weight {tuple(weight.shape)} must be (E, R) for x (..., R), which is {tuple(x.shape)}")


def _check_filter(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    E = _three("x", x)[2]
    if weight.dim() != 2 or weight.shape[0] != E or bias.shape != (E,):
        raise ValueError(f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} must be ({E}, K) and ({E},) for x {tuple(x.shape)}")


def _check_norm(x: Tensor, added: Tensor | None, weight: Tensor) -> None:
    if weight.dim() != 1 or x.shape[-1:] != weight.shape or (added is not None and added.shape != x.shape):
        other = "" if added is None else f", added to {tuple(added.shape)}"
        raise ValueError(f"weight {tuple(weight.shape)} must be (D,) for x (..., D), which is {tuple(x.shape)}{other}")


def _check_scan_inputs(inputs: ScanInputs) -> None:
    (Bt, L, E), N = _three("u", inputs.u), inputs.A.shape[-1]
    expected = {"delta": (Bt, L, E), "A": (E, N), "B": (Bt, L, N), "C": (Bt, L, N), "D": (E,), "delta_bias": (E,)}
    for (name, shape), x in zip(expected.items(), inputs[1:], strict=True):
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape} for u of shape {(Bt, L, E)} and {N} states")


def _cast(backend: Backend, inputs: ScanInputs) -> ScanInputs:
    dtype = compute_dtype(inputs.u.dtype)
    u, delta, A, B, C, D = (backend.cast(x, dtype) for x in (inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C, inputs.D))
    return ScanInputs(u, delta, A, B, C, D, None if inputs.delta_bias is None else backend.cast(inputs.delta_bias, dtype))


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
