"""The baseline of `gpu.py`: the published wiring of a bidirectional mixer with mamba-ssm's CUDA
extensions, loaded without their packages.

The extensions are `selective_scan_cuda` and `causal_conv1d_cuda`, installed or as files (`.so` or
`.so.xz`) in a folder. The wiring: a complete mixer on the sequence and one on its reversal,
channels first, each with its own matrix products, and the gate inside the scan.
"""

import importlib
import importlib.util
import lzma
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dnadiff.networks.kernels.backend import Backend, ScanInputs, ScanStates, Walk
from dnadiff.networks.kernels.facade import SCANS


def extension(name: str, folder: Path | None) -> ModuleType:
    """The installed extension, or the one in a folder; an .xz is unpacked into a temporary folder
    first."""
    if folder is None:
        return importlib.import_module(name)
    found = sorted(folder.glob(f"{name}*.so")) + sorted(folder.glob(f"{name}*.so.xz"))
    if not found:
        raise FileNotFoundError(
            f"no {name}*.so or {name}*.so.xz in {folder}; set --prebuilt to the folder that has "
            "them"
        )
    path = found[0]
    if path.suffix == ".xz":
        unpacked = Path(tempfile.mkdtemp(prefix="dnadiff-bench-")) / path.with_suffix("").name
        unpacked.write_bytes(lzma.decompress(path.read_bytes()))
        path = unpacked
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


class CudaScan(torch.autograd.Function):
    """`selective_scan_cuda` on u, delta, z (B, E, L), A (E, N), B, C (B, 1, N, L), D, bias (E,), as
    mamba-ssm calls it."""

    raw: ModuleType | None = None

    @staticmethod
    def forward(ctx, u, delta, A, B, C, D, z, bias) -> Tensor:
        tensors = [
            None if x is None else x if x.dim() < 3 or x.stride(-1) == 1 else x.contiguous()
            for x in (u, delta, A, B, C, D, z, bias)
        ]
        out, states, *gated = CudaScan.raw.fwd(*tensors, True)
        ctx.save_for_backward(*tensors, states, out)
        return gated[0] if gated else out

    @staticmethod
    def backward(ctx, dout):
        u, delta, A, B, C, D, z, bias, states, out = ctx.saved_tensors
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        du, ddelta, dA, dB, dC, dD, dbias, *dz = CudaScan.raw.bwd(
            u,
            delta,
            A,
            B,
            C,
            D,
            z,
            bias,
            dout,
            states,
            None if z is None else out,
            None,
            True,
            False,
        )
        return du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, dz[0] if dz else None, dbias


class CudaConv(torch.autograd.Function):
    """`causal_conv1d_cuda` with silu on x (B, E, L), weight (E, K), bias (E,): version 1.5 and
    later."""

    raw: ModuleType | None = None

    @staticmethod
    def forward(ctx, x, weight, bias) -> Tensor:
        x = x if x.stride(2) == 1 else x.contiguous()
        weight, bias = weight.to(x.dtype).contiguous(), bias.to(x.dtype).contiguous()
        out = torch.empty_like(x)
        CudaConv.raw.causal_conv1d_fwd(x, weight, bias, None, None, out, None, True)
        ctx.save_for_backward(x, weight, bias)
        return out

    @staticmethod
    def backward(ctx, dout):
        x, weight, bias = ctx.saved_tensors
        dout = dout if dout.stride(2) == 1 else dout.contiguous()
        dx, dweight, dbias = (
            torch.empty_like(x),
            torch.zeros_like(weight, dtype=torch.float32),
            torch.zeros_like(bias, dtype=torch.float32),
        )
        CudaConv.raw.causal_conv1d_bwd(
            x, weight, bias, dout, None, None, None, dx, dweight, dbias, None, True
        )
        return dx, dweight, dbias


def cuda_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
) -> Tensor:
    """u, delta, z (B, E, L), B, C (B, N, L) -> (B, E, L)."""
    B, C = (x[:, None].to(u.dtype).contiguous() for x in (B, C))
    bias = torch.zeros_like(D) if bias is None else bias
    return CudaScan.apply(
        u, delta.to(u.dtype), A.float().contiguous(), B, C, D.float(), z, bias.float()
    )


def conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """silu of the causal convolution of x (B, E, L), by the extension if it works."""
    if CudaConv.raw is not None:
        return CudaConv.apply(x, weight, bias)
    K = weight.shape[1]
    return F.silu(
        F.conv1d(
            F.pad(x, (K - 1, 0)), weight[:, None].to(x.dtype), bias.to(x.dtype), groups=len(weight)
        )
    )


def load(folder: Path | None) -> dict[str, str]:
    """Load both extensions and compare them with PyTorch on small inputs; returns why each does not
    work, or an empty string."""
    reasons = {}
    for holder, name, check in (
        (CudaScan, "selective_scan_cuda", _check_scan),
        (CudaConv, "causal_conv1d_cuda", _check_conv),
    ):
        try:
            holder.raw = extension(name, folder)
            reasons[name] = check()
        except Exception as error:  # a missing file, another version of PyTorch, another signature
            reasons[name] = (str(error) or repr(error)).splitlines()[0]
        if reasons[name]:
            holder.raw = None
    return reasons


def _wave(*shape: int) -> Tensor:
    return (
        torch.arange(torch.Size(shape).numel(), device="cuda", dtype=torch.float32)
        .mul(0.7)
        .sin()
        .view(shape)
        .requires_grad_()
    )


def _differ(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> str:
    weight = torch.arange(ours.numel(), device="cuda").view(ours.shape).mul(0.37).sin()
    pairs = zip(
        [ours, *torch.autograd.grad((ours * weight).sum(), inputs)],
        [theirs, *torch.autograd.grad((theirs * weight).sum(), inputs)],
    )
    worst = max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)
    return "" if worst < 1e-3 else f"its results differ from PyTorch's by {worst:.1e}"


def _check_scan() -> str:
    inputs = [
        _wave(2, 6, 70),
        _wave(2, 6, 70),
        -_wave(6, 16).exp().detach().requires_grad_(),
        _wave(2, 16, 70),
        _wave(2, 16, 70),
        _wave(6),
        _wave(6),
    ]
    inputs = [x.detach().requires_grad_() for x in inputs]
    u, delta, A, B, C, D, bias = inputs
    theirs = SCANS["portable"].scan(ScanInputs(u.mT, delta.mT, A, B.mT, C.mT, D, bias), Walk()).y.mT
    return _differ(cuda_scan(*inputs), theirs, inputs)


def _check_conv() -> str:
    inputs = [_wave(2, 8, 72), _wave(8, 4), _wave(8)]
    x, weight, bias = inputs
    return _differ(conv(*inputs), SCANS["portable"].short_conv(x.mT, weight, bias).mT, inputs)


def around(backend: Backend) -> Backend:
    """A copy of a back end whose recurrence is mamba-ssm's: transposed, and flipped for the reverse
    direction."""

    class Extension(type(backend)):
        def description(self) -> str:
            return "mamba-ssm's extension"

        def scan(self, inputs, walk):
            u, delta, A, B, C, D, delta_bias = inputs
            u, delta, B, C = ((x.flip(1) if walk.reverse else x).mT for x in (u, delta, B, C))
            y = cuda_scan(u.contiguous(), delta.contiguous(), A, B, C, D, delta_bias).mT
            return ScanStates(y.flip(1) if walk.reverse else y)

        def gated_scan(self, inputs, z):
            return self.gated_sum(self.scan(inputs, Walk()).y, None, z)

        def scans(self, forward, backward):
            return self.scan(forward, Walk()).y, self.scan(backward, Walk(reverse=True)).y

    return Extension()


class PublishedMixer(nn.Module):
    """The published wiring with the weights of one of our mixers: channels first, everything once
    for each direction."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def one_way(self, way: nn.Module, hidden: Tensor) -> Tensor:
        (Bt, L, _), rank, N = hidden.shape, way.dt_rank, way.d_state
        flat = hidden.reshape(Bt * L, -1).mT
        x, z = (
            (self.mixer.in_proj.weight @ flat).view(-1, Bt, L).transpose(0, 1).chunk(2, dim=1)
        )  # (B, E, L), contiguous positions
        x = conv(x, way.conv_weight, way.conv_bias)
        low, B, C = F.linear(x.mT.reshape(Bt * L, -1), way.x_proj.weight).split(
            [rank, N, N], dim=-1
        )
        delta = (way.dt_weight @ low.mT).view(-1, Bt, L).transpose(0, 1)
        B, C = (part.reshape(Bt, L, N).mT for part in (B, C))
        y = cuda_scan(x, delta, -torch.exp(way.A_log.float()), B, C, way.D, way.dt_bias, z)
        return F.linear(y.mT, self.mixer.out_proj.weight)

    def forward(self, hidden: Tensor, valid: Tensor | None = None, scan: str = "auto") -> Tensor:
        return self.one_way(self.mixer.fwd, hidden) + self.one_way(
            self.mixer.rev, hidden.flip(1)
        ).flip(1)
