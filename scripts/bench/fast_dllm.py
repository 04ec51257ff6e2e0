"""Measure Fast-dLLM's caches (`sampler=fast_dllm`): the error of their predictions, of samples, and
their speed.

    python scripts/bench/fast_dllm.py --checkpoint RUN [--judge RUN] [--windows N] [--json FILE]
    [--quick]

RUN is a DiT trained without blocks; its validation windows are used.

- Predictions: in each block of each window a random number of positions is masked (uniform, at
  least one), as during sampling: true tokens before the block, masks after it. The caches were
  filled when the whole block was masked. Compared with reading all tokens: Kullback-Leibler
  divergence, difference of -log p of the true tokens, and how often the most probable token is the
  same. Standard errors over windows.
- Samples (`--judge RUN`, an autoregressive model): bits per token under the judge, with equal noise
  for all caches, and network calls.
- Speed: a network of 128x4 with random weights on 1,024 tokens, blocks of 32 with 8 calls each.
  Caches take turns, the fastest of several rounds counts. The limit is the ratio of tokens read.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dnadiff.backbone.base import AttentionCacheBackbone
from dnadiff.backbone.dit import DiT
from dnadiff.config import build
from dnadiff.denoiser import BaseDenoiser, Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Sampler
from dnadiff.sampler.fast_dllm import DualCache, FastDLLM, NoCache, PrefixCache
from dnadiff.sampler.grouped import Grouped
from dnadiff.sampler.threshold import Threshold
from dnadiff.vocab import Vocab
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded

CACHES = {"none": NoCache(), "prefix": PrefixCache(), "dual": DualCache()}
BLOCKS = (8, 16, 32)


def validation(loaded: Loaded, count: int) -> Tensor:
    """Some complete validation windows: (N, L)."""
    data = build(loaded.config["data"])
    data.prepare()
    tiles = data.test_windows("valid", None)
    chosen = [tiles[int(i)] for i in np.linspace(0, len(tiles) - 1, min(len(tiles), count)).round()]
    return torch.stack([item["ids"].long() for item in chosen if bool((item["weight"] > 0).all())])


def load_judge(path: Path, loaded: Loaded) -> BaseDenoiser:
    """The network of a judge; SystemExit with one line unless it is autoregressive and reads the
    tokens of the model."""
    judge = checkpoint.load(path)
    if not judge.denoiser.autoregressive:
        raise SystemExit(
            f"error: --judge {path} is not autoregressive; name a run with objective=ar"
        )
    if judge.tokenizer.config() != loaded.tokenizer.config():
        names = [
            f"{one.tokenizer.name} ({one.tokenizer.vocab.size} tokens)" for one in (judge, loaded)
        ]
        raise SystemExit(
            f"error: --judge {path} reads {names[0]} and --checkpoint {names[1]}; name a judge "
            "with the same tokenizer"
        )
    return judge.denoiser


@torch.no_grad()
def errors(loaded: Loaded, x0: Tensor, size: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Of each cache: mean and standard error of divergence, difference of -log p, and agreement of
    the most probable token."""
    denoiser, mask_id, length = loaded.denoiser.eval(), loaded.process.vocab.mask_id, x0.shape[1]
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, list[Tensor]] = {name: [] for name in CACHES if name != "none"}
    for start in range(0, length, size):
        block = slice(start, min(start + size, length))
        n = block.stop - block.start
        rank = torch.rand(len(x0), n, generator=generator).argsort(-1).argsort(-1)
        masked = rank < torch.randint(1, n + 1, (len(x0), 1), generator=generator)
        begin = x0.clone()
        begin[:, start:] = mask_id
        xt = begin.clone()
        xt[:, block] = torch.where(masked, mask_id, x0[:, block])
        positions = torch.zeros_like(x0, dtype=torch.bool)
        positions[:, block] = masked
        exact = denoiser.log_probs(xt, None, None, positions)
        for name, found in rows.items():
            read = CACHES[name].read(block, length)
            state = denoiser.around(begin, read)
            cached = denoiser.step_block(xt[:, read], state, None, positions[:, read])
            divergence = (exact.exp() * (exact - cached).nan_to_num(0.0, 0.0, 0.0)).sum(-1)
            more = (exact - cached).gather(-1, x0[positions][:, None])[:, 0]
            same = (exact.argmax(-1) == cached.argmax(-1)).float()
            window = positions.nonzero()[:, 0]
            mean = torch.zeros(len(x0), 3).index_add_(
                0, window, torch.stack([divergence, more, same], -1).float()
            )
            found.append(mean / masked.sum(-1, keepdim=True))
    names = ("divergence", "more_nats", "same_token")
    result = {}
    for name, found in rows.items():
        by_window = torch.stack(found).mean(0)
        error = by_window.std(0) / math.sqrt(len(x0))
        result[name] = {
            key: (float(by_window[:, i].mean()), float(error[i])) for i, key in enumerate(names)
        }
    return result


def judged(
    loaded: Loaded, judge: BaseDenoiser, length: int, count: int, size: int
) -> dict[str, dict[str, float]]:
    """Bits per token of samples under the judge, standard error, and calls; the noise of all caches
    is the same."""
    result = {}
    for name, cache in CACHES.items():
        x_init, draws = loaded.process.prior(count, length), Draws.for_batch(0, count)
        samples = FastDLLM(Threshold(threshold=0.9), size, cache).sample(
            loaded.denoiser.eval(), loaded.process, x_init, draws
        )
        with torch.no_grad():
            log_probs = judge.eval().next_log_probs(samples.tokens)
        bits = -log_probs.gather(-1, samples.tokens[..., None])[..., 0].mean(-1) / math.log(2)
        result[name] = {
            "bits": float(bits.mean()),
            "se": float(bits.std() / math.sqrt(count)),
            "nfe": samples.nfe,
        }
    return result


def seconds(quick: bool) -> dict[str, dict[str, float]]:
    """Fastest seconds for one sequence by each cache, and tokens read."""
    length, size, calls = (64, 16, 2) if quick else (1024, 32, 8)
    vocab = Vocab(1000, 999, 999, (999,))
    torch.manual_seed(0)
    network: AttentionCacheBackbone = DiT(vocab, 128, 4, 4, 16, dropout=0.0, max_length=length)
    model, process = Denoiser(network).eval(), AbsorbingProcess(vocab, LogLinear())
    samplers: dict[str, Sampler] = {
        name: FastDLLM(Grouped(calls), size, cache) for name, cache in CACHES.items()
    }
    fastest = dict.fromkeys(samplers, math.inf)
    for _ in range(1 if quick else 2):
        for name, sampler in samplers.items():
            begin = time.perf_counter()
            sampler.sample(model, process, process.prior(1, length), Draws.for_batch(0, 1))
            fastest[name] = min(fastest[name], time.perf_counter() - begin)
    rows = {}
    for name, cache in CACHES.items():
        reads = [cache.read(slice(at, at + size), length) for at in range(0, length, size)]
        tokens = sum(
            calls * (r.stop - r.start) + (length if r != slice(0, length) else 0) for r in reads
        )
        rows[name] = {"seconds": fastest[name], "tokens": tokens}
    return rows


def main() -> int:
    """Run everything and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="run folder of a DiT")
    parser.add_argument(
        "--judge", type=Path, help="run folder of an autoregressive model with the same tokenizer"
    )
    parser.add_argument(
        "--windows", type=int, default=256, help="validation windows (default: %(default)s)"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=64,
        help="samples of each cache for the judge (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: only tests that the benchmark runs"
    )
    options = parser.parse_args()
    loaded, count = checkpoint.load(options.checkpoint), 4 if options.quick else options.windows
    judge = load_judge(options.judge, loaded) if options.judge else None
    x0 = validation(loaded, count)
    found = {
        "windows": len(x0),
        "length": x0.shape[1],
        "errors": {str(b): errors(loaded, x0, b) for b in BLOCKS if b < x0.shape[1]},
    }
    print(
        "| block | cache | divergence, nats | more nats per token | same token "
        "|\n|---|---|---|---|---|"
    )
    for size, rows in found["errors"].items():
        for name, row in rows.items():
            shown = [
                f"{row[key][0]:.5f} ± {row[key][1]:.5f}" for key in ("divergence", "more_nats")
            ]
            print(f"| {size} | {name} | {shown[0]} | {shown[1]} | {row['same_token'][0]:.2%} |")
    if judge is not None:
        found["judged"] = {
            str(b): judged(loaded, judge, x0.shape[1], 2 if options.quick else options.samples, b)
            for b in BLOCKS
            if b < x0.shape[1]
        }
        print(
            "\n| block | cache | bits per token under the judge | network calls "
            "|\n|---|---|---|---|"
        )
        for size, rows in found["judged"].items():
            for name, row in rows.items():
                print(f"| {size} | {name} | {row['bits']:.4f} ± {row['se']:.4f} | {row['nfe']} |")
    found["speed"] = seconds(options.quick)
    print("\n| cache | seconds | times faster | limit by tokens read |\n|---|---|---|---|")
    base = found["speed"]["none"]
    for name, row in found["speed"].items():
        print(
            f"| {name} | {row['seconds']:.3f} | {base['seconds'] / row['seconds']:.2f} | "
            f"{base['tokens'] / row['tokens']:.2f} |"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
