"""The Triton back end for CUDA. Half precision is read and written unchanged and is float32 inside
the kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from typing_extensions import override

from dnadiff.kernels import triton_rowwise, triton_scan
from dnadiff.kernels.backend import ScanInputs, ScanStates
from dnadiff.kernels.portable import TorchOperations
from dnadiff.kernels.triton_support import interpreted

MAX_STATES = 64


class TritonBackend(TorchOperations):
    """float32, bfloat16 or float16 tensors on a CUDA device. Products are PyTorch's."""

    keeps_dtype = True
    fused_gated_scan = True
    fused_add_norm = True
    device_type = "cuda"
    supports_float64 = False

    @override
    def unsupported(self, device_type: str, dtype: torch.dtype) -> str:
        return super().unsupported(self.device_type if interpreted() else device_type, dtype)

    @override
    def too_many_states(self, num_states: int) -> str:
        return (
            f"{num_states} states a channel; this kernel holds at most {MAX_STATES} in registers"
            if num_states > MAX_STATES
            else ""
        )

    @override
    def description(self) -> str:
        import triton

        return f"Triton {triton.__version__}" + (", interpreted" if interpreted() else "")

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        return _scan([inputs], None, reverse)[0]

    @override
    def carried_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
    ) -> ScanStates:
        _refuse_forward_mode()
        return triton_scan.carried_scan(inputs, reverse, initial, block)

    @override
    def restarted_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int
    ) -> Tensor:
        _refuse_forward_mode()
        return triton_scan.restarted_scan(inputs, reverse, initial, block)

    @override
    def gated_scan(self, inputs: ScanInputs, z: Tensor) -> Tensor:
        return _scan([inputs], z, False)[0]  # the scan's output is never written without its gate

    @override
    def scans(self, forward: ScanInputs, backward: ScanInputs) -> tuple[Tensor, Tensor]:
        pairs = zip((*forward[:2], *forward[3:5]), (*backward[:2], *backward[3:5]), strict=True)
        if any(
            x.dtype != other.dtype for x, other in pairs
        ):  # one kernel reads the same types in both directions
            return super().scans(forward, backward)
        y, y_rev = _scan([forward, backward], None, False)
        return y, y_rev

    @override
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        if weight.shape[1] > triton_rowwise.MAX_TAPS:
            return super().short_conv(x, weight.to(x.dtype), bias.to(x.dtype), reverse)
        filters = [(weight, bias), None]
        y = triton_rowwise.short_convs(x, *(reversed(filters) if reverse else filters))
        return y[0]

    @override
    def block_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        reverse: bool,
        initial: Tensor | None,
        block: int,
    ) -> Tensor:
        if weight.shape[1] > triton_rowwise.MAX_TAPS:
            return super().block_conv(
                x, weight.to(x.dtype), bias.to(x.dtype), reverse, initial, block
            )
        return triton_rowwise.block_conv(x, weight, bias, reverse, initial, block)

    @override
    def short_convs(
        self, x: Tensor, forward: tuple[Tensor, Tensor], backward: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        taps, taps_rev = forward[0], backward[0]
        if (
            max(taps.shape[1], taps_rev.shape[1]) > triton_rowwise.MAX_TAPS
            or taps.shape != taps_rev.shape
        ):
            return super().short_convs(x, forward, backward)
        y, y_rev = triton_rowwise.short_convs(x, forward, backward)  # x is read once
        return y, y_rev

    @override
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        return triton_rowwise.gate(y, y_rev, z)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.shape[-1] > triton_rowwise.MAX_WIDTH:
            return super().rms_norm(x, weight, eps)
        return triton_rowwise.norm(x, None, weight, eps, x.dtype)[1]

    @override
    def add_norm(
        self, x: Tensor, added: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if x.shape[-1] > triton_rowwise.MAX_WIDTH:
            return super().add_norm(x, added, weight, eps)
        device = (
            x.device.type
        )  # under autocast the norm is written in the type that the product after it reads
        dtype = (
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        )
        total, out, _ = triton_rowwise.norm(x, added, weight, eps, dtype)
        return (x if added is None else total), out


def _scan(directions: list[ScanInputs], z: Tensor | None, reverse: bool) -> list[Tensor]:
    _refuse_forward_mode()
    return triton_scan.scan(directions, z, reverse)


def _refuse_forward_mode() -> None:
    if forward_ad._current_level >= 0:  # a custom operator would silently count as a constant
        raise NotImplementedError(
            "the Triton scan has no forward-mode derivative (jvp); set scan=reference"
        )
