"""The C++ back end, and the convolution as a custom operator that autograd and torch.compile
understand.

Computes in float32. The scan is in `cpu_scan`, whole mixers are in `cpu_mixer` and `cpu_streams`,
operators on single positions are in `cpu_rowwise`, matrix products in `cpu_linear`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from typing_extensions import override

from dnadiff.kernels import cpu_mixer, cpu_scan, cpu_streams
from dnadiff.kernels.backend import MixerWay, ScanInputs, ScanStates
from dnadiff.kernels.cpu_linear import is_small, linear, onednn_wins
from dnadiff.kernels.cpu_rowwise import MAX_RANK, AddNorm, gated_sum, narrow_linear, rms_norm
from dnadiff.kernels.native import library, pointers, rows
from dnadiff.kernels.operator import cpu_operator
from dnadiff.kernels.portable import TorchOperations

_MAX_TAPS = 8  # of a filter in C++


class CppBackend(TorchOperations):
    """float32 tensors on the CPU, in C++ compiled for this processor."""

    device_type = "cpu"
    supports_float64 = False
    fused_add_norm = True
    fused_two_streams = True

    @override
    def description(self) -> str:
        """The vector instructions in use, and the library of matrix products if it is not PyTorch's
        choice."""
        return library().dnadiff_vectors().decode() + (
            ", products by oneDNN" if onednn_wins() else ""
        )

    @override
    def compiler(self) -> str:
        return library().dnadiff_compiler().decode()

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        _refuse_forward_mode()
        return cpu_scan.plain_scan(inputs, reverse)

    @override
    def carried_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
    ) -> ScanStates:
        _refuse_forward_mode()
        return cpu_scan.carried_scan(inputs, reverse, initial, block)

    @override
    def restarted_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int
    ) -> Tensor:
        _refuse_forward_mode()
        return cpu_scan.restarted_scan(inputs, reverse, initial, block)

    @override
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        return (
            _conv(x, weight, bias, reverse, None, 0)
            if weight.shape[1] <= _MAX_TAPS
            else super().short_conv(x, weight, bias, reverse)
        )

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
        if weight.shape[1] > _MAX_TAPS:
            return super().block_conv(x, weight, bias, reverse, initial, block)
        if initial is not None and reverse:  # the operator counts in the order of the walk
            initial = initial.flip(1, 2)
        return _conv(x, weight, bias, reverse, initial if weight.shape[1] > 1 else None, block)

    @override
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        return gated_sum(y, y_rev, z)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x.reshape(1, -1, x.shape[-1]), weight, eps)[0].view(x.shape)

    @override
    def add_norm(
        self, x: Tensor, added: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if added is None or torch.compiler.is_compiling() or forward_ad._current_level >= 0:
            return super().add_norm(x, added, weight, eps)
        width = x.shape[-1]
        total, out = AddNorm.apply(
            x.reshape(1, -1, width), added.reshape(1, -1, width), weight, eps
        )
        return total.view(x.shape), out.view(x.shape)

    @override
    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight) if is_small(weight) or onednn_wins() else F.linear(x, weight)

    @override
    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if not (is_small(weight) or onednn_wins()):
            return super().linear_halves(x, weight)
        first, second = weight.chunk(
            2
        )  # two products, so that their gradients need not be copied into one array
        return linear(x, first), linear(x, second)

    @override
    def fuses_mixer(self, hidden: Tensor, in_proj: Tensor, ways: Sequence[MixerWay]) -> bool:
        return (
            cpu_mixer.fits(in_proj, ways)
            and forward_ad._current_level < 0
            and not torch.compiler.is_compiling()
        )

    @override
    def mixer(
        self,
        hidden: Tensor,
        in_proj: Tensor,
        out_proj: Tensor,
        ways: Sequence[MixerWay],
        valid: Tensor | None,
    ) -> Tensor:
        run = cpu_mixer.mixer if self.fuses_mixer(hidden, in_proj, ways) else super().mixer
        return run(hidden, in_proj, out_proj, ways, valid)

    @override
    def continued_mixer(
        self,
        hidden: Tensor,
        in_proj: Tensor,
        out_proj: Tensor,
        ways: Sequence[MixerWay],
        past: Tensor | None,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        fused = not torch.is_grad_enabled() and self.fuses_mixer(hidden, in_proj, ways)
        return (cpu_mixer.continued_mixer if fused else super().continued_mixer)(
            hidden, in_proj, out_proj, ways, past, state
        )

    @override
    def two_stream_mixer(
        self, noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay], block: int, valid: Tensor | None,
        clean_output: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        run = (
            cpu_streams.two_stream_mixer
            if self.fuses_mixer(noised, in_proj, ways)
            else super().two_stream_mixer
        )
        return run(noised, clean, in_proj, out_proj, ways, block, valid, clean_output)

    @override
    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return narrow_linear(x, weight) if weight.shape[1] <= MAX_RANK else F.linear(x, weight)


def _refuse_forward_mode() -> None:
    if forward_ad._current_level >= 0:  # a custom operator would silently count as a constant
        raise NotImplementedError(
            "the C++ scan has no forward-mode derivative (jvp); set scan=reference"
        )


@cpu_operator("short_conv")
def _conv(
    x: Tensor, weight: Tensor, bias: Tensor, reverse: bool, near: Tensor | None, block: int
) -> Tensor:
    """`near` (Bt, blocks, K - 1, E) are the inputs before each block of `block` positions, 0 for
    the whole sequence."""
    (x, row), weight, bias = rows(x), weight.contiguous(), bias.contiguous()
    y, near = x.new_empty(x.shape), None if near is None else near.contiguous()
    arrays = pointers(x, weight, bias, near, y)
    library().dnadiff_conv_forward(
        *arrays, *x.shape, weight.shape[1], block, row, reverse, torch.get_num_threads()
    )
    return y


_conv.register_fake(lambda x, weight, bias, reverse, near, block: x.new_empty(x.shape))


@cpu_operator("short_conv_backward")
def _conv_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool, near: Tensor | None, block: int
) -> list[Tensor]:  # fmt: skip
    (dy, dy_row), (x, row), weight, bias = rows(dy), rows(x), weight.contiguous(), bias.contiguous()
    (E, K), threads, near = (
        weight.shape,
        torch.get_num_threads(),
        None if near is None else near.contiguous(),
    )
    dx, sums, dnear = (
        x.new_empty(x.shape),
        x.new_zeros(threads, K + 1, E),
        None if near is None else x.new_empty(near.shape),
    )
    arrays = pointers(dy, x, weight, bias, near, dx, dnear, sums)
    library().dnadiff_conv_backward(*arrays, *x.shape, K, block, dy_row, row, reverse, threads)
    sums = sums.sum(0)
    return [dx, sums[:K].T.contiguous(), sums[K].clone(), *([] if dnear is None else [dnear])]


@_conv_backward.register_fake
def _(dy, x, weight, bias, reverse, near, block):
    return [
        tensor.new_empty(tensor.shape) for tensor in (x, weight, bias, near) if tensor is not None
    ]


def _conv_save(ctx, inputs, output):
    *tensors, ctx.reverse, near, ctx.block = inputs
    ctx.save_for_backward(*tensors, near)


def _conv_grad(ctx, dy):
    *tensors, near = ctx.saved_tensors
    dx, dweight, dbias, *dnear = _conv_backward(dy, *tensors, ctx.reverse, near, ctx.block)
    return dx, dweight, dbias, None, *(dnear or [None]), None


_conv.register_autograd(_conv_grad, setup_context=_conv_save)
