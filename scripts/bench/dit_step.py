"""Forward and backward pass of a DiT with a large vocabulary: the paper's wiring compared with
ours, at equal loss and gradients.

    python scripts/bench/dit_step.py [--size small] [--batch 2] [--length 1024] [--vocab 50258]
    [--repeats 3] [--device cpu] [--json FILE]

The paper's wiring: logits at all positions in float32, the substitution by boolean indexing, a time
embedding for each sequence although the network is not conditioned on time, and its scales, shifts
and gates applied to each token. Ours: the head only at masked positions, the cross-entropy without
logits (`dnadiff.networks.kernels.linear_log_sum`), constants folded into the layers. "its products
by ours" is the paper's wiring with this package's choice of library for matrix products (CPU only).
Each runs in a separate process with the same weights and masks; loss and gradients are compared.
tokens/s: of the fastest repeat (CUDA: of the median, with the range in the JSON file); *processor*:
from the CPU time, which other processes do not increase. Memory: what forward and backward add to
weights and gradients at their peak, and the peak including these. On CUDA in bfloat16 autocast,
with model FLOPs utilization: the matrix products that the result needs, relative to the peak of the
device.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from measuring import process_status, reset_peak_memory

from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.masking import Bernoulli
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.layers import modulate, rotated
from dnadiff.options.command import keep_freed_memory
from dnadiff.progress import table

SIZES = {"mini": (128, 4, 4), "tiny": (512, 8, 8), "small": (768, 12, 12), "medium": (1024, 24, 16)}
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bfloat16, FLOP/s
KINDS = ("the paper's wiring", "its products by ours", "ours")


class Paper:
    """Loss of the same DiT in the published wiring."""

    def __init__(self, network: DiT, products_by_ours: bool) -> None:
        self.network = network
        self.linear = (
            (lambda layer, x: layer(x))
            if products_by_ours
            else (lambda layer, x: F.linear(x, layer.weight, layer.bias))
        )

    def block(self, block, x, condition, angles):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = block.adaLN_modulation(condition)[
            :, None
        ].chunk(6, dim=-1)
        batch, length, width = x.shape
        h = modulate(block.norm1(x), shift_a, scale_a)
        q, k, v = (
            self.linear(block.attn_qkv, h)
            .view(batch, length, 3, block.n_heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(rotated(q, angles), rotated(k, angles), v)
        x = x + gate_a * block.dropout(
            self.linear(block.attn_out, mixed.transpose(1, 2).reshape(batch, length, width))
        )
        h = modulate(block.norm2(x), shift_m, scale_m)
        return x + gate_m * block.dropout(
            self.linear(block.mlp[2], block.mlp[1](self.linear(block.mlp[0], h)))
        )

    def __call__(self, process, x0, draws):
        net, vocab = self.network, process.vocab
        masked = Bernoulli()(process, x0, torch.ones_like(x0, dtype=torch.bool), draws)
        condition = F.silu(net.sigma_map(torch.zeros(len(x0), device=x0.device)))
        x, angles = (
            F.embedding(masked.xt, net.vocab_embed["embedding"]),
            net.rotary_emb.angles(x0.shape[1], x0.device),
        )
        for block in net.blocks:
            x = self.block(block, x, condition, angles)
        last = net.output_layer
        shift, scale = last.adaLN_modulation(condition)[:, None].chunk(2, dim=-1)
        logits = self.linear(last.linear, modulate(last.norm_final(x), shift, scale)).float()
        logits = logits.clone()
        logits[..., vocab.mask_id] -= 1e6
        log_probs = logits - logits.logsumexp(-1, keepdim=True)
        visible = masked.xt != vocab.mask_id
        log_probs[visible] = -1e6
        log_probs[visible, masked.xt[visible]] = 0.0
        nll = -log_probs.gather(-1, x0[..., None])[..., 0]
        return (nll * masked.weight.float()[:, None]).sum() / x0.numel()


class Ours:
    def __init__(self, network: DiT) -> None:
        self.network = network

    def __call__(self, process, x0, draws):
        objective = MDLM(process, weighting="nelbo")
        return objective(Denoiser(self.network), x0, torch.ones_like(x0), draws).loss


def build(args: argparse.Namespace) -> DiT:
    """The network with random numbers instead of zeros: gates of 0 would block the gradients of the
    blocks."""
    torch.manual_seed(0)
    width, layers, heads = SIZES[args.size]
    vocab = Vocab(args.vocab, args.vocab - 1, args.vocab - 1, (args.vocab - 1,))
    network = DiT(vocab, width, args.n_layers or layers, heads, dropout=0.0, compile=args.compile)
    for name, p in network.named_parameters():
        if "adaLN" in name or "output_layer.linear" in name:
            torch.nn.init.normal_(p, std=0.02 if "linear" in name else 0.3)
    return network.to(args.device)


def measure(args: argparse.Namespace) -> dict:
    """Seconds, bytes, loss and summaries of the gradients of one kind."""
    keep_freed_memory()
    network, cuda = build(args), args.device == "cuda"
    process = AbsorbingProcess(network.vocab, LogLinear())
    loss_of = Ours(network) if args.only == KINDS[2] else Paper(network, args.only == KINDS[1])
    x0 = torch.randint(
        0, args.vocab - 1, (args.batch, args.length), generator=torch.Generator().manual_seed(1)
    ).to(args.device)
    for p in network.parameters():
        p.grad = torch.zeros_like(p)  # gradients are allocated before the measured step
    seconds, added, before = [], 0, 0
    for step in range(1 + args.repeats):
        torch._foreach_zero_([p.grad for p in network.parameters()])
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        elif step == 0:  # the first step: later ones reuse its memory
            reset_peak_memory()
            before = process_status("VmRSS")
        start, used = time.perf_counter(), time.process_time()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=cuda):
            loss = loss_of(process, x0, Draws.for_batch(0, args.batch, 0, args.device))
        loss.backward()
        if cuda:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start, time.process_time() - used))
        if cuda or step == 0:
            added = (
                torch.cuda.max_memory_allocated() if cuda else process_status("VmHWM")
            ) - before
    state = sum(p.numel() * p.element_size() for p in network.parameters()) * 2
    masked = int(
        (
            Bernoulli()(
                process,
                x0,
                torch.ones_like(x0, dtype=torch.bool),
                Draws.for_batch(0, args.batch, 0, args.device),
            ).xt
            == args.vocab - 1
        ).sum()
    )
    torch.manual_seed(2)
    gradients = {
        name: [float(p.grad.norm()), float((p.grad * torch.randn_like(p)).sum())]
        for name, p in network.named_parameters()
        if p.grad.any()
    }
    times, cpu_times = zip(*seconds[1:])
    return {
        "seconds": statistics.median(times) if cuda else min(times),
        "range": [min(times), max(times)],
        "processor_seconds": min(cpu_times),
        "added": added,
        "state": state,
        "loss": loss.item(),
        "masked": masked,
        "gradients": gradients,
    }


def model_flops(args: argparse.Namespace, head_rows: int) -> float:
    """FLOPs of forward and backward without recomputation."""
    width, layers, _ = SIZES[args.size]
    layers, tokens = args.n_layers or layers, args.batch * args.length
    return (
        6 * (tokens * layers * 12 * width**2 + head_rows * width * args.vocab)
        + tokens * layers * 12 * args.length * width
    )


def compare(ours: dict, theirs: dict, tolerance: float) -> float:
    """The maximum relative difference of loss and gradients.

    Raises:
        SystemExit: if it is above the tolerance.
    """
    if ours["gradients"].keys() != theirs["gradients"].keys():
        raise SystemExit(
            "only one has gradients of "
            f"{', '.join(sorted(ours['gradients'].keys() ^ theirs['gradients'].keys()))}"
        )
    found = [abs(ours["loss"] / theirs["loss"] - 1)]
    for name, (norm, product) in ours["gradients"].items():
        scale, their_product = theirs["gradients"][name]
        found += [abs(norm - scale) / scale, abs(product - their_product) / scale]
    worst = max(found) if all(map(math.isfinite, found)) else math.nan  # max() ignores NaN
    if not worst < tolerance:
        raise SystemExit(
            f"loss or gradients differ by {worst:.1e} of their size; expected less than "
            f"{tolerance:.0e}"
        )
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--n_layers", type=int, help="overrides the number of layers of the size")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=50_258)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="compile the blocks of ours")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args)))
        return
    kinds = [kind for kind in KINDS if args.device == "cpu" or kind != KINDS[1]]
    results = {}
    for kind in kinds:
        done = subprocess.run(
            [sys.executable, *sys.argv, "--only", kind],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        results[kind] = json.loads(done.stdout.splitlines()[-1])
    tolerance = (
        5e-4 if args.device == "cpu" else 5e-2
    )  # float32 sums in another order; bfloat16 products
    theirs = results[KINDS[0]]
    difference = max(compare(results[kind], theirs, tolerance) for kind in kinds[1:])
    tokens, rows = args.batch * args.length, []
    for kind, r in results.items():
        r["tokens_per_second"] = tokens / r["seconds"]
        r["peak"] = r["added"] + r["state"]
        row = [kind, f"{r['tokens_per_second']:,.0f}", f"{theirs['seconds'] / r['seconds']:.2f}"]
        row.append(
            ""
            if args.device == "cuda"
            else f"{theirs['processor_seconds'] / r['processor_seconds']:.2f}"
        )
        row += [
            f"{r['added'] / 2**20:,.0f}",
            f"{r['added'] / theirs['added']:.0%}",
            f"{r['peak'] / 2**20:,.0f}",
            f"{r['peak'] / (theirs['added'] + theirs['state']):.0%}",
        ]
        if args.device == "cuda":
            peak = next(
                (value for name, value in PEAK.items() if name in torch.cuda.get_device_name()),
                None,
            )
            r["mfu"] = (
                None
                if peak is None
                else model_flops(args, r["masked"] if kind == KINDS[2] else tokens)
                / r["seconds"]
                / peak
            )
            row.append("?" if peak is None else f"{r['mfu']:.1%}")
        rows.append(tuple(row))
    header = (
        "wiring",
        "tokens/s",
        "times",
        "times, processor",
        "step adds, MB",
        "of",
        "with weights and gradients, MB",
        "of",
        *(("utilization",) if args.device == "cuda" else ()),
    )
    print(table(rows, header))
    print(
        f"loss {results[KINDS[2]]['loss']:.4f}; loss and gradients differ by at most "
        f"{difference:.1e} of their size; {theirs['masked']:,} of {tokens:,} positions are masked"
    )
    if args.json:
        shape = {
            key: getattr(args, key)
            for key in ("size", "n_layers", "batch", "length", "vocab", "device", "compile")
        }
        for r in results.values():
            r.pop("gradients")
        args.json.write_text(
            json.dumps({"shape": shape, "difference": difference, "results": results}, indent=2)
            + "\n"
        )


if __name__ == "__main__":
    main()
