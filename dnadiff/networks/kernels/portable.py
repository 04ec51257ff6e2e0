"""The selective scan in plain PyTorch: any device, float32 or float64, memory linear in L.

Python loops over the positions of a chunk of at most 64, for all chunks at once. The states that
enter the chunks follow a linear recurrence, which is solved in the same way, so the number of
operations grows with log L. Decays are multiplied and never divided by, so strong decay loses no
precision. Internal arrays are (Bt, chunks, T, E or N), states (Bt, chunks, N, E). A scan that
returns the states before blocks has chunks that begin where blocks begin.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dnadiff.networks.kernels.backend import (
    Backend,
    MixerWay,
    MixerWeights,
    OptionalTensor,
    ScanInputs,
    ScanStates,
    Walk,
    by_block,
)

_LONGEST = 64  # positions in a chunk
_SPAN = 8  # the backward pass keeps every 8th state of a chunk and recomputes the 7 in between


def _restarted(backend: Backend, inputs: ScanInputs, walk: Walk) -> ScanStates:
    """A scan of every block as a sequence of its own."""

    def scan(state: OptionalTensor, u: Tensor, delta: Tensor, B: Tensor, C: Tensor) -> Tensor:
        rows = inputs._replace(u=u, delta=delta, B=B, C=C)
        return backend.scan(rows, Walk(walk.reverse, state)).y

    assert walk.block is not None
    rows = inputs.u, inputs.delta, inputs.B, inputs.C
    return ScanStates(by_block(scan, walk.block, walk.initial, *rows))


class PortableBackend(Backend):
    """Any device, float32 or float64."""

    def description(self) -> str:
        return "PyTorch"

    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        if walk.restart:
            return _restarted(self, inputs, walk)
        u, delta, A, B, C, D, bias = inputs
        step = F.softplus(delta if bias is None else delta + bias)
        initial = None if walk.initial is None else walk.initial.mT
        y, starts, last = _Scan.apply(
            step, step * u, A.T, B, C, initial, walk.reverse, walk.block, walk.states
        )
        starts, last = (None if x is None else x.mT for x in (starts, last))
        return ScanStates(y + D * u, starts, last)


class _Scan(torch.autograd.Function):
    """y_l = C_l . h_l with h_l = exp(step_l A) h_{l-1} + B_l dx_l, where dx = step * u; the states
    before blocks, and the last one."""

    @staticmethod
    def forward(
        ctx: Any, step: Tensor, dx: Tensor, A: Tensor, B: Tensor, C: Tensor,
        initial: OptionalTensor, reverse: bool, block: int | None, states: bool,
    ) -> tuple[OptionalTensor, ...]:  # fmt: skip
        walk = _Chunks(step, dx, A, B, C, reverse, block)
        h = walk.entering(initial)
        ctx.save_for_backward(step, dx, A, B, C, initial, h)
        ctx.reverse = reverse
        ctx.block = block
        ctx.set_materialize_grads(False)
        y, last = walk.outputs(h)
        starts = None if block is None else h[:, :: _cut(block)[0]].clone()
        y = _join(y, step.shape[1], block)
        return y, starts, last[:, 0 if reverse else -1].clone() if states else None

    @staticmethod
    def backward(
        ctx: Any, dy: OptionalTensor, dstarts: OptionalTensor, dlast: OptionalTensor
    ) -> tuple[OptionalTensor, ...]:
        step, dx, A, B, C, initial, h = ctx.saved_tensors
        walk = _Chunks(step, dx, A, B, C, ctx.reverse, ctx.block)
        L = step.shape[1]
        dy = torch.zeros_like(step) if dy is None else dy
        # a second derivative: autograd does not know what the saved states depend on
        h = walk.entering(initial) if torch.is_grad_enabled() else h
        if dstarts is not None:
            place = torch.zeros_like(h)
            place[:, :: _cut(ctx.block)[0]] = dstarts
            dstarts = place
        *found, dA, dfirst = walk.gradients(_chunk(dy, ctx.block), h, dstarts, dlast)
        dstep, ddx, dB, dC = (_join(x, L, ctx.block) for x in found)
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
    block = block or L
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


def _carry(decay: Tensor, gain: Tensor, initial: OptionalTensor, reverse: bool) -> Tensor:
    """The recurrence s_{c+1} = decay_c s_c + gain_c from `initial (Bt, N, E)` or 0 over axis 1: all
    s_c, (Bt, chunks, N, E)."""
    Bt, count, *state = decay.shape
    groups, T = _cut(count)
    if groups * T > count:
        end = (0, 0, 0, 0, 0, groups * T - count)
        decay = F.pad(decay, end, value=1.0)
        gain = F.pad(gain, end)
    decay, gain = (x.view(Bt, groups, T, *state) for x in (decay, gain))
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


class _Chunks:
    """The inputs of `_Scan` in chunks, and the recurrence in all of them."""

    def __init__(
        self, step: Tensor, dx: Tensor, A: Tensor, B: Tensor, C: Tensor, reverse: bool,
        block: int | None,
    ) -> None:  # fmt: skip
        self.step, self.dx, self.B, self.C = (_chunk(x, block) for x in (step, dx, B, C))
        self.A = A
        self.reverse = reverse
        self.order = _positions(self.step.shape[2], reverse)

    def decay(self, t: int) -> Tensor:
        """exp(step A) at one position of each chunk."""
        return torch.mul(self.step[:, :, t, None], self.A).exp_()

    def advance(self, h: Tensor, decay: Tensor, t: int) -> Tensor:
        """The state after one position of each chunk."""
        return torch.addcmul(decay * h, self.B[:, :, t, :, None], self.dx[:, :, t, None])

    def entering(self, initial: OptionalTensor) -> Tensor:
        """The state before each chunk, (Bt, chunks, N, E)."""
        Bt, chunks, _, E = self.step.shape
        h = self.step.new_zeros(Bt, chunks, self.A.shape[0], E)
        if chunks == 1:
            return h if initial is None else initial[:, None]
        for t in self.order:
            h = self.advance(h, self.decay(t), t)
        total = torch.mul(self.step.sum(2)[:, :, None], self.A).exp_()
        return _carry(total, h, initial, self.reverse)

    def outputs(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs, and the state after each chunk."""
        y = torch.empty_like(self.step)
        for t in self.order:
            h = self.advance(h, self.decay(t), t)
            y[:, :, t] = (h * self.C[:, :, t, :, None]).sum(2)
        return y, h

    def gradients(
        self, dy: Tensor, h: Tensor, dh: OptionalTensor, dlast: OptionalTensor
    ) -> tuple[Tensor, ...]:
        """The gradients of step, dx, B, C, A and of the state before each chunk, with g_l = C_l
        dy_l + exp(step_{l+1} A) g_{l+1}.

        `dh` (Bt, chunks, N, E) and `dlast` (Bt, N, E) are the gradients of the states before the
        chunks, and of the last state, as results.

        A forward loop computes the gradient that each chunk passes to the previous one, using the
        running product of decays, and keeps every `_SPAN`-th state. A backward loop recomputes the
        states in between and accumulates the gradients.
        """
        step = self.step
        dx = self.dx
        B = self.B
        C = self.C
        A = self.A
        order = self.order
        spans = [order[i : i + _SPAN] for i in range(0, len(order), _SPAN)]
        starts = []
        passed = torch.zeros_like(h)
        product = torch.ones_like(h)
        for span in spans:
            starts.append(h)
            for t in span:
                decay = self.decay(t)
                h = self.advance(h, decay, t)
                product = product * decay
                passed = torch.addcmul(passed, product, C[:, :, t, :, None] * dy[:, :, t, None])
        passed = passed if dh is None else passed + dh
        # exp(step_{l+1} A) g_{l+1} at the end of each chunk
        g = _carry(product, passed, dlast, not self.reverse)
        dstep, ddx, dB, dC = (torch.empty_like(x) for x in (step, dx, B, C))
        dA = torch.zeros_like(A)
        for span in reversed(spans):
            states = [starts.pop()]
            decays = []
            for t in span:
                decays.append(self.decay(t))
                states.append(self.advance(states[-1], decays[-1], t))
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
    """The scan as its formula; it needs (Bt, L, E, N) memory."""

    def description(self) -> str:
        return "plain PyTorch, one position at a time"

    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        if walk.restart:
            return _restarted(self, inputs, walk)
        u, delta, A, B, C, D, bias = inputs
        step = F.softplus(delta if bias is None else delta + bias)  # (Bt, L, E)
        # Slicing inside the loop would make the backward pass quadratic in L.
        positions = list(zip(*(x.unbind(1) for x in (u, step, B, C)), strict=True))
        h = u.new_zeros(u.shape[0], *A.shape) if walk.initial is None else walk.initial
        y = []
        before = []
        for u_l, step_l, B_l, C_l in reversed(positions) if walk.reverse else positions:
            before.append(h)  # (Bt, E, N)
            h = torch.exp(step_l[:, :, None] * A) * h + (step_l * u_l)[:, :, None] * B_l[:, None, :]
            y.append((h * C_l[:, None, :]).sum(-1) + D * u_l)  # (Bt, E)
        starts = None if walk.block is None else torch.stack(before[:: walk.block], dim=1)
        return ScanStates(torch.stack(y[::-1] if walk.reverse else y, dim=1), starts, h)


class MambaSSMBackend(Backend):
    """float32 tensors on a CUDA device."""

    device_type = "cuda"
    lacks_states = "states that enter or leave a scan; its kernel always starts from zero"

    def description(self) -> str:
        return "CUDA, flipped for the reverse direction"

    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        u, delta, A, B, C, D, bias = inputs
        u, delta, B, C = ((x.flip(1) if walk.reverse else x).mT for x in (u, delta, B, C))
        try:
            from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

            y = selective_scan_fn(u, delta, A, B, C, D, delta_bias=bias, delta_softplus=True).mT
        except (ImportError, AttributeError) as error:  # the second: selective_scan_cuda is None
            raise RuntimeError(
                f"mamba_ssm is not installed, or without its CUDA scan ({error}); use scan=triton, "
                "which is part of this package, or MAMBA_KEEP_CUDA_BUILD=TRUE pip install -e "
                "'.[cuda]' in the checkout"
            ) from error
        return ScanStates(y.flip(1) if walk.reverse else y)


def difference(backend: Backend, gpu: int) -> str:
    """How a back end differs from the portable one; an empty string if it does not."""
    device = torch.device("cpu")
    if backend.unsupported("cpu", torch.float32):
        if not torch.cuda.is_available():
            return "it needs a CUDA device, and PyTorch finds none"
        device = torch.device("cuda", gpu)
    try:
        with ExitStack() as undo:
            _full_precision(undo)
            ours, theirs = (
                probe(each, device, backend.fuses_mixer) for each in (backend, PortableBackend())
            )
    # a missing driver, compiler or package: whatever it is, it is the reason
    except Exception as error:
        words = ("bad_alloc", "allocate memory", "failed to map segment")
        if isinstance(error, MemoryError) or any(word in str(error) for word in words):
            # another scan would compute slightly different numbers, much more slowly
            raise MemoryError(
                f"there is no memory left for the kernels of {type(backend).__name__} ({error})"
            ) from error
        return str(error) or repr(error)
    worst = max(
        float((x - y).abs().max() / (1e-6 + y.abs().max()))
        for x, y in zip(ours, theirs, strict=True)
    )
    return "" if worst < 1e-4 else f"its results differ from the portable scan's by {worst:.1e}"


def _full_precision(undo: ExitStack) -> None:
    """No TF32 or bfloat16 products until `undo` ends: rounding alone would exceed the tolerance."""
    cpu = getattr(torch.backends.mkldnn, "matmul", None)
    if cpu is None:  # before PyTorch 2.9: one setting for all devices
        undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        return
    for products in (torch.backends.cuda.matmul, cpu):  # no call saves both if they differ
        undo.callback(setattr, products, "fp32_precision", products.fp32_precision)
        products.fp32_precision = "ieee"


def probe(
    backend: Backend, device: torch.device, fuses: Callable[[MixerWeights], bool] = lambda _: False
) -> list[Tensor]:
    """Outputs and gradients of all operations, in both directions; if `fuses` is true of a mixer's
    weights, also of the mixer as one kernel, and of that of two streams.

    57 = 48 + 6 + 2 + 1 positions exceed a chunk, 70 = 4 16 + 6 channels exceed the widest vectors,
    and there are 15 = 8 + 4 + 2 + 1 states and 7 ranks: every loop of the C++ kernels over tiles
    and over remainders runs. Blocks of 5 begin anywhere in a chunk.
    """
    results: list[Tensor] = []

    def wave(*shape: int) -> Tensor:
        count = torch.arange(math.prod(shape), dtype=torch.float32).add(sum(shape))
        return count.mul(0.7).sin().view(shape).to(device).div(4).requires_grad_()

    def compare(outputs: Sequence[OptionalTensor], inputs: list[Tensor]) -> None:
        found = [x for x in outputs if x is not None]
        weighted = [(x * wave(*x.shape).detach()).sum() for x in found]
        results.extend(x.detach() for x in found)
        results.extend(torch.autograd.grad(torch.stack(weighted).sum(), inputs))

    L = 57
    D = 37
    E = 70
    R = 7
    N = 15
    shapes = ((E, 4), (E,), (R + 2 * N, E), (E, R), (E,), (E, N), (E,))
    valid = torch.ones(2, L, dtype=torch.bool, device=device)
    valid[1, 50:] = False
    hidden, clean = wave(2, L, D), wave(2, L, D).detach().flip(1).requires_grad_()
    ways = [MixerWay(*(wave(*shape) for shape in shapes)) for _ in range(2)]
    for count in (1, 2):
        weights = MixerWeights(wave(2 * E, D), wave(D, E), ways[:count])
        compare([Backend.mixer(backend, hidden, weights, valid)], [hidden, *weights.tensors()])
        if fuses(weights):
            compare([backend.mixer(hidden, weights, valid)], [hidden, *weights.tensors()])
    if fuses(weights):
        outputs = backend.two_stream_mixer(hidden, clean, weights, 5, valid, True)
        compare(outputs, [hidden, clean, *weights.tensors()])
    x, added, weight = wave(2, L, E), wave(2, L, E).detach().flip(1).requires_grad_(), wave(E)
    total, normed = backend.add_norm(x, added, weight, 1e-2)
    normed = normed + backend.rms_norm(total, weight, 1e-2)
    compare([total, normed], [x, added, weight])
    return results
