"""Compile every Triton kernel ahead of time, as it is launched, and print registers, spills and
shared memory; needs no GPU.

    python scripts/bench/registers.py [--arch 80 90] [--channels 512] [--states 16] [--dtype
    bfloat16] [--all]

The launches are those of a bidirectional layer, forward and backward, in chunks and in one piece
(--all: also of one direction, gated, and the scans of block diffusion), and of the loss over a
large vocabulary.
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dnadiff.networks.kernels import (
    triton_gradients,
    triton_kernels,
    triton_row_kernels,
    triton_rowwise,
    triton_scan,
)
from dnadiff.networks.kernels.backend import ScanInputs, Walk
from dnadiff.networks.kernels.facade import SCANS

MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (triton_kernels, triton_gradients, triton_row_kernels)
}
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Built:
    """The resources that the assembler reports for a kernel."""

    registers: int
    spilled: int
    shared: int
    cubin: bytes


class Launch:
    """A kernel and its arguments."""

    def __init__(self, kernel: Any, args: tuple, options: dict[str, Any]) -> None:
        self.kernel, self.warps = kernel, options.pop("num_warps", 4)
        self.given = dict(zip(kernel.arg_names, args)) | options

    def source(self) -> ASTSource:
        """The source that Triton compiles for this launch: types, alignments and constants."""
        signature, constants, aligned = {}, {}, {}
        for place, parameter in enumerate(self.kernel.params):
            name, value = parameter.name, self.given[parameter.name]
            fixed = parameter.is_constexpr or (
                type(value) is int and value == 1 and not parameter.do_not_specialize
            )
            if fixed:
                signature[name], constants[name] = "constexpr", value
                continue
            if isinstance(value, torch.Tensor):
                signature[name], sixteen = (
                    TYPES[value.dtype],
                    value.storage_offset() * value.element_size() % 16 == 0,
                )
            else:
                signature[name] = (
                    "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
                )
                sixteen = type(value) is int and value % 16 == 0 and not parameter.do_not_specialize
            if sixteen:
                aligned[(place,)] = [["tt.divisibility", 16]]
        return ASTSource(self.kernel, signature, constants, aligned)

    def name(self) -> str:
        """The kernel, its inputs' type and its flags."""
        flags = [
            p.name.lower()
            for p in self.kernel.params
            if p.is_constexpr and self.given[p.name] is True
        ]
        kind = next(TYPES[x.dtype][1:] for x in self.given.values() if isinstance(x, torch.Tensor))
        return " ".join([self.kernel.__name__, kind, *flags])

    def build(self, arch: int) -> Built:
        """Compile for a GPU of this compute capability (times ten).

        Raises:
            Exception: from Triton or its assembler, if compilation fails.
        """
        compiled = triton.compile(
            self.source(), target=GPUTarget("cuda", arch, 32), options={"num_warps": self.warps}
        )
        with tempfile.TemporaryDirectory() as folder:
            ptx = Path(folder) / "kernel.ptx"
            ptx.write_text(compiled.asm["ptx"])
            target = re.search(r"\.target (\w+)", compiled.asm["ptx"])[1]
            assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
            command = [assembler, "-v", "--gpu-name", target, ptx, "-o", ptx.with_suffix(".cubin")]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        registers, spilled = (
            re.search(r"Used (\d+) registers", said),
            re.search(r"(\d+) bytes spill stores", said),
        )
        return Built(
            int(registers[1]), int(spilled[1]), compiled.metadata.shared, compiled.asm["cubin"]
        )


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """A context in which kernels are recorded in a list instead of launched."""
    launches: list[Launch] = []

    class Record:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **options: launches.append(Launch(self.kernel, args, options))

    original = triton_scan.load_kernels
    modules = {
        name: SimpleNamespace(
            **{
                key: Record(value)
                for key, value in vars(module).items()
                if hasattr(value, "arg_names")
            }
        )
        for name, module in MODULES.items()
    }
    triton_scan.load_kernels = modules.__getitem__
    try:
        yield launches
    finally:
        triton_scan.load_kernels = original


def layer(
    E: int, N: int, dtype: torch.dtype, chunks: bool, ways: str = "both", L: int = 1024, K: int = 4
) -> list[Launch]:
    """The launches of a layer, forward and backward: its norm, convolutions, scan and gate; ways is
    both, back, gated or blocks.

    blocks: scans that return the states before blocks of 16 positions, start from them, and start
        from zero in reverse.
    """

    def new(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    before, triton_scan._WARPS = triton_scan._WARPS, 10**6 if chunks else 0
    try:
        with recorded() as launches:
            x, z = torch.zeros(1, L, 2 * E, dtype=dtype, requires_grad=True).chunk(2, dim=-1)
            taps, bias = new(E, K, dtype=torch.float32), new(E, dtype=torch.float32)
            A, rows = new(E, N, dtype=torch.float32), new(1, L, 16 + 2 * N)
            B, C = rows[..., 16 : 16 + N], rows[..., 16 + N :]
            backend = SCANS["triton"]
            total, normed = backend.add_norm(new(1, L, E, dtype=torch.float32), z, bias, 1e-5)
            if ways == "both":
                u, u_rev = backend.short_convs(x, (taps, bias), (taps, bias))
                y, y_rev = backend.scans(
                    ScanInputs(u, z, A, B, C, bias, bias), ScanInputs(u_rev, z, A, B, C, bias, bias)
                )
                out = backend.gated_sum(y, y_rev, z)
            elif ways == "gated":
                u = backend.short_conv(x, taps, bias)
                out = backend.gated_scan(ScanInputs(u, new(1, L, E), A, B, C, bias, bias), z)
            elif ways == "blocks":
                near, starts = (
                    new(1, -(-L // 16), K - 1, E),
                    torch.zeros(1, E, N, requires_grad=True),
                )
                inputs = ScanInputs(
                    backend.short_conv(x, taps, bias, False, near, 16), z, A, B, C, bias, bias
                )
                y, starts, last = backend.scan(inputs, Walk(False, starts, 16, states=True))
                out = (
                    y.sum()
                    + last.sum()
                    + backend.scan(inputs, Walk(False, starts, 16, restart=True)).y
                    + backend.scan(inputs, Walk(True, None, 16, restart=True)).y
                )
            else:
                u = backend.short_conv(x, taps, bias, True)
                out = backend.scan(ScanInputs(u, z, A, B, C, bias, bias), Walk(True)).y
            (out.sum() + total.sum() + normed.sum()).backward()
    finally:
        triton_scan._WARPS = before
    return launches


def loss(dtype: torch.dtype, tokens: int = 16_384, rows: int = 2) -> list[Launch]:
    """The launches for one block of the logits of a vocabulary, forward and backward."""
    logits, ids = torch.zeros(rows, tokens, dtype=dtype), torch.zeros(rows, 1, dtype=torch.int64)
    bias, sums, picked = torch.zeros(tokens), torch.zeros(rows), torch.zeros(rows, 1)
    with recorded() as launches:
        triton_rowwise.add_log_sum(logits, bias, ids, 0, sums, picked)
        triton_rowwise.logits_gradient(logits, bias, ids, 0, sums, sums.clone(), picked)
    return launches


def different(launches: list[Launch]) -> list[Launch]:
    """The launches without those that compile to the same kernel."""
    return list({launch.source().hash(): launch for launch in launches}.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arch",
        type=int,
        nargs="+",
        default=[90],
        help="compute capabilities times ten (default: %(default)s)",
    )
    parser.add_argument("--channels", type=int, default=512, help="E (default: %(default)s)")
    parser.add_argument("--states", type=int, default=16, help="N (default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--all", action="store_true", help="also one direction, and gated")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    launches = loss(dtype)
    for ways in ("both", "back", "gated", "blocks") if options.all else ("both",):
        for chunks in (True, False):
            launches += layer(options.channels, options.states, dtype, chunks, ways)
    print(
        f"{'kernel':64} {'sm':>3} {'registers':>9} {'spilled':>8} {'shared':>7}  bytes of "
        "registers spilled and of shared memory"
    )
    for arch in options.arch:
        for launch in different(launches):
            built = launch.build(arch)
            print(
                f"{launch.name():64} {arch:>3} {built.registers:>9} {built.spilled:>8} "
                f"{built.shared:>7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
