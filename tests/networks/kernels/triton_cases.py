"""Cases of the Triton kernels for `test_triton.py`: run on a GPU, or without one by Triton's
interpreter in a separate process.

TRITON_INTERPRET=1 python tests/networks/kernels/triton_cases.py NAME ...     # prints {name:
largest error of outputs and gradients}
"""

import json
import math
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from dnadiff.networks.kernels import log_sum, triton_rowwise, triton_scan
from dnadiff.networks.kernels.backend import ScanInputs, Walk
from dnadiff.networks.kernels.facade import SCANS as BACKENDS
from dnadiff.networks.kernels.portable import probe

PARITY = Path(__file__).parents[2] / "parity" / "selective_scan.safetensors"
TRITON, PORTABLE, REFERENCE = BACKENDS["triton"], BACKENDS["portable"], BACKENDS["reference"]
NAMES = ("u", "delta", "A", "B", "C", "D", "delta_bias")
# name: (way, Bt, L, E, N, type of the large inputs, chunks)
SCANS = {
    "one state": ("ahead", 1, 9, 3, 1, torch.float32, False),
    "five states, backwards": ("back", 2, 11, 11, 5, torch.float32, False),
    "sixteen states in chunks": ("ahead", 1, 27, 5, 16, torch.float32, True),
    "backwards in chunks": ("back", 1, 27, 9, 3, torch.float32, True),
    "both": ("both", 2, 13, 9, 4, torch.float32, False),
    "both in chunks": ("both", 1, 21, 3, 5, torch.float32, True),
    "gated": ("gated", 1, 13, 5, 4, torch.float32, False),
    "gated in chunks": ("gated", 1, 21, 3, 4, torch.float32, True),
    "bfloat16": ("both", 1, 13, 5, 4, torch.bfloat16, False),
    "float16": ("ahead", 1, 13, 5, 4, torch.float16, False),
    "both in bfloat16 in chunks": ("both", 1, 21, 9, 4, torch.bfloat16, True),
    "gated in bfloat16 in chunks": ("gated", 1, 21, 12, 4, torch.bfloat16, True),
    "sixty-four states": ("back", 1, 11, 3, 64, torch.float32, False),
    "padding and strong decay": ("ahead", 1, 20, 3, 4, torch.float32, True),
}
LONG = {
    "all lengths": [
        ("both", 1, L, 3, 2, torch.float32, chunks)
        for L in (1, 2, 3, 7, 8, 9, 16, 65)
        for chunks in (False, True)
    ],
    "as in a network": [
        ("both", 1, 70, 70, 16, torch.float32, False),
        ("gated", 1, 150, 33, 16, torch.float32, True),
    ],
    "sixty-four states in chunks": [("both", 1, 33, 19, 64, torch.float32, True)],
}
# name: (reverse, L, E, N, block, whether blocks restart, whether a state is given, type, chunks)
STATES = {
    "carried": (False, 13, 3, 4, None, False, True, torch.float32, False),
    "carried in chunks": (False, 21, 3, 4, None, False, True, torch.float32, True),
    "carried in bfloat16": (True, 11, 9, 2, None, False, True, torch.bfloat16, False),
    "carried in reverse in chunks": (True, 21, 3, 2, None, False, True, torch.float32, True),
    "states before blocks": (False, 13, 3, 4, 4, False, True, torch.float32, False),
    "states before blocks in chunks": (False, 29, 3, 4, 4, False, False, torch.float32, True),
    "states before blocks in bfloat16 in chunks": (
        False,
        29,
        12,
        4,
        4,
        False,
        True,
        torch.bfloat16,
        True,
    ),
    "states before odd blocks": (False, 13, 3, 3, 3, False, False, torch.float32, False),
    "states before every position": (False, 5, 3, 2, 1, False, True, torch.float32, False),
    "states before long blocks": (False, 27, 3, 2, 16, False, True, torch.float32, False),
    "states before long uneven blocks": (False, 27, 3, 2, 11, False, True, torch.float32, True),
    "blocks": (False, 13, 9, 4, 4, True, True, torch.float32, False),
    "blocks in chunks": (False, 29, 3, 4, 4, True, True, torch.float32, True),
    "blocks of one position": (False, 5, 3, 2, 1, True, True, torch.float32, False),
    "odd blocks": (False, 22, 3, 2, 5, True, True, torch.float32, True),
    "long blocks": (False, 41, 3, 2, 18, True, True, torch.float32, True),
    "blocks from zero": (False, 13, 3, 4, 4, True, False, torch.float32, False),
    "reverse blocks": (True, 13, 3, 4, 6, True, True, torch.float32, False),
    "reverse blocks from zero in chunks": (True, 29, 3, 4, 5, True, False, torch.float32, True),
    "reverse blocks in bfloat16 in chunks": (True, 29, 12, 4, 6, True, True, torch.bfloat16, True),
}
# name: (reverse, L, block, whether inputs are given)
CONVS = {
    "convolution of blocks": (False, 11, 4, True),
    "convolution of blocks alone": (False, 11, 3, False),
    "reverse convolution of blocks": (True, 11, 4, True),
    "reverse convolution of short blocks": (True, 5, 2, False),
    "convolution of single positions": (False, 5, 1, True),
    "convolution after given inputs": (False, 5, 5, True),
}
ROWWISE = ("convolutions", "one convolution", "gate", "norm", "norm after addition")


def tile(small: bool, chunks: bool) -> None:
    """Sizes for tests: segments and chunks of a few positions, blocks of 8 channels; whether time
    is cut into chunks."""
    if small:
        triton_scan._KEPT = triton_scan._SHORTEST = 8
        triton_scan._FORWARD_TILE = triton_scan._CHUNK_TILE = triton_scan._BACKWARD_TILE = 32
    triton_scan._WARPS = 10**6 if chunks else 0


def random(device: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def differences(ours, theirs, inputs: list[Tensor]) -> list[float]:
    """Largest difference over largest value of outputs and gradients; `theirs` gets float64."""
    found = []
    for f, tensors in ((ours, inputs), (theirs, [x.double() for x in inputs])):
        leaves = [x.detach().requires_grad_() for x in tensors]
        outputs = f(*leaves)
        weights = [
            torch.arange(y.numel(), dtype=torch.float64, device=y.device)
            .view(y.shape)
            .mul(0.37)
            .sin()
            .to(y.dtype)
            for y in outputs
        ]
        found.append(
            [
                *(y.detach() for y in outputs),
                *torch.autograd.grad(sum((y * w).sum() for y, w in zip(outputs, weights)), leaves),
            ]
        )
    for x, leaf in zip(found[0][-len(inputs) :], inputs):
        assert x.dtype == leaf.dtype
    return [
        float((x.double() - y).abs().max() / y.abs().max().clamp_min(1e-6))
        for x, y in zip(*found, strict=True)
    ]


def scan(
    way: str,
    Bt: int,
    L: int,
    E: int,
    N: int,
    dtype: torch.dtype,
    chunks: bool,
    device: str,
    name: str,
) -> list[float]:
    tile(device == "cpu", chunks)
    if chunks and device != "cpu":
        L *= 20  # chunks are not as short there
    ways = 2 if way == "both" else 1
    inputs = []
    for direction in range(ways):
        u, delta, A, B, C, D, bias = random(
            device, (Bt, L, E), (Bt, L + direction, E), (E, N), (Bt, L, 2 * N), (Bt, L), (E,), (E,)
        )
        if name.startswith("padding"):
            delta[:, [0, 5, 19]], delta[:, 1::3] = -1e4, 40.0
        B, C = (x.to(dtype) for x in (B[..., :N], B[..., N:]))  # slices of rows, as in a network
        inputs += [u.to(dtype), delta[:, :L].to(dtype), -A.exp(), B, C, D, bias]
    z = random(device, (Bt, L, E, 1))[0][..., 0].to(dtype)
    if way == "both":
        ours, theirs = (
            lambda *x, by=by: by.scans(ScanInputs(*x[:7]), ScanInputs(*x[7:]))
            for by in (TRITON, REFERENCE)
        )
        return differences(ours, theirs, inputs)
    if way == "gated":
        ours, theirs = (
            lambda *x, by=by: (by.gated_scan(ScanInputs(*x[:7]), x[7]),)
            for by in (TRITON, REFERENCE)
        )
        return differences(ours, theirs, [*inputs, z])
    reverse = way == "back"
    ours, theirs = (
        lambda *x, by=by: (by.scan(ScanInputs(*x), Walk(reverse)).y,) for by in (TRITON, REFERENCE)
    )
    return differences(ours, theirs, inputs)


def states(
    reverse: bool,
    L: int,
    E: int,
    N: int,
    block: int | None,
    restart: bool,
    given: bool,
    dtype: torch.dtype,
    chunks: bool,
    device: str,
) -> list[float]:
    """Outputs, returned states, and all gradients, of scans from given states and in blocks."""
    tile(device == "cpu", chunks)
    Bt, blocks = 2 if L < 14 else 1, -(-L // block) if restart else 1
    u, delta, A, B, D, bias, h = random(
        device, (Bt, L, E), (Bt, L + 1, E), (E, N), (Bt, L, 2 * N), (E,), (E,), (Bt, blocks, E, N)
    )
    inputs = [
        u.to(dtype),
        delta[:, :L].to(dtype),
        -A.exp(),
        B[..., :N].to(dtype),
        B[..., N:].to(dtype),
        D,
        bias,
    ]

    def outputs(by):
        def run(*x):
            initial = x[7] if given else None
            initial = initial if restart or initial is None else initial[:, 0]
            walk = Walk(reverse, initial, block, restart, not restart)
            return tuple(y for y in by.scan(ScanInputs(*x[:7]), walk) if y is not None)

        return run

    return differences(outputs(TRITON), outputs(REFERENCE), [*inputs, h] if given else inputs)


def published(device: str) -> list[float]:
    """The outputs and gradients that mamba-ssm computes."""
    from safetensors import safe_open  # imported late: a machine with a GPU may not have it

    triton_scan._WARPS = 10**6
    with safe_open(PARITY, "pt") as file:
        fixture = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    fixture = {
        name: x.mT.contiguous() if x.dim() == 3 and name != "last_state" else x
        for name, x in fixture.items()
    }
    inputs = [fixture[name].requires_grad_() for name in (*NAMES, "z")]
    out = TRITON.gated_scan(ScanInputs(*inputs[:7]), inputs[7])
    grads = torch.autograd.grad(out, inputs, fixture["dout"])
    expected = [fixture["out"], *(fixture[f"grad_{name}"] for name in (*NAMES, "z"))]
    return [
        float((x.detach() - y).abs().max() / y.abs().max())
        for x, y in zip([out, *grads], expected, strict=True)
    ]


def rowwise(name: str, device: str) -> list[float]:
    Bt, L, E, K = (
        2,
        11,
        9,
        4,
    )  # two tiles of positions, the second one cut by the end; fewer channels than a block
    x, y, z, taps, back, weight = random(
        device, (Bt, L, 2 * E), (Bt, L, E), (Bt, L, E), (E, K), (E, K), (E,)
    )
    x = x[..., E:]
    if name == "convolutions":

        def both(backend):
            return lambda x, w, b, v, c: backend.short_convs(x, (w, b), (v, c))

        inputs = [x, taps, weight, back, weight.flip(0)]
        return differences(both(TRITON), both(REFERENCE), inputs)
    ours, theirs, inputs = {
        "one convolution": (TRITON.short_conv, REFERENCE.short_conv, [y, taps, weight]),
        "gate": (TRITON.gated_sum, REFERENCE.gated_sum, [y, z, x]),
        "norm": (TRITON.rms_norm, REFERENCE.rms_norm, [x, weight]),
        "norm after addition": (TRITON.add_norm, REFERENCE.add_norm, [y, x, weight]),
    }[name]
    more = {"one convolution": [True]}.get(name, [1e-2] if "norm" in name else [])
    as_tuple = (
        (lambda f: lambda *a: f(*a, *more))
        if name == "norm after addition"
        else (lambda f: lambda *a: (f(*a, *more),))
    )
    return differences(as_tuple(ours), as_tuple(theirs), inputs)


def block_conv(reverse: bool, L: int, block: int, given: bool, device: str) -> list[float]:
    Bt, E, K = 2, 9, 4
    inputs = random(device, (Bt, L, E), (E, K), (E,), (Bt, -(-L // block), K - 1, E))

    def outputs(by):
        return lambda x, w, b, near=None: (by.short_conv(x, w, b, reverse, near, block),)

    return differences(outputs(TRITON), outputs(REFERENCE), inputs if given else inputs[:3])


def network(name: str, device: str) -> list[float]:
    """Bidirectional networks and one of one direction, against the portable scan in float32:
    features and gradients of all weights.

    In half precision both round: the result is the error of the kernels over that of the portable
    scan, root mean squares over all tensors.
    """
    from dnadiff.diffusion.vocab import Vocab
    from dnadiff.networks.backbone.caduceus import Caduceus
    from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
    from dnadiff.networks.backbone.mamba import Mamba
    from dnadiff.networks.kernels import facade

    tile(device == "cpu", chunks=False)
    facade._failure = lambda name: ""  # the interpreter would need a minute for the probe
    errors, vocab = (
        [],
        Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11), (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11)),
    )
    ids = torch.randint(7, 11, (2, 6), generator=torch.Generator().manual_seed(0)).to(device)
    valid = torch.ones(2, 6, dtype=torch.bool, device=device)
    valid[1, 4:] = False

    def computed(net: torch.nn.Module, scan: str, autocast: bool) -> list[Tensor]:
        for module in net.modules():
            if hasattr(module, "scan"):
                module.scan = scan
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            features = net.features(ids, valid=valid)
        assert features.dtype == net.embedding.weight.dtype
        weight = torch.arange(features.numel(), device=device).view(features.shape).mul(0.37).sin()
        return [
            features.detach(),
            *torch.autograd.grad((features * weight).sum(), list(net.parameters())),
        ]

    both_strands = (CaduceusPS, partial(CaduceusPS, swap_strands=True))
    for kind in both_strands if "both strands" in name else (Caduceus, Mamba):
        torch.manual_seed(0)
        net = kind(vocab, 8, 2, d_state=2, residual_in_fp32=True, scan="portable").to(device)
        net = net.bfloat16() if name == "network of bfloat16" else net
        ours, theirs = (computed(net, scan, "autocast" in name) for scan in ("triton", "portable"))
        assert all(x.dtype == y.dtype for x, y in zip(ours, theirs))
        exact = computed(net.float(), "portable", False)
        our_errors, their_errors = (
            [
                float((x.double() - y.double()).norm() / y.double().norm())
                for x, y in zip(found, exact, strict=True)
            ]
            for found in (ours, theirs)
        )
        errors += (
            our_errors
            if name in ("network", "network of both strands")
            else [math.hypot(*our_errors) / math.hypot(*their_errors)]
        )
    return errors


def calls(device: str) -> list[float]:
    """Calls with gradients of some inputs or one output alone, inputs in other layouts and types,
    and checkpointing; against portable.

    A second derivative must be refused, not be wrong.
    """
    from torch.utils.checkpoint import checkpoint

    tile(device == "cpu", chunks=False)
    errors, x = [], random(device, (2, 3, 3), (2, 3, 3), (3, 2), (2, 3, 2), (2, 3, 2), (3,), (3,))
    x[2] = -x[2].exp()

    def compare(f, g, inputs: list[Tensor], wanted: list[int]) -> None:
        pairs = []
        for call in (f, g):
            leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
            y = call(*leaves)
            pairs.append(
                [y.detach(), *torch.autograd.grad(y.float().sum(), [leaves[i] for i in wanted])]
            )
        assert all(a.dtype == b.dtype for a, b in zip(*pairs))
        errors.extend(
            float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in zip(*pairs)
        )

    def ours(*inputs: Tensor) -> Tensor:
        return TRITON.scan(ScanInputs(*inputs), Walk()).y

    def theirs(*inputs: Tensor) -> Tensor:
        return PORTABLE.scan(ScanInputs(*inputs), Walk()).y

    for i in range(7):
        compare(ours, theirs, x, [i])
    columns = [t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() == 3 else t for t in x]
    repeated = [x[0][:, :1].expand(2, 3, 3), *x[1:]]
    for inputs in (columns, repeated):
        compare(ours, theirs, inputs, list(range(7)))
    apart = [
        x[0],
        x[2].repeat(1, 2),
        torch.stack([x[5], x[6]], -1)[:, 0],
    ]  # a bias whose entries are not neighbors
    compare(
        lambda *a: TRITON.short_conv(*a, False),
        lambda *a: PORTABLE.short_conv(*a, False),
        apart,
        [0, 1, 2],
    )
    compare(lambda *a: checkpoint(ours, *a, use_reentrant=False), theirs, x, list(range(7)))
    for i in range(2):  # one of two directions used, and types that differ between them
        one, other = (
            lambda *a, i=i, by=by: by.scans(ScanInputs(*a), ScanInputs(*a))[i]
            for by in (TRITON, PORTABLE)
        )
        compare(one, other, x, list(range(7)))
    other = [t.bfloat16() for t in x]
    y, y_rev = TRITON.scans(ScanInputs(*x), ScanInputs(*other))
    assert y.dtype == torch.float32 and y_rev.dtype == torch.bfloat16
    errors.append(float((y - theirs(*x)).abs().max() / y.abs().max()))
    refused = []
    for f in (
        ours,
        lambda u, z, *_: TRITON.gated_sum(u, None, z),
        lambda u, delta, A, B, C, D, _: TRITON.rms_norm(u, D, 1e-2),
    ):
        leaves = [t.detach().requires_grad_() for t in x]
        (first,) = torch.autograd.grad(f(*leaves).square().sum(), leaves[:1], create_graph=True)
        try:
            torch.autograd.grad(first.sum(), leaves[:1])
        except NotImplementedError as error:
            refused.append(str(error))
    assert len(refused) == 3 and all(
        "no second derivative; set scan=portable" in message for message in refused
    ), refused
    return errors


def operators(device: str) -> list[float]:
    """PyTorch's checks of a custom operator: schema, gradients, and that the shapes and types of
    the fake implementation are right."""
    tile(device == "cpu", chunks=False)
    u, delta, z, B, C, A, D, taps = random(
        device, *[(1, 3, 2)] * 3, *[(1, 3, 4)] * 2, (4, 2), (2,), (4, 2)
    )
    one, every = (A[None], D[None], D[None]), torch.library.opcheck
    half = [x.bfloat16().requires_grad_() for x in (u, delta, z, B, C)]
    leaves = [x.requires_grad_() for x in (u, delta, z, B, C, taps, D)]
    u, delta, z, B, C, taps, weight = leaves
    plain, h = (None, 0, False, False), random(device, (1, 1, 4, 2))[0]
    every(triton_scan.scans, ([u], [delta], [B], [C], *one, z, False, True, *plain))
    every(
        triton_scan.scans,
        ([u], [delta], [B], [C], *one, None, False, True, h.requires_grad_(), 2, False, True),
    )
    every(
        triton_scan.scans,
        (
            [u],
            [delta],
            [B],
            [C],
            *one,
            None,
            True,
            False,
            torch.cat([h, h], 1).detach().requires_grad_(),
            2,
            True,
            True,
        ),
    )
    every(
        triton_scan.scans,
        (
            [half[0]] * 2,
            [half[1]] * 2,
            [half[3]] * 2,
            [half[4]] * 2,
            *(torch.cat([p, p]) for p in one),
            None,
            False,
            True,
            *plain,
        ),
    )
    without = [[x.detach()] for x in (u, delta, B, C)]
    every(
        triton_scan.scans,
        (*without, *one, None, True, False, *plain),
        test_utils=("test_schema", "test_faketensor"),
    )
    every(triton_rowwise.convs, (half[0], taps, weight, taps, weight, None, 0))
    every(triton_rowwise.convs, (u, None, None, taps, weight, None, 0))
    every(
        triton_rowwise.convs,
        (u, taps, weight, None, None, random(device, (1, 2, 3, 2))[0].requires_grad_(), 2),
    )
    every(triton_rowwise.gate, (half[0], half[1], half[2]))
    every(triton_rowwise.gate, (u, None, z))
    every(triton_rowwise.norm, (u, half[0], weight, 1e-2, torch.bfloat16))
    every(
        triton_rowwise.norm,
        (half[0], None, weight.detach().bfloat16().requires_grad_(), 1e-2, torch.bfloat16),
    )
    return [0.0]


def compiled(device: str) -> list[float]:
    """A network with compiled blocks, one graph each, against the same network without: with and
    without autocast."""
    from dnadiff.diffusion.vocab import Vocab
    from dnadiff.networks.backbone.caduceus import Caduceus
    from dnadiff.networks.kernels import facade

    tile(device == "cpu", chunks=False)
    facade._failure = lambda name: ""
    torch.manual_seed(0)
    net = Caduceus(Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11)), 4, 2, d_state=2, scan="triton").to(
        device
    )
    ids, found = torch.tensor([[7, 8, 9]], device=device), []
    for backend in (None, "aot_eager" if device == "cpu" else "inductor"):
        for layer in net.layers if backend else ():
            layer.compile(backend=backend, fullgraph=True)
        for autocast in (False, True):
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                features = net.features(ids)
            loss = (features * features.detach().cos()).sum()
            found.append([features.detach(), *torch.autograd.grad(loss, list(net.parameters()))])
    pairs = [*zip(found[0], found[2], strict=True), *zip(found[1], found[3], strict=True)]
    errors = [float((x - y).norm() / y.norm().clamp_min(1e-6)) for x, y in pairs]
    half = len(found[0])
    return [
        *errors[:half],
        max(errors[half:]) / 1e3,
    ]  # under autocast products may be rounded at other points


# name: (tokens, banned tokens, whether there is a bias, block, whether under autocast)
LOSSES = {
    "loss": (150, (149, 70), True, 64, False),
    "loss in bfloat16": (150, (0,), True, None, True),
    "loss in blocks of one token": (9, (0, 1), False, 1, False),
}


def loss(
    tokens: int,
    banned: tuple[int, ...],
    with_bias: bool,
    block: int | None,
    autocast: bool,
    device: str,
) -> list[float]:
    """log sum and two logits of each row, and the gradients of features, weights and bias."""
    assert log_sum._triton_failure(torch.device(device)) == ""
    triton_rowwise._LOSS_TILE = 32 if device == "cpu" else triton_rowwise._LOSS_TILE
    features, weight, bias = random(device, (7, 6), (tokens, 6), (tokens,))
    ids = torch.arange(2, 16, device=device).view(7, 2) * 31 % (tokens - 3) + 2
    ids = torch.where(ids == 70, 3, ids)
    ids[0] = ids[0, 0]  # one token twice

    def ours(x, w, b=None):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            return log_sum.linear_log_sum(x, w, b, ids, banned, block)

    def theirs(x, w, b=None):
        logits = torch.nn.functional.linear(x, w, b)
        hidden = torch.zeros(tokens, dtype=torch.bool, device=device)
        hidden[list(banned)] = True
        return logits.masked_fill(hidden, -torch.inf).logsumexp(1), logits.gather(1, ids)

    return differences(ours, theirs, [features, weight, bias] if with_bias else [features, weight])


NETWORKS = ("network", "network of both strands", "network under autocast", "network of bfloat16")


OTHERS = ("published", "portable's probe", "ways to call it", "operators", "compiled network")


def run(name: str, device: str) -> list[float]:
    """Errors of a case: outputs first, then gradients."""
    if name in SCANS:
        return scan(*SCANS[name], device, name)
    if name in STATES:
        return states(*STATES[name], device)
    if name in CONVS:
        return block_conv(*CONVS[name], device)
    if name in LONG:
        return [error for case in LONG[name] for error in scan(*case, device, name)]
    if name in LOSSES:
        return loss(*LOSSES[name], device)
    if name == "portable's probe":
        pairs = zip(*(probe(by, torch.device(device)) for by in (TRITON, PORTABLE)), strict=True)
        return [float((x - y).abs().max() / (1e-6 + y.abs().max())) for x, y in pairs]
    if name in OTHERS[2:]:
        return {"ways to call it": calls, "operators": operators, "compiled network": compiled}[
            name
        ](device)
    if name in NETWORKS:
        return network(name, device)
    return published(device) if name == "published" else rowwise(name, device)


def patch_interpreter() -> None:
    """Fixes Triton 3.6's interpreter: it uses arrays of one element as numbers, which NumPy 2.4
    refuses, and truncates to bfloat16 where GPUs round."""
    import triton.language as tl
    from triton.runtime import interpreter

    triton_rowwise._TILES = 2  # it computes all tiles of a program, also those beyond the end
    convert = interpreter._convert_float

    def rounded(x, given, wanted, mode):
        if given != tl.float32 or wanted != tl.bfloat16:
            return convert(x, given, wanted, mode)
        return torch.tensor(x).bfloat16().view(torch.uint16).numpy()

    interpreter._convert_float = rounded

    original = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    check_bounds(interpreter)


def check_bounds(interpreter: ModuleType) -> None:
    """Refuse every access outside the arguments of a kernel: on a GPU it may read another tensor,
    or end the process."""
    extents: list[tuple[int, int]] = []
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    to_host, load, store = (
        executor._init_args_hst,
        builder.create_masked_load,
        builder.create_masked_store,
    )

    def recorded(self, args, kwargs):
        args, kwargs = to_host(self, args, kwargs)
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.numel()]
        ends = [
            1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
            for x in tensors
        ]
        extents[:] = [
            (x.data_ptr(), x.data_ptr() + end * x.element_size()) for x, end in zip(tensors, ends)
        ]
        return args, kwargs

    def check(pointers, mask) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        addresses, used = np.broadcast_arrays(pointers.data.astype(np.int64), mask.data)
        addresses = addresses[used.astype(bool)]
        inside = np.zeros(addresses.shape, dtype=bool)
        for begin, end in extents:
            inside |= (begin <= addresses) & (addresses + size <= end)
        assert inside.all(), (
            f"{(~inside).sum()} of {inside.size} accesses are outside the arguments"
        )

    def checked_load(self, pointers, mask, *more):
        check(pointers, mask)
        return load(self, pointers, mask, *more)

    def checked_store(self, pointers, value, mask, *more):
        check(pointers, mask)
        return store(self, pointers, value, mask, *more)

    executor._init_args_hst, builder.create_masked_load, builder.create_masked_store = (
        recorded,
        checked_load,
        checked_store,
    )


if __name__ == "__main__":
    on = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    if on == "cpu":
        patch_interpreter()
    chosen = sys.argv[1:] or [*SCANS, *STATES, *CONVS, *ROWWISE, *LONG, *LOSSES, *NETWORKS, *OTHERS]
    found = {name: run(name, on) for name in chosen}
    print(
        json.dumps(found if on == "cpu" else {name: max(errors) for name, errors in found.items()})
    )
