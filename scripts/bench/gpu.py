"""The selective scan and training steps of Caduceus on one GPU: Triton kernels, mamba-ssm's scan,
and the published wiring with it.

    python scripts/bench/gpu.py [--json FILE] [--minutes 9] [--prebuilt DIR] [--no-check]
    [--compile] [--tune] [--scan NAME] python scripts/bench/gpu.py --device cpu --quick
    # tests the script itself

Needs torch, Triton and the package's kernels and backbones, but no network access, Lightning or
Hydra. First, unless --no-check, the Triton kernels are compared with the float64 reference on the
GPU, then the GPU's copy and matrix rates are measured, then the tables are filled, the most
informative cells first. Each row is printed and written immediately. A cell that fails prints the
reason and the others continue (in a new process, if the failure killed the process or the GPU
context), and no cell starts after --minutes. `--prebuilt` is a folder with mamba-ssm's extensions
(`selective_scan_cuda*.so[.xz]`, `causal_conv1d_cuda*.so[.xz]`).

Times are medians of calls between CUDA events. A training step is forward under bfloat16 autocast,
cross-entropy at half of the positions, backward and fused AdamW; 131,072 tokens at every length.
The limit of a scan is its bytes, each array moved once, at the rate of a copy; of a step the bytes
of arrays between kernels that cannot be fused (40 E + 16 D forward for each layer and token, 3
times that with the backward pass) at the rate of a copy, plus the matrix products at their rate.
"""

import argparse
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import published_wiring
import torch
from measuring import Machine
from reporting import STATE, Report, supervised
from torch import Tensor, nn

from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.kernels.backend import ScanInputs
from dnadiff.networks.kernels.facade import (
    SCANS,
    available_scans,
    kernels,
    selective_scan,
)
from dnadiff.networks.kernels.portable import probe

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
SIZES = [(256, 4), (118, 4), (256, 16)]
LENGTHS = [1024, 131072, 16384]
TOKENS, LONGEST, STATES = 131072, 1048576, 16


def scan_inputs(
    machine: Machine, Bt: int, L: int, E: int, dtype: torch.dtype, N: int = STATES
) -> ScanInputs:
    """Random inputs, with step sizes in the range of networks."""
    random = [
        torch.randn(shape, device=machine.device)
        for shape in ((Bt, L, E), (Bt, L, E), (Bt, L, N), (Bt, L, N), (E,), (E,))
    ]
    u, delta, B, C, D, bias = random
    A = -torch.arange(1.0, N + 1, device=machine.device).repeat(E, 1)
    wide = [x.to(dtype).requires_grad_() for x in (u, delta - 3, B, C)]
    return ScanInputs(
        wide[0],
        wide[1],
        A.requires_grad_(),
        wide[2],
        wide[3],
        D.requires_grad_(),
        bias.requires_grad_(),
    )


def check(machine: Machine, report: Report, scan: str) -> None:
    """Compare the scan with the float64 reference: outputs and gradients, maximum difference over
    maximum value."""

    def compare(f: Callable, dtype: torch.dtype, shape: tuple[int, ...], expected_by: str) -> float:
        inputs = scan_inputs(machine, *shape[:3], dtype, shape[3])
        wide = [x.detach().double().requires_grad_() for x in inputs]
        found = []
        for tensors, by in ((list(inputs), scan), (wide, expected_by)):
            y = f(tensors, by)
            weight = (
                torch.arange(y.numel(), device=y.device)
                .view(y.shape)
                .mul(0.37)
                .sin()
                .to(dtype)
                .to(y.dtype)
            )
            found.append([y, *torch.autograd.grad((y * weight).sum(), tensors)])
        errors = [
            float(((x.double() - y).abs().max() / y.abs().max()).detach())
            for x, y in zip(*found, strict=True)
        ]
        report.rows.append({"name": "errors by output", "errors": errors})
        return max(errors)

    def add_error(name: str, dtype: torch.dtype, error: float) -> None:
        tolerance = 1e-4 if dtype == torch.float32 else 1e-2
        report.add(
            name,
            error,
            "of largest",
            verdict="right" if error < tolerance else f"WRONG: more than {tolerance:.0e}",
        )

    def both(x: list[Tensor], by: str) -> Tensor:
        return torch.cat(kernels(by, x[0]).scans(ScanInputs(*x), ScanInputs(*x)), -1)

    ways = {
        "forwards": lambda x, by: selective_scan(*x, scan=by),
        "backwards": lambda x, by: selective_scan(*x, reverse=True, scan=by),
        "both": both,
        "gated": lambda x, by: kernels(by, x[0]).gated_scan(ScanInputs(*x), x[1]),
    }
    shapes = (
        [(2, 37, 19, 5)]
        if machine.quick
        else [(2, 37, 19, 5), (3, 250, 70, 16), (1, 130, 33, 64), (2, 61, 512, 1)]
    )
    for way, f in ways.items():
        for shape in shapes:
            for dtype in (torch.float32,) if machine.quick else (torch.float32, torch.bfloat16):
                name = f"error of {scan} {way} {shape} {str(dtype)[6:]}"
                report.cell(
                    name,
                    lambda n=name, f=f, d=dtype, s=shape: add_error(
                        n, d, compare(f, d, s, "reference")
                    ),
                    5,
                )
    if not machine.quick:
        name = f"error of {scan} both (1, 20011, 40, 16) float32, in chunks"
        report.cell(
            name,
            lambda: add_error(
                name, torch.float32, compare(both, torch.float32, (1, 20011, 40, 16), "portable")
            ),
            5,
        )


def kernel_table(report: Report) -> None:
    """Registers, spills and shared memory of every compiled kernel."""
    from dnadiff.networks.kernels import triton_gradients, triton_kernels, triton_row_kernels

    for module in (triton_kernels, triton_gradients, triton_row_kernels):
        for name, kernel in vars(module).items():
            for cache in getattr(kernel, "device_caches", {}).values():
                for compiled in cache[0].values():
                    report.add(
                        f"registers of {name}",
                        compiled.n_regs,
                        "",
                        spills=compiled.n_spills,
                        shared=compiled.metadata.shared,
                    )


def scan_rows(
    machine: Machine, report: Report, width: int, L: int, scans: list[str], tiles: str = ""
) -> None:
    """Both directions of a layer's scan in bfloat16, forward and forward + backward; `tiles` is the
    label of non-default tile sizes."""
    E, Bt = 2 * width, max(1, (1024 if machine.quick else TOKENS) // L)
    bytes_moved = {
        "forward": 2 * Bt * L * 2 * (3 * E + 2 * STATES),
        "forward+backward": 2 * Bt * L * 2 * (8 * E + 6 * STATES),
    }

    def measure(
        name: str, make: Callable[[], tuple[Callable[[], tuple[Tensor, ...]], list[Tensor]]]
    ) -> None:
        f, leaves = make()
        weight = [torch.randn_like(y) for y in f()]
        for part, call in (
            ("forward", lambda: f()),
            ("forward+backward", lambda: torch.autograd.grad(f(), leaves, weight)),
        ):
            with torch.set_grad_enabled(part != "forward"):
                took, spread = machine.timed(call, 0.4)
                memory = machine.peak(call)
            share, label = bytes_moved[part] / machine.copy / took, f"scan {part} E{E} B{Bt} L{L} "
            ratio = (report.first(label) or took * 1e3) / (took * 1e3)
            report.add(
                f"{label}{name}",
                took * 1e3,
                "ms",
                faster=ratio,
                of_limit=share,
                GB=memory / 1e9,
                spread=spread,
            )

    def ours(scan: str) -> tuple[Callable[[], tuple[Tensor, ...]], list[Tensor]]:
        ahead, back = (scan_inputs(machine, Bt, L, E, torch.bfloat16) for _ in range(2))
        return lambda: kernels(scan, ahead[0]).scans(ahead, back), [*ahead, *back]

    def raw() -> tuple[Callable[[], tuple[Tensor, ...]], list[Tensor]]:
        ways = [
            [
                x.detach().mT.contiguous() if x.dim() == 3 else x.detach()
                for x in scan_inputs(machine, Bt, L, E, torch.bfloat16)
            ]
            for _ in "ab"
        ]
        leaves = [x.requires_grad_() for way in ways for x in way]
        return lambda: tuple(published_wiring.cuda_scan(*way) for way in ways), leaves

    if published_wiring.CudaScan.raw is not None:
        report.cell(
            f"scan E{E} L{L} mamba-ssm, no flips",
            lambda: measure("mamba-ssm's, channels first, no flips", raw),
        )
    for scan in scans:
        report.cell(
            f"scan E{E} L{L} {scan}{tiles}",
            lambda scan=scan: measure(f"{scan}{tiles}", lambda: ours(scan)),
        )


def training_step(machine: Machine, network: nn.Module, Bt: int, L: int) -> Callable[[], Tensor]:
    """A training step as a function without arguments, with fixed shapes."""
    ids = torch.randint(7, 11, (Bt, L), device=machine.device)
    index = (torch.rand(Bt * L, device=machine.device) < 0.5).nonzero()[:, 0]
    masked = ids.flatten().index_fill(0, index, DNA.mask_id).view(Bt, L)
    target = ids.flatten()[index]
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True, capturable=machine.cuda)

    def step() -> Tensor:
        with torch.autocast(machine.device, torch.bfloat16):
            features = network.features(masked).flatten(0, 1).index_select(0, index)
            loss = nn.functional.cross_entropy(network.head(features), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def captured(step: Callable[[], Tensor]) -> Callable[[], None]:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def limit(machine: Machine, width: int, layers: int, tokens: int) -> float:
    """Lower bound in seconds for a training step; see the module docstring."""
    E, rank = 2 * width, math.ceil(width / 16)
    layer = width * 2 * E + 2 * (E * (rank + 2 * STATES) + rank * E) + E * width
    flops = 3 * 2 * tokens * (layers * layer + 16 * width / 2)
    return 3 * tokens * layers * (40 * E + 16 * width) / machine.copy + flops / machine.product


def step_rows(
    machine: Machine,
    report: Report,
    size: tuple[int, int],
    L: int,
    variants: list[str],
    **network_options: bool,
) -> None:
    """Tokens per second and memory of a training step, for each variant."""
    (width, layers), Bt = size, max(1, (1024 if machine.quick else TOKENS) // L)

    def measure(variant: str) -> None:
        scan = "mamba_extension" if "mamba" in variant else variant.split()[0]
        with torch.device(machine.device):
            torch.manual_seed(0)
            network = Caduceus(
                DNA, width, layers, scan="auto" if "mamba" in variant else scan, **network_options
            )
        if "mamba" in variant:
            for module in network.modules():
                if hasattr(module, "scan"):
                    module.scan = scan
        if variant.startswith("published"):
            for layer in network.layers:
                layer.mixer = published_wiring.PublishedMixer(layer.mixer)
        if "compiled" in variant:
            network.features = torch.compile(network.features)
        step = training_step(machine, network, Bt, L)
        step()
        memory = machine.peak(step)
        run = captured(step) if "graph" in variant else step
        took, spread = machine.timed(run, 1.0)
        label, rate = f"step {width}x{layers} B{Bt} L{L} ", Bt * L / took
        report.add(
            f"{label}{variant}", rate, "tokens/s", faster=rate / (report.first(label) or rate),
            of_limit=limit(machine, width, layers, Bt * L) / took, GB=memory / 1e9, spread=spread,
        )  # fmt: skip

    for variant in variants:
        name = f"step {width}x{layers} L{L} {variant}"
        report.cell(
            name, lambda variant=variant: measure(variant), 120 if "compiled" in variant else 20
        )


def tune(machine: Machine, report: Report) -> None:
    """Time the scan with other tile sizes than the ones in `triton_scan`."""
    from dnadiff.networks.kernels import triton_scan

    names = ("_FORWARD_TILE", "_CHUNK_TILE", "_BACKWARD_TILE", "_SPAN", "_UNROLL", "_WARPS")
    chosen = {name: getattr(triton_scan, name) for name in names}
    trials = [
        {},
        {"_UNROLL": 1},
        {"_UNROLL": 4},
        {"_FORWARD_TILE": 1024},
        {"_CHUNK_TILE": 2048},
        {"_WARPS": 4},
        {"_WARPS": 16},
    ]
    trials += [{"_SPAN": 2}, {"_BACKWARD_TILE": 256}, {"_BACKWARD_TILE": 1024}]
    for trial in trials:
        for name, value in (chosen | trial).items():
            setattr(triton_scan, name, value)
        for L in (1024, 131072):
            scan_rows(
                machine,
                report,
                256,
                L,
                ["triton"],
                " ".join(["", *(f"{name}={value}" for name, value in trial.items())]),
            )
    for name, value in chosen.items():
        setattr(triton_scan, name, value)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device",
        default="cuda",
        choices=["cuda", "cpu"],
        help="cpu: tests the script (with --quick)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each row immediately")
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="start no cell after this many minutes (default: %(default)s)",
    )
    parser.add_argument(
        "--prebuilt",
        type=Path,
        metavar="DIR",
        help="folder with mamba-ssm's extensions, .so or .so.xz",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="also time a step under torch.compile, which takes minutes to compile",
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help=(
            "skip the comparison with the float64 reference (scripts/gpu/steps.py has it in pieces)"
        ),
    )
    parser.add_argument(
        "--tune", action="store_true", help="time only the scan, with other tile sizes"
    )
    parser.add_argument(
        "--scan",
        choices=list(SCANS),
        help="the scan to test (default: triton on a GPU, otherwise cpu)",
    )
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "--device cuda needs a CUDA device, and PyTorch finds none; --device cpu --quick tests "
            "the script"
        )
    if STATE not in os.environ:
        sys.exit(supervised(options.minutes))
    report, machine = Report(options.json, options.minutes), Machine(options.device, options.quick)
    torch.manual_seed(0)
    ours = options.scan or started(machine, report, options.prebuilt)
    scans = [ours] if ours != "portable" else []
    if not options.no_check:
        check(machine, report, ours)
    report.cell("rates", lambda: machine.rates(report), 5)
    machine.recall(report)
    if options.tune:
        return tune(machine, report)
    if published_wiring.CudaScan.raw is not None:
        SCANS["mamba_extension"] = published_wiring.around(SCANS[ours])
    tables(machine, report, ours, scans, options.compile)
    if machine.cuda and ours == "triton":
        report.cell("registers", lambda: kernel_table(report), 1)


def started(machine: Machine, report: Report, prebuilt: Path | None) -> str:
    """Print which scans and extensions are available, load mamba-ssm's extensions, and return the
    name of our scan."""
    count = (
        torch.cuda.get_device_properties(0).multi_processor_count
        if machine.cuda
        else torch.get_num_threads()
    )
    print(
        f"{machine.name()}, PyTorch {torch.__version__}, {count} multiprocessors or threads",
        flush=True,
    )
    reasons = dict.fromkeys(SCANS, "a process died when it was tried")
    if report.begin("scans"):
        reasons = available_scans()
        if machine.cuda and reasons["triton"]:
            try:
                probe(SCANS["triton"], torch.device("cuda"))
            except Exception:  # the reason is one line; fixing it takes the traceback
                traceback.print_exc(file=sys.stdout)
        report.finish()
    for name, reason in reasons.items():
        print(f"{name}: {reason or SCANS[name].description()}", flush=True)
    extensions = dict.fromkeys(
        ("selective_scan_cuda", "causal_conv1d_cuda"), "a process died when they were tried"
    )
    if not machine.cuda:
        extensions = {}
    elif report.begin("extensions"):
        extensions = published_wiring.load(prebuilt)
        report.finish()
    for name, reason in extensions.items():
        print(f"{name}: {reason or 'works'}", flush=True)
    report.rows.append(
        {
            "name": "device",
            "device": machine.name(),
            "torch": torch.__version__,
            "scans": reasons,
            "extensions": extensions,
        }
    )
    return (
        "cpu"
        if not machine.cuda and not reasons["cpu"]
        else "triton"
        if machine.cuda and not reasons["triton"]
        else "portable"
    )


def tables(machine: Machine, report: Report, ours: str, scans: list[str], compiled: bool) -> None:
    """All rows, the most important ones first."""
    sizes, lengths = ([(16, 2)], [128]) if machine.quick else (SIZES, LENGTHS)
    variants = (
        ["published, mamba-ssm's scan", "ours, mamba-ssm's scan"]
        if "mamba_extension" in SCANS
        else []
    )
    for size in sizes[:2]:
        for L in lengths:
            scan_rows(machine, report, size[0], L, scans or ["portable"])
            step_rows(machine, report, size, L, [*variants, ours])
    step_rows(
        machine,
        report,
        sizes[-1],
        512 if machine.quick else LONGEST,
        [ours],
        activation_checkpointing=True,
    )
    for L in lengths if len(sizes) > 2 else []:
        step_rows(machine, report, sizes[2], L, [*variants, ours])
    if not machine.quick:
        step_rows(machine, report, sizes[0], 1024, ["portable"])
    for size in sizes[:2] if machine.cuda else []:
        for (
            L
        ) in lengths:  # late, because a failed capture breaks PyTorch's random numbers on the GPU
            step_rows(machine, report, size, L, [f"{ours} graph"])
    if compiled:
        step_rows(machine, report, sizes[0], lengths[0], [ours, f"{ours} compiled"])


if __name__ == "__main__":
    main()
