"""Cases of the Triton kernels, run by `test_triton.py`: on a GPU directly, without one in a process of its own by Triton's interpreter.

TRITON_INTERPRET=1 python tests/kernels/triton_cases.py NAME ...     # prints {name: largest error of outputs and gradients}
"""

import json
import os
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from dnadiff.kernels import composed, portable, reference, triton_rowwise, triton_scan

PARITY = Path(__file__).parents[1] / "parity" / "selective_scan.safetensors"
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
    "sixty-four states": ("back", 1, 11, 3, 64, torch.float32, False),
    "padding and strong decay": ("ahead", 1, 20, 3, 4, torch.float32, True),
}
LONG = {
    "all lengths": [("both", 1, L, 3, 2, torch.float32, chunks) for L in (1, 2, 3, 7, 8, 9, 16, 65) for chunks in (False, True)],
    "as in a network": [("both", 1, 70, 70, 16, torch.float32, False), ("gated", 1, 150, 33, 16, torch.float32, True)],
    "sixty-four states in chunks": [("both", 1, 33, 19, 64, torch.float32, True)],
}
ROWWISE = ("convolutions", "one convolution", "gate", "norm", "norm after addition")


def tile(small: bool, chunks: bool) -> None:
    """Sizes for tests: spans and chunks of a few positions, blocks of 8 channels; whether time is cut into chunks."""
    if small:
        triton_scan._KEPT, triton_scan._SPAN, triton_scan._PART, triton_scan._SHORTEST = 8, 4, 2, 8
        triton_scan._FORWARD_TILE = triton_scan._BACKWARD_TILE = 32
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
        weights = [torch.arange(y.numel(), dtype=torch.float64, device=y.device).view(y.shape).mul(0.37).sin().to(y.dtype) for y in outputs]
        found.append([*(y.detach() for y in outputs), *torch.autograd.grad(sum((y * w).sum() for y, w in zip(outputs, weights)), leaves)])
    for x, leaf in zip(found[0][-len(inputs) :], inputs):
        assert x.dtype == leaf.dtype
    return [float((x.double() - y).abs().max() / y.abs().max().clamp_min(1e-6)) for x, y in zip(*found, strict=True)]


def scan(way: str, Bt: int, L: int, E: int, N: int, dtype: torch.dtype, chunks: bool, device: str, name: str) -> list[float]:
    tile(device == "cpu", chunks)
    ways = 2 if way == "both" else 1
    inputs = []
    for direction in range(ways):
        u, delta, A, B, C, D, bias = random(device, (Bt, L, E), (Bt, L + direction, E), (E, N), (Bt, L, 2 * N), (Bt, L), (E,), (E,))
        if name.startswith("padding"):
            delta[:, [0, 5, 19]], delta[:, 1::3] = -1e4, 40.0
        B, C = (x.to(dtype) for x in (B[..., :N], B[..., N:]))  # slices of rows, as in a network
        inputs += [u.to(dtype), delta[:, :L].to(dtype), -A.exp(), B, C, D, bias]
    z = random(device, (Bt, L, E, 1))[0][..., 0].to(dtype)
    if way == "both":
        return differences(lambda *x: triton_scan.scans(x[:7], x[7:]), lambda *x: composed.scans(reference, x[:7], x[7:]), inputs)
    if way == "gated":
        ours, theirs = triton_scan.gated_scan, lambda *x: composed.gated_scan(reference, *x)
        return differences(lambda *x: (ours(*x),), lambda *x: (theirs(*x),), [*inputs, z])
    reverse = way == "back"
    return differences(lambda *x: (triton_scan.selective_scan(*x, reverse),), lambda *x: (reference.selective_scan(*x, reverse),), inputs)


def published(device: str) -> list[float]:
    """The outputs and gradients that mamba-ssm computes."""
    triton_scan._WARPS = 10**6
    with safe_open(PARITY, "pt") as file:
        fixture = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    fixture = {name: x.mT.contiguous() if x.dim() == 3 and name != "last_state" else x for name, x in fixture.items()}
    inputs = [fixture[name].requires_grad_() for name in (*NAMES, "z")]
    out = triton_scan.gated_scan(*inputs)
    grads = torch.autograd.grad(out, inputs, fixture["dout"])
    expected = [fixture["out"], *(fixture[f"grad_{name}"] for name in (*NAMES, "z"))]
    return [float((x - y).abs().max() / y.abs().max()) for x, y in zip([out, *grads], expected, strict=True)]


def rowwise(name: str, device: str) -> list[float]:
    Bt, L, E, K = 2, 7, 11, 4
    x, y, z, taps, back, weight = random(device, (Bt, L, 2 * E), (Bt, L, E), (Bt, L, E), (E, K), (E, K), (E,))
    x = x[..., E:]
    if name == "convolutions":

        def both(module):
            return lambda x, w, b, v, c: module(x, (w, b), (v, c))

        inputs = [x, taps, weight, back, weight.flip(0)]
        return differences(both(triton_rowwise.short_convs), both(lambda *a: composed.short_convs(reference, *a)), inputs)
    ours, theirs, inputs = {
        "one convolution": (triton_rowwise.short_conv, reference.short_conv, [y, taps, weight]),
        "gate": (triton_rowwise.gated_sum, reference.gated_sum, [y, z, x]),
        "norm": (triton_rowwise.rms_norm, reference.rms_norm, [x, weight]),
        "norm after addition": (triton_rowwise.add_norm, lambda *a: composed.add_norm(reference, *a), [y, x, weight]),
    }[name]
    more = {"one convolution": [True]}.get(name, [1e-2] if "norm" in name else [])
    as_tuple = (lambda f: lambda *a: f(*a, *more)) if name == "norm after addition" else (lambda f: lambda *a: (f(*a, *more),))
    return differences(as_tuple(ours), as_tuple(theirs), inputs)


def network(name: str, device: str) -> list[float]:
    """A bidirectional network and one of one direction, against the portable scan: features and gradients of all weights."""
    from dnadiff.backbone.caduceus import Caduceus
    from dnadiff.backbone.mamba import Mamba
    from dnadiff.kernels import select
    from dnadiff.vocab import Vocab

    tile(device == "cpu", chunks=False)
    select._failure = lambda name: ""  # the probe takes the interpreter a minute
    errors, vocab = [], Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
    ids = torch.randint(7, 11, (2, 6), generator=torch.Generator().manual_seed(0)).to(device)
    valid = torch.ones(2, 6, dtype=torch.bool, device=device)
    valid[1, 4:] = False
    for kind in (Caduceus, Mamba):
        torch.manual_seed(0)
        net = kind(vocab, 8, 2, d_state=2, residual_in_fp32=True, scan="portable").to(device)
        if name == "network of bfloat16":
            net = net.bfloat16()
        found = []
        for scan in ("triton", "portable"):
            for module in net.modules():
                if hasattr(module, "scan"):
                    module.scan = scan
            with torch.autocast(device, torch.bfloat16, enabled="autocast" in name):
                features = net.features(ids, valid=valid)
            weight = torch.arange(features.numel(), device=device).view(features.shape).mul(0.37).sin()
            assert features.dtype == net.embedding.weight.dtype
            found.append([features.detach(), *torch.autograd.grad((features * weight).sum(), list(net.parameters()))])
        assert all(x.dtype == y.dtype for x, y in zip(*found))
        errors += [float((x.double() - y.double()).norm() / y.double().norm()) for x, y in zip(*found, strict=True)]
    return errors


NETWORKS = ("network", "network under autocast", "network of bfloat16")


def run(name: str, device: str) -> list[float]:
    """Errors of a case: outputs first, then gradients."""
    if name in SCANS:
        return scan(*SCANS[name], device, name)
    if name in LONG:
        return [error for case in LONG[name] for error in scan(*case, device, name)]
    if name == "portable's probe":
        from dnadiff.kernels import select

        pairs = zip(select._probe(triton_scan, device), select._probe(portable, device), strict=True)
        return [float((x - y).abs().max() / (1e-6 + y.abs().max())) for x, y in pairs]
    if name in NETWORKS:
        return network(name, device)
    return published(device) if name == "published" else rowwise(name, device)


def mend_interpreter() -> None:
    """Triton 3.6's interpreter takes arrays of one element for numbers, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if __name__ == "__main__":
    on = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    if on == "cpu":
        mend_interpreter()
    chosen = sys.argv[1:] or [*SCANS, *ROWWISE, *LONG, *NETWORKS, "published", "portable's probe"]
    found = {name: run(name, on) for name in chosen}
    print(json.dumps(found if on == "cpu" else {name: max(errors) for name, errors in found.items()}))
