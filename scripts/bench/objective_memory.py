"""Peak memory of one training step with logits at masked positions only, against logits at all positions.

    python scripts/bench/objective_memory.py [--vocab 50257] [--length 256] [--batch 4] [--json FILE]

The same network, masks and loss twice, each in a process of its own: MDLM's bound with coins, stratified times and AdamW. Both
select the masked positions; one before the head, as `Denoiser` does, one after it, as the published code does in effect. Peak is what
the process (Linux) or the CUDA allocator (--device cuda) grew by during the second step, weights and optimizer state excluded.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from dnadiff.backbone.dit import DiT
from dnadiff.denoiser import Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.objective.mdlm import MDLM
from dnadiff.process import AbsorbingProcess
from dnadiff.vocab import Vocab


class EveryLogit(Denoiser):
    """Computes the head and the log-probabilities at every position, and selects afterwards."""

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        everywhere = super().log_probs(xt, t, cond, None, valid)
        return everywhere if positions is None else everywhere[positions]


def status(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    return 1024 * next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))


def measure(kind: type[Denoiser], args: argparse.Namespace) -> int:
    """Bytes that the second training step adds at its peak."""
    torch.manual_seed(0)
    vocab = Vocab(args.vocab, args.vocab - 1, args.vocab - 1, (args.vocab - 1,))
    objective = MDLM(AbsorbingProcess(vocab, LogLinear()))
    denoiser = kind(DiT(vocab, args.d_model, args.n_layers, 4, dropout=0.0)).to(args.device)
    optimizer = torch.optim.AdamW(denoiser.parameters(), foreach=False)  # one parameter at a time: no copies of all of them
    x0 = torch.randint(0, args.vocab - 1, (args.batch, args.length), device=args.device)
    for step in range(2):
        optimizer.zero_grad(set_to_none=False)
        if step == 1 and args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        elif step == 1:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
            before = status("VmRSS")
        draws = Draws.for_batch(0, args.batch, step, args.device)
        objective(denoiser, x0, torch.ones_like(x0), draws).loss.backward()
        optimizer.step()
    return (torch.cuda.max_memory_allocated() if args.device == "cuda" else status("VmHWM")) - before


KINDS = {"masked positions": Denoiser, "all positions": EveryLogit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--d_model", type=int, default=64)
    parser.add_argument("--n_layers", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(measure(KINDS[args.only], args))
        return
    peak = {
        kind: int(subprocess.run([sys.executable, *sys.argv, "--only", kind], capture_output=True, text=True, check=True).stdout)
        for kind in KINDS
    }
    ratio = peak["masked positions"] / peak["all positions"]
    for kind, size in peak.items():
        print(f"logits at {kind:<17}{size / 2**20:10,.0f} MB")
    print(f"ratio {ratio:.2f}: {1 - ratio:.0%} less")
    if args.json:
        shape = {key: getattr(args, key) for key in ("vocab", "length", "batch", "d_model", "n_layers", "device")}
        args.json.write_text(json.dumps({"shape": shape, "peak_bytes": peak, "ratio": ratio}, indent=2) + "\n")


if __name__ == "__main__":
    main()
