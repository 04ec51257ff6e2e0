"""Time scans, convolutions and training steps of block diffusion relative to those of whole
sequences, in the same run.

    python scripts/bench/blocks.py [--quick] [--steps] [--device cuda] [--scan NAME] [--json FILE]

Block diffusion with a carried state needs three scans of L positions in each layer and direction
pair; each is compared with the plain scan of the same size:

- clean: `scan_with_states`, which returns the states before the blocks; backward with gradients of
  these states;
- noised: `scan_blocks` from given states; backward with their gradients;
- reverse: `scan_blocks` in reverse, from zero.

The throughput is that of the plain scan divided by the time of the block scan over that of the
plain one. Calls alternate, and the ratio is the median of ratios of neighboring calls, because the
speed of a busy machine changes slowly. The limit of a block scan is written with it: the plain
scan's time plus the bytes of the states, each moved once, at the rate of a copy.

A training step of two streams, the loss with its gradients, is compared with that of the same
network without blocks. Calls take turns and the ratio is that of the fastest ones; with one thread,
in processor time, which other processes disturb least. The number beside it counts multiplications
and additions of products, convolutions and scans: the clean stream has one direction where the
noised one has two, and in the last layer it ends at its states.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import Machine

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.commands import keep_freed_memory
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import BlockDenoiser, Denoiser
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
NETWORKS = [(64, 4, 512, 16), (128, 4, 1024, 8)]  # width, layers, length, batch
STATES = (16, 4)
STEP_BLOCKS = (1, 4, 16, 64)  # and the whole sequence
Call = Callable[[], object]


def compared(
    machine: Machine, plain: Call, other: Call, seconds: float
) -> tuple[float, float, float]:
    """Fastest seconds of `plain` and of `other`, and the median of their ratios in neighboring
    calls."""
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


def operations_ratio(width: int, layers: int, states: int) -> float:
    """Operations of a training step of two streams over those of a plain one, for each position and
    layer."""
    E, R = 2 * width, math.ceil(width / 16)
    product = (
        3 * width * E
    )  # half of the input projection, or the output projection: forward, and both gradients
    steps = 3 * (E * (R + 2 * states) + R * E) + E * (
        4 * TAPS + 24
    )  # step sizes, B and C; the convolution with its SiLU
    direction = (
        steps + 31 * E * states
    )  # 12 operations for a state in the forward pass, of which the exponential is 9, and 19 backward
    plain = 3 * product + 2 * direction
    both, last = plain + 3 * product + direction, plain + product + direction
    return ((layers - 1) * both + last) / (layers * plain)


def training_steps(
    network: tuple[int, int, int, int], states: int, blocks: tuple[int, ...], scan: str, device: str
) -> dict[int, Call]:
    """The loss and its gradients at half of the positions: of the plain network (0), and in blocks
    of each size."""
    width, layers, L, Bt = network
    torch.manual_seed(0)
    vocab = DNATokenizer().vocab
    backbone = Caduceus(vocab, d_model=width, n_layers=layers, d_state=states, scan=scan).to(device)
    x0 = torch.randint(7, 11, (Bt, L), device=device)
    masked = torch.rand(Bt, L, device=device) < 0.5
    xt = x0.masked_fill(masked, vocab.mask_id)
    denoisers = {0: Denoiser(backbone), **{b: BlockDenoiser(backbone, b) for b in (*blocks, L)}}
    return {
        b: lambda d=denoiser: d.nll(x0, xt, positions=masked).mean().backward()
        for b, denoiser in denoisers.items()
    }


def step_seconds(machine: Machine, call: Call) -> float:
    """Seconds of a call, of processor time if it uses one thread of the CPU."""
    if machine.cuda or torch.get_num_threads() > 1:
        return machine.once(call)
    begin = time.process_time()
    call()
    return time.process_time() - begin


def compare_steps(machine: Machine, scan: str) -> list[dict]:
    """Rows of the training steps, printed."""
    rows, rounds = [], 2 if machine.quick else 15
    for network in NETWORKS[:1] if machine.quick else NETWORKS:
        width, layers, L, Bt = network
        for states in STATES[:1] if machine.quick else STATES:
            calls = training_steps(
                network, states, (16,) if machine.quick else STEP_BLOCKS, scan, machine.device
            )
            fastest = dict.fromkeys(calls, math.inf)
            for _ in range(rounds):
                for b, call in calls.items():
                    fastest[b] = min(fastest[b], step_seconds(machine, call))
            base, counted = fastest.pop(0), operations_ratio(width, layers, states)
            for b, took in fastest.items():
                name = (
                    f"training step, b {b}, width {width} x {layers} layers, N{states}, B{Bt} L{L}"
                )
                to = f"a plain step, {base * 1e3:.1f} ms"
                rows.append(
                    {
                        "name": name,
                        "value": took * 1e3,
                        "unit": "ms",
                        "ratio": took / base,
                        "to": to,
                        "counted": counted,
                    }
                )
                print(
                    f"{name:64} {took * 1e3:8.1f} ms {took / base:6.2f} x the time of {to}, "
                    f"operations {counted:.2f} x",
                    flush=True,
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="only the first size and blocks of 16, a few repeats"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", action="store_true", help="only the training steps")
    parser.add_argument("--scan", default="auto", choices=["auto", *SCANS])
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write rows of name, value, unit, ratio and the reference of the ratio",
    )
    args = parser.parse_args()
    seconds, sizes, blocks = (0.2, SIZES[:1], (16,)) if args.quick else (1.0, SIZES, BLOCKS)

    keep_freed_memory()
    machine, rows = Machine(args.device, args.quick), []
    x = torch.zeros(2**25, device=args.device)
    y = torch.empty_like(x)
    copy = 2 * x.nbytes / machine.median(lambda: y.copy_(x))
    scan = chosen_scan(args.scan, args.device, torch.float32)
    print(
        f"{machine.name()}, {torch.get_num_threads()} threads, {copy * 1e-9:.1f} GB/s in a copy, "
        f"{scan}: {SCANS[scan].description()}"
    )

    def report(label: str, plain: Call, other: Call, to: str, moved: float) -> None:
        base, took, ratio = compared(machine, plain, other, seconds)
        limit = base / (base + moved / copy)
        rows.append(
            {
                "name": label,
                "value": took * 1e3,
                "unit": "ms",
                "ratio": ratio,
                "to": f"{to}, {base * 1e3:.2f} ms",
                "limit": limit,
            }
        )
        print(
            f"{label:64} {took * 1e3:8.2f} ms {ratio:6.2f} x the throughput of {to} "
            f"({base * 1e3:.2f} ms), limit {limit:.2f}",
            flush=True,
        )

    for size in () if args.steps else sizes:
        Bt, L, E, N = size
        inputs = tensors(size, args.device)
        at = f"B{Bt} L{L} E{E} N{N}"
        plain = parts(lambda inputs=inputs: (selective_scan(*inputs, scan=scan),), list(inputs))
        taps, bias = (
            torch.randn(s, device=args.device, requires_grad=True) for s in ((E, TAPS), (E,))
        )
        conv = parts(
            lambda inputs=inputs, taps=taps, bias=bias: (
                short_conv(inputs.u, taps, bias, scan=scan),
            ),
            [inputs.u, taps, bias],
        )
        for b in blocks:
            starts = scan_with_states(inputs, b, scan=scan).starts.detach().requires_grad_()
            near = inputs_before_blocks(inputs.u.detach(), TAPS, b).contiguous().requires_grad_()
            calls = {
                "clean": parts(
                    lambda inputs=inputs, b=b: scan_with_states(inputs, b, scan=scan)[:2],
                    list(inputs),
                ),
                "noised": parts(
                    lambda inputs=inputs, b=b, h=starts: (scan_blocks(inputs, b, h, scan=scan),),
                    [*inputs, starts],
                ),
                "reverse": parts(
                    lambda inputs=inputs, b=b: (scan_blocks(inputs, b, reverse=True, scan=scan),),
                    list(inputs),
                ),
            }
            for part, f in plain.items():
                for name, call in calls.items():
                    moved = (
                        {"clean": 1, "noised": 1, "reverse": 0}[name]
                        * starts.nbytes
                        * (1 if part == "forward" else 3)
                    )
                    report(
                        f"{name} scan, b {b}, {part} {at}", f, call[part], "the plain scan", moved
                    )
                conv_call = parts(
                    lambda inputs=inputs, b=b, near=near, taps=taps, bias=bias: (
                        conv_blocks(inputs.u, taps, bias, b, near, scan=scan),
                    ),
                    [inputs.u, taps, bias, near],
                )
                report(
                    f"noised convolution, b {b}, {part} {at}",
                    conv[part],
                    conv_call[part],
                    "the plain one",
                    near.nbytes * (1 if part == "forward" else 3),
                )
    rows += compare_steps(machine, scan)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
