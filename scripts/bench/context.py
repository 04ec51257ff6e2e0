"""What context parallelism costs in one process, and what a process sends.

    python scripts/bench/context.py [--quick] [--width D] [--layers N]

A step (loss and gradients) of a network that reads one piece, which is the whole sequence, over a
step of the same network without pieces: processor time of one thread, the fastest of interleaved
rounds. The extra time is the first scan of each direction, the separate operators where the plain
network has one kernel for a mixer, and the copies of what would be sent. Bytes are counted, per
sequence and layer.
"""

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.commands import keep_freed_memory
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import Denoiser, PiecewiseDenoiser


class Alone:
    """The only process of a group; counts what it would send to each of the others."""

    rank, size, sent = 0, 1, 0

    def gather(self, x: Tensor) -> Tensor:
        """See `dnadiff.backbone.peers.Peers`."""
        self.sent += x.numel() * x.element_size()
        return x.detach()[None].clone()


def step(denoiser: Denoiser | PiecewiseDenoiser, x0: Tensor) -> None:
    """Loss at half of the positions, and its gradients."""
    masked = torch.arange(x0.shape[1]).expand_as(x0) % 2 == 0
    xt = torch.where(masked, denoiser.vocab.mask_id, x0)
    denoiser.nll(x0, xt, positions=masked).mean().backward()


def processor_time(f: Callable[[], object]) -> float:
    """Seconds of processor time of a call."""
    begin = time.process_time()
    f()
    return time.process_time() - begin


def measure(width: int, layers: int, length: int, rounds: int) -> tuple[float, float, int]:
    """Fastest seconds of a plain step and of one in pieces, and the bytes that a step sends."""
    torch.manual_seed(0)
    plain = Denoiser(Caduceus(DNATokenizer().vocab, d_model=width, n_layers=layers))
    spread, peers = copy.deepcopy(plain), Alone()
    spread.backbone.spread(peers)
    x0, times = torch.randint(7, 11, (1, length)), []
    for _ in range(rounds + 1):
        peers.sent = 0
        times.append(
            (
                processor_time(lambda: step(plain, x0)),
                processor_time(lambda: step(PiecewiseDenoiser(spread, peers), x0)),
            )
        )
    first, second = zip(*times[1:], strict=True)
    return (
        min(first),
        min(second),
        peers.sent - 4 * (length // 2),
    )  # without the predictions, 4 bytes for each


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    print(
        "| network | L | plain, tokens/s | in pieces, tokens/s | ratio | bytes per layer "
        "|\n|---|---|---|---|---|---|"
    )
    for length in (64,) if args.quick else (1024, 8192, 32768):
        plain, pieces, sent = measure(args.width, args.layers, length, 1 if args.quick else 9)
        rates = f"{length / plain:,.0f} | {length / pieces:,.0f} | {pieces / plain:.2f}"
        print(
            f"| {args.width}x{args.layers} | {length:,} | {rates} | {sent // args.layers:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
