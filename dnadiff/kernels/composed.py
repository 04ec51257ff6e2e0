"""Operations made of a scan's others, for scans without kernels of their own for them; each takes the scan's module first."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor


def short_convs(module: ModuleType, x: Tensor, ahead: tuple[Tensor, Tensor], back: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """See `dnadiff.kernels.short_convs`."""
    return module.short_conv(x, *ahead, False), module.short_conv(x, *back, True)


def scans(module: ModuleType, ahead: tuple[Tensor | None, ...], back: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
    """See `dnadiff.kernels.selective_scans`."""
    return module.selective_scan(*ahead, False), module.selective_scan(*back, True)


def gated_scan(module: ModuleType, *inputs: Tensor | None) -> Tensor:
    """See `dnadiff.kernels.gated_scan`; the last of the inputs is the gate."""
    *inputs, z = inputs
    return module.gated_sum(module.selective_scan(*inputs, False), None, z)


def add_norm(module: ModuleType, x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `dnadiff.kernels.add_norm`."""
    total = x if added is None else x + added
    return total, module.rms_norm(total, weight.to(total.dtype), eps).to(weight.dtype)
