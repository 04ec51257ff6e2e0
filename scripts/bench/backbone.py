"""Training steps of Caduceus-Ph: the published wiring compared with ours with the same scan, and
ours compared with matrix products alone.

    python scripts/bench/backbone.py [--quick] [--json FILE]

A step is forward, cross-entropy at half of the positions, backward and AdamW. The published wiring
runs a complete Mamba mixer on the sequence and another on its reversal: two input projections, two
output projections, two gates, two flips. It runs twice: with the same kernels for everything (the
cost of the wiring), and with PyTorch's operators around the same scan.

The limit counts the multiply-adds of the matrix products (in_proj, x_proj and dt_proj of both
directions, out_proj, head; once forward, twice backward) and divides by the rate of a large float32
product in the same run, by PyTorch's library or by the kernels', whichever is faster; everything
else is assumed to be free. Times are the fastest of several repeats, alternating between the
wirings, because other programs only add to them.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.commands import keep_freed_memory
from dnadiff.kernels import (
    available_scans,
    gated_sum,
    linear,
    narrow_linear,
    selective_scan,
    short_conv,
)
from dnadiff.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
WIDTHS = [64, 118, 128, 256]
LENGTHS = [(512, 16), (1024, 8), (16384, 1)]
LAYERS = 4


class PublishedWiring(nn.Module):
    """One mixer for each direction with the same weights, as the published code calls them.

    Args:
        mixer: our mixer.
        other: kernels for everything but the scan: `auto` is ours, `portable` PyTorch's operators.
    """

    def __init__(self, mixer: nn.Module, other: str) -> None:
        super().__init__()
        self.mixer, self.other = mixer, other

    def one_way(self, direction: nn.Module, hidden: Tensor, scan: str) -> Tensor:
        other = self.other
        x, z = self.mixer.in_proj.halves(hidden, other)
        x = short_conv(x, direction.conv_weight, direction.conv_bias, scan=other)
        low, B, C = direction.x_proj(x, other).split(
            [direction.dt_rank, direction.d_state, direction.d_state], dim=-1
        )
        delta, A = narrow_linear(low, direction.dt_weight, scan=other), -torch.exp(direction.A_log)
        y = selective_scan(x, delta, A, B, C, direction.D, direction.dt_bias, scan=scan)
        return self.mixer.out_proj(gated_sum(y, None, z, scan=other), other)

    def forward(self, hidden: Tensor, valid: Tensor | None = None, scan: str = "auto") -> Tensor:
        """The second call reads a flipped copy forwards."""
        return self.one_way(self.mixer.fwd, hidden, scan) + self.one_way(
            self.mixer.rev, hidden.flip(1), scan
        ).flip(1)


def networks(d_model: int) -> dict[str, nn.Module]:
    """Our network, and the same weights in the published wiring: with our kernels, and with
    PyTorch's operators around the same scan."""
    made = {
        name: Caduceus(DNA, d_model, LAYERS)
        for name in ("ours", "published wiring", "published, PyTorch around the scan")
    }
    ids = torch.randint(7, 11, (1, 50))
    for (name, network), other in zip(made.items(), (None, "auto", "portable"), strict=True):
        network.load_state_dict(made["ours"].state_dict())
        if other:
            for layer in network.layers:
                layer.mixer = PublishedWiring(layer.mixer, other)
            torch.testing.assert_close(
                made["ours"](ids), network(ids), rtol=1e-4, atol=1e-5, msg=name
            )
    return made


def step(network: nn.Module, ids: Tensor, positions: Tensor) -> Callable[[], None]:
    """One training step as a function without arguments."""
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True)

    def run() -> None:
        logits = network.head(network.features(ids)[positions])
        nn.functional.cross_entropy(logits, ids[positions]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def in_turns(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Seconds of the fastest call of each, in alternation."""
    best = dict.fromkeys(steps, math.inf)
    for run in steps.values():
        run()
    start = time.perf_counter()
    count = 0
    while count < 3 or time.perf_counter() - start < seconds:
        for name, run in steps.items():
            began = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - began)
        count += 1
    return best


def matrix_flops(d_model: int, tokens: int) -> float:
    """FLOPs of a step's matrix products."""
    inner, rank = 2 * d_model, math.ceil(d_model / 16)
    layer = d_model * 2 * inner + 2 * (inner * (rank + 32) + rank * inner) + inner * d_model
    return 3 * 2 * tokens * (LAYERS * layer + 16 * d_model / 2)


def product_rate() -> float:
    """FLOP/s of a large float32 product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return (
        2
        * 2048**3
        / min(in_turns({"PyTorch's": lambda: a @ b, "ours": lambda: linear(a, b)}, 1.0).values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two widths, one length")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="per size (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, default=None, help="also write the rows here")
    options = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    rate = product_rate()
    scan = next(name for name, reason in available_scans().items() if not reason)
    print(
        f"{torch.get_num_threads()} threads, scan {scan}, matrix products {rate / 1e9:.0f} GFLOP/s"
    )
    print(
        f"{'size':>8} {'L':>6} {'B':>3} {'tokens/s':>9} {'of limit':>9} {'x wiring':>9} "
        f"{'x PyTorch around the scan':>26} {'bf16 products':>14}"
    )
    rows, fastest = [], {}
    for width in WIDTHS[::2] if options.quick else WIDTHS:
        for length, batch in LENGTHS[:1] if options.quick else LENGTHS:
            ids = torch.randint(7, 11, (batch, length))
            positions = torch.rand(batch, length) < 0.5
            nets = networks(width)
            best = in_turns(
                {name: step(net, ids, positions) for name, net in nets.items()}, options.seconds
            )
            torch.set_float32_matmul_precision("medium")
            medium = in_turns({"ours": step(nets["ours"], ids, positions)}, options.seconds / 2)[
                "ours"
            ]
            torch.set_float32_matmul_precision("highest")
            tokens, ours = batch * length, best.pop("ours")
            fastest[width, length] = tokens / ours
            fraction = matrix_flops(width, tokens) / rate / ours
            wiring, around = (seconds / ours for seconds in best.values())
            print(
                f"{width:>5}x{LAYERS:<2} {length:>6} {batch:>3} {tokens / ours:>9,.0f} "
                f"{fraction:>8.0%} {wiring:>9.2f} {around:>26.2f}"
                f" {ours / medium:>13.2f}x",
                flush=True,
            )
            name = f"{width}x{LAYERS} L{length}"
            rows += [
                {
                    "name": name,
                    "value": tokens / ours,
                    "unit": "tokens/s",
                    "ratio": value / ours,
                    "to": to,
                }
                for to, value in best.items()
            ]
            rows += [
                {
                    "name": name,
                    "value": fraction,
                    "unit": "of the matrix-product limit",
                    "ratio": fraction,
                    "to": f"{rate / 1e9:.0f} GFLOP/s",
                },
                {
                    "name": f"{name}, bf16 products",
                    "value": tokens / medium,
                    "unit": "tokens/s",
                    "ratio": ours / medium,
                    "to": "float32",
                },
            ]
    for width in () if options.quick else WIDTHS:
        long = fastest[width, 16384]
        ratio = long / fastest[width, 1024]
        print(f"{width}x{LAYERS}: tokens/s at L 16,384 are {ratio:.2f} of those at L 1,024")
        rows.append(
            {
                "name": f"{width}x{LAYERS} L16384",
                "value": long,
                "unit": "tokens/s",
                "ratio": ratio,
                "to": "L1024",
            }
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
