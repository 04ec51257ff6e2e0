"""Training steps of two versions of this package, in alternation.

    python scripts/bench/against.py OTHER_CHECKOUT [--sizes 64x4 128x4] [--threads 1 2] [--seconds
    10] [--json FILE]

Each version runs in a process of its own, which does one step when asked, so that what else happens
on the machine affects both equally. A step is forward, cross-entropy at half of the positions (all
of them for the autoregressive network `ar`), backward and AdamW. Printed are tokens per second from
the fastest step, by the clock and by the processor time of the process, which other programs
disturb less.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = ("this version", "the other")


def training_step(
    width: int, layers: int, batch: int, length: int, causal: bool
) -> Callable[[], None]:
    """One step of a network of this version as a function without arguments."""
    import torch
    from torch import nn

    from dnadiff.diffusion.vocab import Vocab
    from dnadiff.networks.backbone.caduceus import Caduceus
    from dnadiff.networks.backbone.mamba import Mamba

    torch.manual_seed(0)
    network = (Mamba if causal else Caduceus)(
        Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11)), width, layers
    )
    ids = torch.randint(7, 11, (batch, length))
    positions = torch.rand(batch, length) < (1.0 if causal else 0.5)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True)

    def run() -> None:
        logits = network.head(network.features(ids)[positions])
        nn.functional.cross_entropy(logits, ids[positions]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def serve(width: int, layers: int, batch: int, length: int, causal: bool) -> None:
    """Run a step for each line of standard input, and print its seconds by the clock and of the
    processor."""
    from dnadiff.options.command import keep_freed_memory

    keep_freed_memory()
    run = training_step(width, layers, batch, length, causal)
    for _ in range(2):
        run()
    print("ready", flush=True)
    for _ in sys.stdin:
        clock, processor = time.perf_counter(), time.process_time()
        run()
        print(time.perf_counter() - clock, time.process_time() - processor, flush=True)


def start(folder: Path, threads: int, *size: int) -> subprocess.Popen[str]:
    """The process that runs the steps of a checkout."""
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "10000",
    }
    command = [sys.executable, __file__, "--serve", *map(str, size)]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str]) -> list[float]:
    """One step of a process: seconds by the clock, and of the processor."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [float(word) for word in process.stdout.readline().split()]


def compare(folders: list[Path], threads: int, seconds: float, *size: int) -> list[list[float]]:
    """The fastest step of each checkout, by the clock and of the processor."""
    processes = [start(folder, threads, *size) for folder in folders]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise SystemExit(f"a process of {' '.join(map(str, size))} did not start")
        best = [[math.inf, math.inf] for _ in processes]
        begin, count = time.perf_counter(), 0
        while count < 3 or time.perf_counter() - begin < seconds:
            for number, process in enumerate(processes):
                best[number] = [min(pair) for pair in zip(best[number], ask(process), strict=True)]
            count += 1
        return best
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help="another checkout of this package")
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["64x4", "128x4"],
        help="width x layers (default: %(default)s)",
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--ar", action="store_true", help="the autoregressive network")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="per size and number of threads (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--serve", type=int, nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve[:4], bool(options.serve[4]))
        return
    if options.other is None:
        parser.error("name another checkout of this package")
    folders = [ROOT, options.other.resolve()]
    rows = []
    print(
        f"{'size':>8} {'threads':>7} {'tokens/s':>12} {'the other':>12} {'ratio':>6} "
        f"{'of processor time':>18}"
    )
    for size in options.sizes:
        width, layers = map(int, size.split("x"))
        for threads in options.threads:
            ours, other = compare(
                folders,
                threads,
                options.seconds,
                width,
                layers,
                options.batch,
                options.length,
                int(options.ar),
            )
            tokens = options.batch * options.length
            print((f"{size:>8} {threads:>7} {tokens / ours[0]:>12,.0f} {tokens / other[0]:>12,.0f} "
                f"{other[0] / ours[0]:>6.2f} {other[1] / ours[1]:>18.2f}"), flush=True)  # fmt: skip
            name = f"{size}, {threads} threads"
            rows.append(
                {
                    "name": name,
                    "value": tokens / ours[0],
                    "unit": "tokens/s",
                    "ratio": other[0] / ours[0],
                    "to": "the other version",
                }
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
