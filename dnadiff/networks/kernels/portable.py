"""The selective scan in plain PyTorch: any device, float32 or float64, memory linear in L.

Python loops over the positions of a chunk of at most 64, for all chunks at once. The states that
enter the chunks follow a linear recurrence, which is solved in the same way, so the number of
operations grows with log L. Decays are multiplied and never divided by, so strong decay loses no
precision. Internal arrays are (Bt, chunks, T, E or N), states (Bt, chunks, N, E). A scan that
returns the states before blocks has chunks that begin where blocks begin.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from dnadiff.networks.kernels.backend import Backend, ScanInputs, ScanStates

_LONGEST = 64  # positions in a chunk
_SPAN = 8  # the backward pass keeps every 8th state of a chunk and recomputes the 7 in between


class TorchOperations(Backend):
    """All operations but the scan, in plain PyTorch."""

    @override
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        L, K = x.shape[1], weight.shape[1]
        x = F.pad(x, (0, 0, 0, K - 1) if reverse else (0, 0, K - 1, 0))
        a = bias
        for k in range(K):  # a sum of K shifted copies is faster on a CPU than a depthwise conv1d
            first = K - 1 - k if reverse else k
            a = torch.addcmul(a, x[:, first : first + L], weight[:, k])
        return F.silu(a)

    @override
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        return (y if y_rev is None else y + y_rev) * F.silu(z)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)  # on accelerators this is one kernel

    @override
    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    @override
    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)


class PortableBackend(TorchOperations):
    """Any device, float32 or float64."""

    needs_probe = False

    @override
    def description(self) -> str:
        return "PyTorch"

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        return _scan(inputs, reverse, None, None, False)[0]

    @override
    def carried_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
    ) -> ScanStates:
        y, starts, last = _scan(
            inputs, reverse, None if initial is None else initial.mT, block, True
        )
        return ScanStates(y, None if starts is None else starts.mT, last.mT)


def _scan(
    inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None, carried: bool
) -> tuple[Tensor, ...]:
    u, delta, A, B, C, D, delta_bias = inputs
    step = F.softplus(delta if delta_bias is None else delta + delta_bias)
    y, starts, last = _Scan.apply(step, step * u, A.T, B, C, initial, reverse, block, carried)
    return y + D * u, starts, last


class _Scan(torch.autograd.Function):
    """y_l = C_l . h_l with h_l = exp(step_l A) h_{l-1} + B_l dx_l, where dx = step * u; the states
    before blocks, and the last one."""

    @staticmethod
    def forward(
        ctx: Any,
        step: Tensor,
        dx: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        initial: Tensor | None,
        reverse: bool,
        block: int | None,
        carried: bool,
    ) -> tuple[Tensor | None, ...]:
        L = step.shape[1]
        steps, dxs, Bs, Cs = (_chunk(x, block) for x in (step, dx, B, C))
        h = _enter(steps, dxs, Bs, A, initial, reverse)
        ctx.save_for_backward(step, dx, A, B, C, initial, h)
        ctx.reverse, ctx.block = reverse, block
        ctx.set_materialize_grads(False)
        y, last = _outputs(steps, dxs, Bs, Cs, A, h, reverse)
        starts = None if block is None else h[:, :: _cut(block)[0]].clone()
        return (
            _join(y, L, block),
            starts,
            last[:, 0 if reverse else -1].clone() if carried else None,
        )

    @staticmethod
    def backward(
        ctx: Any, dy: Tensor | None, dstarts: Tensor | None, dlast: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, initial, h = ctx.saved_tensors
        step, dx, A, B, C = tensors
        dy = torch.zeros_like(step) if dy is None else dy
        steps, dxs, Bs, Cs, dys = (_chunk(x, ctx.block) for x in (step, dx, B, C, dy))
        if (
            torch.is_grad_enabled()
        ):  # a second derivative: autograd does not know what the saved states depend on
            h = _enter(steps, dxs, Bs, A, initial, ctx.reverse)
        if dstarts is not None:
            place = torch.zeros_like(h)
            place[:, :: _cut(ctx.block)[0]] = dstarts
            dstarts = place
        dstep, ddx, dB, dC, dA, dfirst = _gradients(
            steps, dxs, Bs, Cs, dys, A, h, dstarts, dlast, ctx.reverse
        )
        dstep, ddx, dB, dC = (_join(x, dy.shape[1], ctx.block) for x in (dstep, ddx, dB, dC))
        dinitial = None if initial is None else dfirst[:, -1 if ctx.reverse else 0]
        return dstep, ddx, dA, dB, dC, dinitial, None, None, None


def _cut(length: int) -> tuple[int, int]:
    """The number of chunks of so many positions, and the length of the longest."""
    chunks = -(-length // _LONGEST)
    return chunks, -(-length // chunks)


def _chunk(x: Tensor, block: int | None) -> Tensor:
    """`x (Bt, L, X)` as (Bt, chunks, T, X), padded with zeros: a position with step 0 does not
    change the state."""
    Bt, L, X = x.shape
    block = L if block is None else block
    blocks, (chunks, T) = -(-L // block), _cut(block)
    if blocks * block > L:
        x = F.pad(x, (0, 0, 0, blocks * block - L))
    if chunks * T > block:
        x = F.pad(x.reshape(Bt, blocks, block, X), (0, 0, 0, chunks * T - block))
    return x.reshape(Bt, blocks * chunks, T, X)


def _join(x: Tensor, L: int, block: int | None) -> Tensor:
    """The inverse of `_chunk`."""
    if block is None:
        return x.flatten(1, 2)[:, :L]
    chunks = _cut(block)[0]
    return x.unflatten(1, (-1, chunks)).flatten(2, 3)[:, :, :block].flatten(1, 2)[:, :L]


def _positions(T: int, reverse: bool) -> range:
    return range(T)[::-1] if reverse else range(T)


def _decay(step: Tensor, t: int, A: Tensor) -> Tensor:
    return torch.mul(step[:, :, t, None], A).exp_()


def _advance(h: Tensor, decay: Tensor, dx: Tensor, B: Tensor, t: int) -> Tensor:
    return torch.addcmul(decay * h, B[:, :, t, :, None], dx[:, :, t, None])


def _enter(
    step: Tensor, dx: Tensor, B: Tensor, A: Tensor, initial: Tensor | None, reverse: bool
) -> Tensor:
    """The state before each chunk, (Bt, chunks, N, E)."""
    Bt, chunks, T, E = step.shape
    h = step.new_zeros(Bt, chunks, A.shape[0], E)
    if chunks == 1:
        return h if initial is None else initial[:, None]
    for t in _positions(T, reverse):
        h = _advance(h, _decay(step, t, A), dx, B, t)
    total = torch.mul(step.sum(2)[:, :, None], A).exp_()
    return _carry(total, h, initial, reverse)


def _carry(decay: Tensor, gain: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
    """The recurrence s_{c+1} = decay_c s_c + gain_c from `initial (Bt, N, E)` or 0 over axis 1: all
    s_c, (Bt, chunks, N, E)."""
    Bt, count, *state = decay.shape
    groups = -(-count // _LONGEST)
    T = -(-count // groups)
    if groups * T > count:
        end = (0, 0, 0, 0, 0, groups * T - count)
        decay, gain = F.pad(decay, end, value=1.0), F.pad(gain, end)
    decay, gain = decay.view(Bt, groups, T, *state), gain.view(Bt, groups, T, *state)
    s = torch.zeros_like(gain[:, :, 0])
    if groups > 1:
        total = torch.ones_like(s)
        for t in _positions(T, reverse):
            s = torch.addcmul(gain[:, :, t], decay[:, :, t], s)
            total = total * decay[:, :, t]
        s = _carry(total, s, initial, reverse)
    elif initial is not None:
        s = initial[:, None]
    entering = torch.empty_like(gain)
    for t in _positions(T, reverse):
        entering[:, :, t] = s
        s = torch.addcmul(gain[:, :, t], decay[:, :, t], s)
    return entering.flatten(1, 2)[:, :count]


def _outputs(
    step: Tensor, dx: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor, reverse: bool
) -> tuple[Tensor, Tensor]:
    """The outputs, and the state after each chunk."""
    y = torch.empty_like(step)
    for t in _positions(step.shape[2], reverse):
        h = _advance(h, _decay(step, t, A), dx, B, t)
        y[:, :, t] = (h * C[:, :, t, :, None]).sum(2)
    return y, h


def _gradients(
    step: Tensor,
    dx: Tensor,
    B: Tensor,
    C: Tensor,
    dy: Tensor,
    A: Tensor,
    h: Tensor,
    dh: Tensor | None,
    dlast: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """The gradients of step, dx, B, C, A and of the state before each chunk, with g_l = C_l dy_l +
    exp(step_{l+1} A) g_{l+1}.

    `dh` (Bt, chunks, N, E) and `dlast` (Bt, N, E) are the gradients of the states before the
    chunks, and of the last state, as results.

    A forward loop computes the gradient that each chunk passes to the previous one, using the
    running product of decays, and keeps every `_SPAN`-th state. A backward loop recomputes the
    states in between and accumulates the gradients.
    """
    order = _positions(step.shape[2], reverse)
    spans = [order[i : i + _SPAN] for i in range(0, len(order), _SPAN)]
    starts, passed, product = [], torch.zeros_like(h), torch.ones_like(h)
    for span in spans:
        starts.append(h)
        for t in span:
            decay = _decay(step, t, A)
            h = _advance(h, decay, dx, B, t)
            product = product * decay
            passed = torch.addcmul(passed, product, C[:, :, t, :, None] * dy[:, :, t, None])
    passed = passed if dh is None else passed + dh
    g = _carry(
        product, passed, dlast, not reverse
    )  # exp(step_{l+1} A) g_{l+1} at the end of each chunk

    dstep, ddx, dB, dC, dA = (
        torch.empty_like(step),
        torch.empty_like(step),
        torch.empty_like(B),
        torch.empty_like(C),
        torch.zeros_like(A),
    )
    for span in reversed(spans):
        states, decays = [starts.pop()], []
        for t in span:
            decays.append(_decay(step, t, A))
            states.append(_advance(states[-1], decays[-1], dx, B, t))
        for t in reversed(span):
            dC[:, :, t] = (states.pop() * dy[:, :, t, None]).sum(3)
            g = torch.addcmul(g, C[:, :, t, :, None], dy[:, :, t, None])
            dB[:, :, t] = (g * dx[:, :, t, None]).sum(3)
            ddx[:, :, t] = (g * B[:, :, t, :, None]).sum(2)
            g = g * decays.pop()
            to_exponent = g * states[-1]
            dstep[:, :, t] = (to_exponent * A).sum(2)
            dA += (to_exponent * step[:, :, t, None]).sum((0, 1))
    return dstep, ddx, dB, dC, dA, g if dh is None else g + dh


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


class MambaSSMBackend(TorchOperations):
    """float32 tensors on a CUDA device."""

    device_type = "cuda"
    supports_float64 = False

    @override
    def description(self) -> str:
        return "CUDA, flipped for the reverse direction"

    @override
    def lacks_states(self) -> str:
        return "states that enter or leave a scan; its kernel always starts from zero"

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        try:
            from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
        except ImportError as error:
            raise RuntimeError(
                f"mamba_ssm is not installed ({error}); pip install -e '.[cuda]' in the checkout "
                "adds it"
            ) from error
        u, delta, A, B, C, D, delta_bias = inputs
        u, delta, B, C = ((x.flip(1) if reverse else x).mT for x in (u, delta, B, C))
        y = selective_scan_fn(u, delta, A, B, C, D, delta_bias=delta_bias, delta_softplus=True).mT
        return y.flip(1) if reverse else y
