"""Time every scan, forward and forward + backward, relative to the portable scan and to the limit
of the machine.

    python scripts/bench/scan.py [--quick] [--json FILE]

At the first sizes PyTorch's own associative scan, compiled, runs too: what a user would write
without this package. It stores all states of all positions.

Times are the fastest of several repeats, because other programs only add to them. Peak memory is
the growth of the process (Linux only), without inputs, with gradients.

The limit is the larger of two times, both from rates measured in the same run:

- arithmetic: a state costs 10 vector multiplications or multiply-adds per position forward (7 for
  the exponential: scale, 5 of the polynomial, the exponent; then dx B, the state and the output;
  rounding and subtraction have separate ports on some processors) and 18 backward (9 to recompute
  it, 9 for the gradients), issued as fast as a float32 matrix product issues its multiply-adds (its
  FLOP/s divided by 2), PyTorch's or the kernels', whichever is faster;
- bytes: every array read or written once (forward u, delta, y, B, C; backward also dy, du, ddelta,
  dB, dC and the inputs again), at the rate of a copy.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import peak_memory

from dnadiff.kernels.facade import linear, selective_scan, short_conv
from dnadiff.kernels.select import SCANS, available_scans
from dnadiff.options.command import keep_freed_memory

SIZES = [(4, 1024, 256, 16), (16, 512, 128, 16)]  # batch, length, channels, states
LONG = [(1, 4096, 64, 16), (1, 16384, 64, 16), (1, 131072, 64, 16)]
INSTRUCTIONS = {"forward": 10, "forward+backward": 28}


def fastest(f: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of at least three calls, and of as many as fit into `seconds`."""
    f()
    times = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 200):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def machine_rates() -> tuple[float, float]:
    """Multiply-adds per second of a float32 matrix product, and bytes per second of a copy (read
    plus written)."""
    matmul = 0.0
    for n in (
        512,
        1024,
    ):  # the smaller one may run between two interruptions, the larger one is closer to the peak
        a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        for product in (lambda a=a, b=b, c=c: torch.mm(a, b, out=c), lambda a=a, b=b: linear(a, b)):
            matmul = max(matmul, n**3 / fastest(product, 0.3))
    x, y = torch.zeros(2**25), torch.empty(2**25)
    return matmul, 2 * x.nbytes / fastest(lambda: y.copy_(x), 0.3)


def associative(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    bias: torch.Tensor,
):
    """The selective scan by `torch._higher_order_ops.associative_scan`, to be compiled."""
    from torch._higher_order_ops.associative_scan import associative_scan

    step = torch.nn.functional.softplus(delta + bias)
    pairs = torch.exp(step[..., None] * A), (step * u)[..., None] * B[:, :, None]
    h = associative_scan(
        lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), pairs, dim=1, combine_mode="generic"
    )[1]
    return torch.einsum("blen,bln->ble", h, C) + D * u


def limit(part: str, Bt: int, L: int, E: int, N: int, rates: tuple[float, float]) -> float:
    """Lower bound in seconds for any scan of this size on this machine."""
    forward, backward = 3 * E + 2 * N, 5 * E + 4 * N
    moved = 4 * Bt * L * (forward + (backward if part != "forward" else 0))
    return max(Bt * L * E * N * INSTRUCTIONS[part] / rates[0], moved / rates[1])


def inputs(Bt: int, L: int, E: int, N: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(Bt, L, E), (Bt, L, E), (E, N), (Bt, L, N), (Bt, L, N), (E,), (E,)]
    tensors = [torch.randn(s) for s in shapes]
    tensors[1] -= 3.0
    tensors[2] = -torch.arange(1.0, N + 1).expand(E, N).clone()
    return [x.requires_grad_() for x in tensors]


def calls(
    f: Callable[..., torch.Tensor], tensors: list[torch.Tensor]
) -> dict[str, Callable[[], object]]:
    weight = torch.randn_like(tensors[0])

    def forward() -> None:
        with torch.no_grad():
            f(*tensors)

    return {
        "forward": forward,
        "forward+backward": lambda: torch.autograd.grad(f(*tensors), tensors, weight),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the first size, a few repeats")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write rows of name, value, unit, ratio and the reference of the ratio",
    )
    args = parser.parse_args()
    seconds, sizes = (0.2, SIZES[:1]) if args.quick else (1.0, SIZES + LONG)

    keep_freed_memory()
    rates = machine_rates()
    print(
        f"{torch.get_num_threads()} threads, {rates[0] * 2e-9:.0f} GFLOP/s in a matrix product, "
        f"{rates[1] * 1e-9:.1f} GB/s in a copy"
    )
    for name, reason in available_scans().items():
        print(f"{name}: {reason or SCANS[name].description()}")
    names = sorted(
        (name for name, reason in available_scans().items() if not reason),
        key=lambda name: name != "portable",
    )
    rows = []

    def report(
        label: str, value: float, unit: str, ratio: float | None = None, to: str = ""
    ) -> None:
        rows.append({"name": label, "value": value, "unit": unit, "ratio": ratio, "to": to})
        print(
            f"{label:56} {value:10.2f} {unit:3}"
            + (f" {ratio:8.2f} x {to}" if ratio is not None else "")
        )

    for size in sizes:
        Bt, L, E, N = size
        tensors = inputs(*size)
        base: dict[str, float] = {}
        found: dict[str, float] = {}
        scans = {name: lambda *x, name=name: selective_scan(*x, scan=name) for name in names}
        if L > 1024:
            print(
                f"(no reference and no associative scan at L {L}: the first takes minutes, the "
                f"second {20 * Bt * L * E * N >> 30} GB)"
            )
            scans.pop("reference", None)
        else:
            scans["associative, compiled"] = torch.compile(associative)
        for name, scan in scans.items():
            for part, f in calls(scan, tensors).items():
                label = f"scan {name} {part} B{Bt} L{L} E{E} N{N}"
                memory, took = peak_memory(f), fastest(f, seconds)
                found[f"{name} {part}"] = took
                base.setdefault(part, took)
                report(label, took * 1e3, "ms", base[part] / took, "portable")
                report(
                    f"{label} limit",
                    limit(part, *size, rates) * 1e3,
                    "ms",
                    limit(part, *size, rates) / took,
                    "of this time",
                )
                if memory is not None:
                    base.setdefault(f"{part} memory", memory)
                    report(
                        f"{label} memory", memory, "MB", memory / base[f"{part} memory"], "portable"
                    )
        if L <= 1024:
            for part in ("forward", "forward+backward"):
                ours, other = (
                    found[f"{name} {part}"]
                    for name in ("cpu" if "cpu" in names else "portable", "associative, compiled")
                )
                report(
                    f"scan {part} B{Bt} L{L} E{E} N{N}",
                    ours * 1e3,
                    "ms",
                    other / ours,
                    "a compiled associative scan",
                )
        conv = [tensors[0], torch.randn(E, 4, requires_grad=True), tensors[5]]
        for name in names:
            if name == "reference":  # PyTorch's depthwise convolution takes seconds
                continue
            for part, f in calls(lambda *x, name=name: short_conv(*x, scan=name), conv).items():
                took = fastest(f, seconds / 2)
                base.setdefault(f"conv {part}", took)
                report(
                    f"conv {name} {part} B{Bt} L{L} E{E} K4",
                    took * 1e3,
                    "ms",
                    base[f"conv {part}"] / took,
                    "portable",
                )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
