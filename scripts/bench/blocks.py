"""Time scans and convolutions of blocks relative to those of the whole sequence, in the same run.

    python scripts/bench/blocks.py [--quick] [--device cuda] [--scan NAME] [--json FILE]

Block diffusion with a carried state needs three scans of L positions in each layer and direction pair; each is compared with the plain scan
of the same size:

- clean: `scan_with_states`, which returns the states before the blocks; backward with gradients of these states;
- noised: `scan_blocks` from given states; backward with their gradients;
- reverse: `scan_blocks` in reverse, from zero.

The throughput is that of the plain scan divided by the time of the block scan over that of the plain one. Calls alternate, and the ratio is
the median of ratios of neighboring calls, because the speed of a busy machine changes slowly. The limit of a block scan is written with it: the
plain scan's time plus the bytes of the states, each moved once, at the rate of a copy.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import Machine

from dnadiff.commands import keep_freed_memory
from dnadiff.kernels import (
    SCANS,
    ScanInputs,
    chosen_scan,
    conv_blocks,
    inputs_before_blocks,
    scan_blocks,
    scan_with_states,
    selective_scan,
    short_conv,
)

SIZES = [(4, 1024, 256, 16), (16, 1024, 128, 16)]  # batch, length, channels, states
BLOCKS = (1, 4, 8, 16, 32, 64)
TAPS = 4
Call = Callable[[], object]


def compared(machine: Machine, plain: Call, other: Call, seconds: float) -> tuple[float, float, float]:
    """Fastest seconds of `plain` and of `other`, and the median of their ratios in neighboring calls."""
    for f in (plain, other, plain, other):
        f()
    times: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begin < seconds and len(times) < 300):
        times.append((machine.once(plain), machine.once(other)))
    first, second = zip(*times, strict=True)
    return min(first), min(second), statistics.median(x / y for x, y in times)


def tensors(size: tuple[int, int, int, int], device: str) -> ScanInputs:
    Bt, L, E, N = size
    torch.manual_seed(0)
    shapes = [(Bt, L, E), (Bt, L, E), (E, N), (Bt, L, N), (Bt, L, N), (E,), (E,)]
    made = [torch.randn(s, device=device) for s in shapes]
    made[1] -= 3.0
    made[2] = -torch.arange(1.0, N + 1, device=device).expand(E, N).clone()
    return ScanInputs(*(x.requires_grad_() for x in made))


def parts(f: Callable[[], tuple[torch.Tensor, ...]], leaves: list[torch.Tensor]) -> dict[str, Call]:
    """Forward alone, and forward and backward with gradients of all results."""

    def forward() -> None:
        with torch.no_grad():
            f()

    grads = [torch.randn_like(y) for y in f()]
    return {"forward": forward, "forward+backward": lambda: torch.autograd.grad(f(), leaves, grads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the first size and blocks of 16, a few repeats")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scan", default="auto", choices=["auto", *SCANS])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows of name, value, unit, ratio and the reference of the ratio")
    args = parser.parse_args()
    seconds, sizes, blocks = (0.2, SIZES[:1], (16,)) if args.quick else (1.0, SIZES, BLOCKS)

    keep_freed_memory()
    machine, rows = Machine(args.device, args.quick), []
    x = torch.zeros(2**25, device=args.device)
    y = torch.empty_like(x)
    copy = 2 * x.nbytes / machine.median(lambda: y.copy_(x))
    scan = chosen_scan(args.scan, args.device, torch.float32)
    print(f"{machine.name()}, {torch.get_num_threads()} threads, {copy * 1e-9:.1f} GB/s in a copy, {scan}: {SCANS[scan].description()}")

    def report(label: str, plain: Call, other: Call, to: str, moved: float) -> None:
        base, took, ratio = compared(machine, plain, other, seconds)
        limit = base / (base + moved / copy)
        rows.append({"name": label, "value": took * 1e3, "unit": "ms", "ratio": ratio, "to": f"{to}, {base * 1e3:.2f} ms", "limit": limit})
        print(f"{label:64} {took * 1e3:8.2f} ms {ratio:6.2f} x the throughput of {to} ({base * 1e3:.2f} ms), limit {limit:.2f}", flush=True)

    for size in sizes:
        Bt, L, E, N = size
        inputs = tensors(size, args.device)
        at = f"B{Bt} L{L} E{E} N{N}"
        plain = parts(lambda inputs=inputs: (selective_scan(*inputs, scan=scan),), list(inputs))
        taps, bias = (torch.randn(s, device=args.device, requires_grad=True) for s in ((E, TAPS), (E,)))
        conv = parts(lambda inputs=inputs, taps=taps, bias=bias: (short_conv(inputs.u, taps, bias, scan=scan),), [inputs.u, taps, bias])
        for b in blocks:
            starts = scan_with_states(inputs, b, scan=scan).starts.detach().requires_grad_()
            near = inputs_before_blocks(inputs.u.detach(), TAPS, b).contiguous().requires_grad_()
            calls = {
                "clean": parts(lambda inputs=inputs, b=b: scan_with_states(inputs, b, scan=scan)[:2], list(inputs)),
                "noised": parts(lambda inputs=inputs, b=b, h=starts: (scan_blocks(inputs, b, h, scan=scan),), [*inputs, starts]),
                "reverse": parts(lambda inputs=inputs, b=b: (scan_blocks(inputs, b, reverse=True, scan=scan),), list(inputs)),
            }
            for part, f in plain.items():
                for name, call in calls.items():
                    moved = {"clean": 1, "noised": 1, "reverse": 0}[name] * starts.nbytes * (1 if part == "forward" else 3)
                    report(f"{name} scan, b {b}, {part} {at}", f, call[part], "the plain scan", moved)
                conv_call = parts(
                    lambda inputs=inputs, b=b, near=near, taps=taps, bias=bias: (conv_blocks(inputs.u, taps, bias, b, near, scan=scan),),
                    [inputs.u, taps, bias, near],
                )
                report(
                    f"noised convolution, b {b}, {part} {at}",
                    conv[part],
                    conv_call[part],
                    "the plain one",
                    near.nbytes * (1 if part == "forward" else 3),
                )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
