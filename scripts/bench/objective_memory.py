"""Peak memory of one training step with logits at masked positions only, compared with logits at
all positions.

    python scripts/bench/objective_memory.py [--vocab 50257] [--length 256] [--batch 4] [--widths 64
    768] [--json FILE]

The same network, masks and loss twice, each in a separate process: MDLM's bound with Bernoulli
masks, stratified times and AdamW. Both select the masked positions: one before the head, as
`Denoiser` does, one after a log-softmax of all logits. The published code does the latter in effect
and carries visible tokens over in place; that copy is not counted here. "step" is the growth of the
process (Linux) or of the CUDA allocator (--device cuda) during the second step; "total" is the peak
with weights, gradients and optimizer state, which are small in a narrow network with a large
vocabulary and large in a wide one.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from measuring import process_status, reset_peak_memory

from dnadiff.backbone.dit import DiT
from dnadiff.denoiser import Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.objective.mdlm import MDLM
from dnadiff.process import AbsorbingProcess
from dnadiff.progress import table
from dnadiff.vocab import Vocab


class EveryLogit(Denoiser):
    """Computes the head and the log-softmax at every position, and selects the masked ones
    afterwards."""

    fused_head = False  # the loss then uses log-probabilities

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        everywhere = self.logits(xt, t, cond, None, valid)
        banned = ~self.vocab.is_emitted(everywhere.device)
        return torch.log_softmax(everywhere.masked_fill(banned, -torch.inf), dim=-1)[positions]


def measure(kind: type[Denoiser], args: argparse.Namespace) -> tuple[int, int]:
    """Bytes that the second training step adds at its peak, and the peak including weights and
    optimizer state (without Python and torch)."""
    torch.manual_seed(0)
    empty = 0 if args.device == "cuda" else process_status("VmRSS")
    vocab = Vocab(args.vocab, args.vocab - 1, args.vocab - 1, (args.vocab - 1,))
    objective = MDLM(AbsorbingProcess(vocab, LogLinear()))
    denoiser = kind(DiT(vocab, args.widths[0], args.n_layers, 4, dropout=0.0)).to(args.device)
    optimizer = torch.optim.AdamW(
        denoiser.parameters(), foreach=False
    )  # one parameter at a time: no copy of all parameters
    x0 = torch.randint(0, args.vocab - 1, (args.batch, args.length), device=args.device)
    for step in range(2):
        optimizer.zero_grad(set_to_none=False)
        if step == 1 and args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        elif step == 1:
            reset_peak_memory()
            before = process_status("VmRSS")
        draws = Draws.for_batch(0, args.batch, step, args.device)
        objective(denoiser, x0, torch.ones_like(x0), draws).loss.backward()
        optimizer.step()
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else process_status("VmHWM")
    return peak - before, peak - empty


KINDS = {"masked positions": Denoiser, "all positions": EveryLogit}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 768])
    parser.add_argument("--n_layers", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(*measure(KINDS[args.only], args))
        return
    rows, results = [], []
    for width in args.widths:
        peak = {}
        for kind in KINDS:
            command = [sys.executable, *sys.argv, "--widths", str(width), "--only", kind]
            peak[kind] = [
                int(x)
                for x in subprocess.run(
                    command, capture_output=True, text=True, check=True
                ).stdout.split()
            ]
        for place, name in enumerate(("step", "total")):
            few, every = (peak[kind][place] for kind in KINDS)
            rows.append(
                (
                    f"{width} x {args.n_layers}",
                    name,
                    f"{few / 2**20:,.0f}",
                    f"{every / 2**20:,.0f}",
                    f"{1 - few / every:.0%}",
                )
            )
        results.append({"d_model": width, "peak_bytes": peak})
    print(table(rows, ("network", "peak, MB", *(f"at {kind}" for kind in KINDS), "less")))
    if args.json:
        shape = {
            key: getattr(args, key) for key in ("vocab", "length", "batch", "n_layers", "device")
        }
        args.json.write_text(json.dumps({"shape": shape, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
