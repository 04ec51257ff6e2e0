"""How many tokens rounding changes when bit-identical samples are not guaranteed: other batch
shapes, threads, kernels.

    python scripts/bench/flips.py [--checkpoint RUN] [--samples 32] [--length 1024] [--device cpu]
    [--json FILE]

Each line samples twice from one network with the same seed. Each sample has its own noise, so
tokens differ only if a probability that is rounded differently crosses a random number. Tokens
drawn after such a flip are conditioned on other tokens, so a sequence that differs usually differs
in many places. `same again` must be 0. Without --checkpoint: a random Caduceus and a random DiT of
width 64, with weights large enough that bases depend on each other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.backbone.dit import DiT
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Sampler
from dnadiff.sampler.confidence import Confidence
from dnadiff.sampler.grouped import Grouped
from dnadiff.weights import checkpoint

SAMPLERS = {"grouped": Grouped, "confidence": Confidence}


def sample(
    denoiser: nn.Module,
    process: AbsorbingProcess,
    sampler: Sampler,
    number: int,
    length: int,
    batch: int,
    device: str,
) -> Tensor:
    """Tokens (number, length) of the samples 0, 1, ... in batches of `batch`."""
    rows = torch.arange(number, device=device).split(batch)
    return torch.cat(
        [
            sampler.sample(
                denoiser, process, process.prior(len(r), length, device), Draws(0, r)
            ).tokens
            for r in rows
        ]
    ).cpu()


def flipped(first: Tensor, second: Tensor) -> dict[str, float]:
    """Fraction of tokens that differ, number of sequences that differ, and the fraction of
    differing tokens in these."""
    differ = first != second
    apart = differ.any(-1)
    return {
        "tokens": differ.numel(),
        "flip_rate": differ.double().mean().item(),
        "sequences": len(differ),
        "sequences_apart": int(apart.sum()),
        "differ_there": differ[apart].double().mean().item() if apart.any() else 0.0,
    }


def networks(
    path: str | None,
) -> Iterator[tuple[str, Denoiser, AbsorbingProcess, Callable[[], Denoiser] | None]]:
    """Name, denoiser, process, and a function that makes the same denoiser with the portable
    kernel, if it has a choice of kernels."""
    if path is not None:
        found = checkpoint.load(path)
        found.denoiser.backbone.eval()
        mamba = "scan" in found.config["backbone"]

        def other() -> Denoiser:
            again = checkpoint.load(path)
            for part in again.denoiser.modules():
                if hasattr(part, "scan"):
                    part.scan = "portable"
            return again.denoiser

        yield (
            type(found.denoiser.backbone).__name__,
            found.denoiser,
            found.process,
            other if mamba else None,
        )
        return
    process = AbsorbingProcess(DNATokenizer().vocab, LogLinear())

    def caduceus(scan: str = "auto") -> Denoiser:
        torch.manual_seed(0)  # biases and step sizes are random too
        return random(Caduceus(process.vocab, 64, 4, scan=scan))

    yield "Caduceus, random", caduceus(), process, lambda: caduceus("portable")
    torch.manual_seed(0)
    yield "DiT, random", random(DiT(process.vocab, 64, 4, 4, 64)), process, None


def random(backbone: nn.Module) -> Denoiser:
    """The network with large weights from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    for name, p in backbone.named_parameters():
        if p.ndim == 2 and "A_log" not in name:
            nn.init.normal_(p, std=1.5 * p.shape[1] ** -0.5, generator=generator)
    return Denoiser(backbone.eval())


def changes(
    denoiser: Denoiser,
    process: AbsorbingProcess,
    portable: Callable[[], Denoiser] | None,
    sampler: Sampler,
    number: int,
    length: int,
    device: str,
) -> Iterator[tuple[str, Tensor]]:
    """The samples, then the same again, in other batches, with another number of threads, and with
    the portable kernel."""

    def drawn(one: nn.Module = denoiser, batch: int = number) -> Tensor:
        return sample(one, process, sampler, number, length, batch, device)

    yield "", drawn()
    yield "same again", drawn()
    for batch in (1, 5):
        yield f"batch {number} or {batch}", drawn(batch=batch)
    if device == "cpu":
        threads = torch.get_num_threads()
        other = 1 if threads > 1 else 2
        torch.set_num_threads(other)
        try:
            yield f"threads {threads} or {other}", drawn()
        finally:
            torch.set_num_threads(threads)
    if portable is not None:
        yield "fastest or portable kernel", drawn(portable().to(device))


def compare(path: str | None, number: int, length: int, device: str) -> Iterator[dict]:
    """One row for each network, sampler and change."""
    for name, denoiser, process, portable in networks(path):
        for word, kind in SAMPLERS.items():
            samples = changes(
                denoiser.to(device), process, portable, kind(), number, length, device
            )
            _, first = next(samples)
            yield from (
                {"network": name, "sampler": word, "change": change, **flipped(first, other)}
                for change, other in samples
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkpoint", metavar="RUN", help="a trained model (default: random networks)"
    )
    parser.add_argument(
        "--samples", type=int, default=32, help="sequences per setting (default: %(default)s)"
    )
    parser.add_argument(
        "--length", type=int, default=1024, help="tokens per sequence (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="device (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    options = parser.parse_args()
    rows = []
    print(
        f"{'network':<18}{'sampler':<12}{'change':<28}{'tokens':>9}{'flip rate':>11}   sequences "
        "apart"
    )
    for r in compare(options.checkpoint, options.samples, options.length, options.device):
        rows.append(r)
        there = f", {100 * r['differ_there']:.1f} % of their tokens" if r["sequences_apart"] else ""
        print(
            f"{r['network']:<18}{r['sampler']:<12}{r['change']:<28}{r['tokens']:>9,}{r['flip_rate']:>11.2g}   "
            f"{r['sequences_apart']} of {r['sequences']}{there}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
