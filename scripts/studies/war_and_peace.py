"""War and Peace by characters in ten minutes on a GPU: bits per character against time, for masked
diffusion and its causal twin.

    python scripts/studies/war_and_peace.py [--data FILE] [--models mdlm ar] [--minutes 9]
    [--output DIR] [--table] [--quick]

Needs only torch and this package (no Lightning, no Hydra). A DiT of 512x8, windows of 256
characters, bfloat16, compiled blocks, averaged weights; the autoregressive control is the causal
transformer of the same size. Each model trains for `--minutes`: the learning rate follows the
clock, a cosine down to 0. 80-90 % of the book is the test part, 90-100 % validation. The averaged
weights are evaluated on validation twelve times, and the best of them on test at the end: the bound
by exact counts (ar: exact). A finished model is a JSON file in the output folder and is not trained
again; `--quick` takes a minute on a CPU and tests that the script runs.
"""

import argparse
import copy
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from dnadiff.data.splits import FractionSplit
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import Likelihood, WindowBatch, estimate
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.ar import AR
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.transformer import Transformer
from dnadiff.progress import table
from dnadiff.store.disk import write_json
from dnadiff.store.files import open_text
from dnadiff.training.optim import parameter_groups

MODELS = {
    "mdlm": lambda process: MDLM(process, weighting="cross_entropy"),
    "mdlm_nelbo": MDLM,
    "ar": AR,
    "block4": lambda process: BlockMDLM(process, 4),
    "block16": lambda process: BlockMDLM(process, 16),
}
SCORES = 12  # validations
WINDOWS = 384  # validation windows
DECAY = 0.999  # of the weight average, with a warm-up


@dataclass
class Size:
    """Sizes of the network, of a batch and of the evaluation."""

    width: int = 512
    layers: int = 8
    heads: int = 8
    length: int = 256
    batch: int = 256
    rate: float = 1e-3
    draws: int = 8


class Book:
    """The text as ids on the device, in three parts."""

    def __init__(self, path: Path, device: str) -> None:
        with open_text(path) as file:
            text = file.read()
        tokenizer = CharTokenizer(text)
        ids = torch.from_numpy(tokenizer.encode(text).astype("int64"))
        self.vocab = tokenizer.vocab
        self.name = path.name
        self.parts = {
            part: [ids[i.start : i.end].to(device) for i in intervals]
            for part, intervals in FractionSplit()([self.name], [len(ids)]).items()
        }

    def batch(self, size: Size, step: int, seed: int) -> torch.Tensor:
        """Windows of the training part at uniform starts, (batch, length)."""
        text = self.parts["train"][0]  # 0-80 %: the held-out parts are at the end
        start = (
            Draws.for_batch(seed, size.batch, step, text.device).uniform("window")
            * (len(text) - size.length)
        ).long()
        return text[start[:, None] + torch.arange(size.length, device=text.device)]

    def windows(self, part: str, length: int, max_windows: int | None = None) -> torch.Tensor:
        """Consecutive windows of a part, or `max_windows` of them, evenly spread: (S, length)."""
        text = self.parts[part][0]
        rows = text[: len(text) // length * length].view(-1, length)
        return (
            rows
            if max_windows is None
            else rows[
                torch.linspace(0, len(rows) - 1, min(max_windows, len(rows)), device=rows.device)
                .round()
                .long()
            ]
        )


def score(
    denoiser, process: AbsorbingProcess, windows: torch.Tensor, draws: int, bf16: bool
) -> Likelihood:
    """The bound by counts, or the exact likelihood of an autoregressive model; bootstrap blocks of
    16 windows."""
    batches = [
        WindowBatch(rows, {"all": torch.ones_like(rows, dtype=torch.bool)})
        for rows in windows.split(256)
    ]
    with torch.autocast(windows.device.type, dtype=torch.bfloat16, enabled=bf16):
        return estimate(denoiser, process, batches, draws)


def train(name: str, book: Book, size: Size, args: argparse.Namespace) -> dict:
    """Train one model for `args.minutes`, and evaluate it."""
    torch.manual_seed(args.seed)
    cuda = args.device == "cuda"
    process = AbsorbingProcess(book.vocab, LogLinear())
    objective = MODELS[name](process)
    kind = next(kind for kind in (DiT, Transformer) if issubclass(kind, objective.reads))
    network = kind(
        book.vocab,
        size.width,
        size.layers,
        size.heads,
        dropout=args.dropout,
        compile=cuda and not args.eager,
    ).to(args.device)
    denoiser = objective.denoiser(network)
    averaged = copy.deepcopy(denoiser).eval()
    live = list(denoiser.parameters())
    mean = list(averaged.parameters())
    optimizer = torch.optim.AdamW(
        parameter_groups(denoiser, 0.03), size.rate, betas=(0.9, 0.95), fused=cuda
    )
    weight = torch.ones(size.batch, size.length, device=args.device)
    curve = []
    best = math.inf
    kept = None
    total = 60 * args.minutes
    step = 0
    start = time.perf_counter()
    scored = 0
    while (used := time.perf_counter() - start) < total:
        for group in optimizer.param_groups:
            group["lr"] = (
                size.rate
                * min(1.0, (step + 1) / args.warmup)
                * 0.5
                * (1 + math.cos(math.pi * used / total))
            )
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=cuda):
            loss = objective(
                denoiser,
                book.batch(size, step, args.seed),
                weight,
                Draws.for_batch(args.seed, size.batch, step, args.device),
            ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(live, 1.0)
        optimizer.step()
        step += 1
        with torch.no_grad():
            torch._foreach_lerp_(mean, live, 1 - min(DECAY, (1 + step) / (10 + step)))
        if step % 10 == 0 and cuda:
            torch.cuda.synchronize()  # the host, which reads the clock, runs ahead of the GPU
        if (due := int((time.perf_counter() - start) / total * SCORES)) > scored:
            scored = due
            bits = score(
                averaged, process, book.windows("valid", size.length, WINDOWS), 4, cuda
            ).summary()["bits"]
            minutes = (time.perf_counter() - start) / 60
            curve.append(
                {
                    "minutes": minutes,
                    "step": step,
                    "characters": step * size.batch * size.length,
                    "valid_bits": bits,
                }
            )
            print(
                f"{name}  {minutes:5.2f} min  step {step:,}  loss {loss.item():.4f}  validation "
                f"{bits:.4f} bits",
                flush=True,
            )
            if bits < best:
                best = bits
                kept = copy.deepcopy(averaged.state_dict())
    if kept is not None:
        averaged.load_state_dict(kept)
    found = score(
        averaged, process, book.windows("test", size.length, args.max_windows), size.draws, cuda
    )
    shown = {
        "parameters": sum(p.numel() for p in live),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "dropout": args.dropout,
    }
    return {
        "model": name,
        "book": book.name,
        **shown,
        "size": vars(size),
        "curve": curve,
        "best_valid_bits": best,
        "test": found.summary(),
    }


def tables(rows: list[dict]) -> str:
    """Bits per character against time, and the test part."""
    lines = []
    for number in range(max(len(r["curve"]) for r in rows)):
        points = [r["curve"][number] if number < len(r["curve"]) else None for r in rows]
        minutes = next(p["minutes"] for p in points if p)
        lines.append(
            (
                f"{minutes:.1f}",
                *(
                    "" if p is None else f"{p['valid_bits']:.4f}  ({p['characters'] / 1e6:,.0f} M)"
                    for p in points
                ),
            )
        )
    tests = [
        f"{r['test']['bits']:.4f} ({r['test']['bits_low']:.4f} to {r['test']['bits_high']:.4f})"
        for r in rows
    ]
    lines.append(("test, best of these", *tests))
    return table(
        lines,
        (
            "minutes",
            *(f"{r['model']}, {r['parameters'] / 1e6:.1f} M, bits per character" for r in rows),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/text/war_and_peace.txt.gz")
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["mdlm", "ar"])
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="training time for each model, including validation, without the test",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/war_and_peace"))
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda")
    )
    parser.add_argument(
        "--dropout",
        type=float,
        default=0.2,
        help="needed because training repeats the book many times (default: %(default)s)",
    )
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="do not compile the blocks")
    parser.add_argument(
        "--table", action="store_true", help="print the tables of finished models without training"
    )
    parser.add_argument("--quick", action="store_true")
    parser.set_defaults(max_windows=None)
    args = parser.parse_args()
    size = Size()
    if args.quick:
        size, args.minutes, args.max_windows, args.warmup = (
            Size(32, 1, 2, 64, 8, 3e-3, 2),
            0.2,
            16,
            5,
        )
        args.output = args.output / "quick"
    torch.set_float32_matmul_precision("high")
    args.output.mkdir(parents=True, exist_ok=True)
    files = {name: args.output / f"{name}.json" for name in args.models}
    if not args.table:
        book = Book(args.data, args.device)
        for name, file in files.items():
            if not file.is_file():
                row = train(name, book, size, args)
                write_json(file, row)
    rows = [json.loads(file.read_text()) for file in files.values() if file.is_file()]
    if rows:
        print("\n" + tables(rows))


if __name__ == "__main__":
    main()
