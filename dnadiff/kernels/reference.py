"""The operations by their definitions, for tests: plain autograd, the scan one position at a time,
slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from dnadiff.kernels.backend import Backend, ScanInputs, ScanStates


class ReferenceBackend(Backend):
    """Every operation as its formula; the scan needs (Bt, L, E, N) memory."""

    needs_probe = False

    @override
    def description(self) -> str:
        return "plain PyTorch, one position at a time"

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        return self.carried_scan(inputs, reverse, None, None).y

    @override
    def carried_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
    ) -> ScanStates:
        u, delta, A, B, C, D, delta_bias = inputs
        step = F.softplus(delta if delta_bias is None else delta + delta_bias)  # (Bt, L, E)
        # Slicing inside the loop would make the backward pass quadratic in L.
        positions = list(zip(*(x.unbind(1) for x in (u, step, B, C)), strict=True))
        h = u.new_zeros(u.shape[0], *A.shape) if initial is None else initial  # (Bt, E, N)
        y, before = [], []
        for u_l, step_l, B_l, C_l in reversed(positions) if reverse else positions:
            before.append(h)
            h = torch.exp(step_l[:, :, None] * A) * h + (step_l * u_l)[:, :, None] * B_l[:, None, :]
            y.append((h * C_l[:, None, :]).sum(-1) + D * u_l)  # (Bt, E)
        starts = None if block is None else torch.stack(before[::block], dim=1)
        return ScanStates(torch.stack(y[::-1] if reverse else y, dim=1), starts, h)

    @override
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        E, K = weight.shape
        taps, padding = (weight.flip(-1), (0, K - 1)) if reverse else (weight, (K - 1, 0))
        return F.silu(F.conv1d(F.pad(x.mT, padding), taps[:, None], bias, groups=E)).mT

    @override
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        total = y if y_rev is None else y + y_rev
        return total * z * torch.sigmoid(z)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    @override
    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.T

    @override
    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return (x[..., None, :] * weight).sum(-1)
