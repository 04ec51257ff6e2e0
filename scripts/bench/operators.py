"""Every operator of a training step on a CPU, against the limit of this machine: time, bytes,
FLOPs, percent of the limit, share of the step.

    python scripts/bench/operators.py [--size 64x4] [--batch 16] [--length 512] [--threads 1]
    [--seconds 20] [--avx2] [--json FILE] [--markdown FILE]

The limit of an operator is the longer of two times, from rates measured in the same run, in turns
with the operators:

- its arithmetic: multiply-adds (2 FLOPs each) and exponentials (7 multiply-adds each) at the rate
  of a large float32 product, by the fastest library;
- its bytes, every array read or written once, at the rate of a copy between arrays that together
  are as large (second or third level cache, or memory). Arrays that two operators share are counted
  in both.

For the scan, the multiplications of `scan.py` are counted: 10 per state forward (of which 7 are an
exponential), 18 backward. Times are the fastest of many; with one thread they are times of the
processor, to which other programs add little. Shares are of a real step: masks, network, loss,
backward pass, clipping, AdamW, averages of the weights. They add up to the step with the row
"rest": Python, autograd, allocation, gradients that are added, and caches that hold less than when
one operator is called again and again. `--avx2` runs in a process without AVX-512: kernels compiled
without it, oneDNN, MKL and PyTorch limited to AVX2.
"""

import argparse
import ctypes
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from ctypes import c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.kernels.cpu import table_of
from dnadiff.networks.kernels.native import (
    PLAIN,
    library,
    linear,
    rms_norm,
    scan_backward,
    scan_forward,
)
from dnadiff.options.command import keep_freed_memory
from dnadiff.training.optim import parameter_groups

AVX2 = {
    "CXX": "c++ -mno-avx512f",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}
LEVELS = {"L2": 2**18, "L3": 2**22, "memory": 2**26}  # bytes of each of the two arrays of a copy
N, K = 16, 4


class Operator(NamedTuple):
    """One operator: how often a step calls it, and what a call computes and moves."""

    name: str
    calls: int
    run: Callable[[], object]
    flops: float
    bytes: float
    exps: float = 0


class Step:
    """A network with all that trains it, and one step."""

    def __init__(self, width: int, layers: int, batch: int, length: int) -> None:
        torch.manual_seed(0)
        vocab = DNATokenizer().vocab
        self.objective = MDLM(AbsorbingProcess(vocab, LogLinear()))
        self.network = Caduceus(vocab, width, layers)
        self.denoiser = self.objective.denoiser(self.network)
        self.parameters = list(self.network.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(parameter_groups(self.network, 0.1), 1e-4, fused=True)
        self.ids, self.weight = torch.randint(7, 11, (batch, length)), torch.ones(batch, length)
        self.count = 0

    def loss(self) -> Tensor:
        """The loss of the next batch."""
        self.count += 1
        return self.objective(
            self.denoiser, self.ids, self.weight, Draws.for_batch(0, len(self.ids), self.count)
        ).loss

    def clip(self) -> None:
        """As Lightning clips."""
        nn.utils.clip_grad_norm_(self.parameters, 1.0)

    @torch.no_grad()
    def update_average(self) -> None:
        """As `EMA.average`."""
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1e-3)

    def __call__(self) -> None:
        self.loss().backward()
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.update_average()


def small_operators(step: Step, width: int, layers: int, batch: int, length: int) -> list[Operator]:
    """Those outside the mixers."""
    rows, weights = batch * length, sum(p.numel() for p in step.parameters)
    row_bytes, masked = 4.0 * rows * width, rows // 2
    table = step.network.embedding.weight
    x, added, scale, dout = (torch.randn(batch, length, width) for _ in range(4))
    x.requires_grad_(), added.requires_grad_()
    norm_weight = torch.ones(width, requires_grad=True)
    normed, _, total = rms_norm(x, norm_weight, 1e-5, added)
    outputs = total, normed
    embedded = step.network.embedding(step.ids)
    features, target = (
        torch.randn(masked, width, requires_grad=True),
        torch.randint(7, 11, (masked,)),
    )
    logits = step.network.head(features)
    positions = torch.arange(rows).view(batch, length) % 2 == 0
    picked = torch.full((masked,), step.network.vocab.mask_id)
    some = torch.randn(masked, len(table), requires_grad=True)

    def nll() -> Tensor:
        return -step.denoiser.parameterization.log_probs(some[:, :12], picked).gather(
            -1, target[:, None]
        )[:, 0]

    cost, ones = nll(), torch.ones(masked)
    gathered = dout.clone().requires_grad_()[positions]
    step()
    step.loss().backward()
    gradients = [p.grad for p in step.parameters]
    windows = np.random.default_rng(0).integers(7, 11, (batch, length)).astype(np.uint8)
    return [
        Operator(
            "data: ids and weights of a batch",
            1,
            lambda: (torch.from_numpy(windows).long(), torch.from_numpy(windows > 0).float()),
            0,
            14.0 * rows,
        ),
        Operator(
            "masks",
            1,
            lambda: step.objective.masking(
                step.objective.process, step.ids, step.weight > 0, Draws.for_batch(0, batch, 1)
            ),
            0,
            24.0 * rows,
        ),
        Operator("embedding", 1, lambda: step.network.embedding(step.ids), 0, row_bytes + 8 * rows),
        Operator(
            "embedding, backward",
            1,
            lambda: torch.autograd.grad(embedded, table, dout, retain_graph=True),
            rows * width,
            row_bytes + 8 * rows,
        ),
        Operator(
            "residual addition and norm",
            layers,
            lambda: rms_norm(x.detach(), norm_weight.detach(), 1e-5, added.detach()),
            5.0 * rows * width,
            4 * row_bytes,
        ),
        Operator(
            "residual addition and norm, backward",
            layers,
            lambda: torch.autograd.grad(
                outputs, (x, added, norm_weight), (dout, scale), retain_graph=True
            ),
            9.0 * rows * width,
            4 * row_bytes,
        ),
        Operator("rows that are masked", 1, lambda: dout[positions], 0, row_bytes + rows),
        Operator(
            "rows that are masked, backward",
            1,
            lambda: torch.autograd.grad(
                gathered,
                gathered.grad_fn.next_functions[0][0].variable,
                features.detach(),
                retain_graph=True,
            ),
            0,
            2 * row_bytes,
        ),
        Operator(
            "head",
            1,
            lambda: step.network.head(features.detach()),
            2.0 * masked * width * len(table),
            4.0 * masked * (width + len(table)),
        ),
        Operator(
            "head, backward",
            1,
            lambda: torch.autograd.grad(
                logits, (features, table), some.detach(), retain_graph=True
            ),
            4.0 * masked * width * len(table),
            4.0 * masked * (2 * width + len(table)),
        ),
        Operator("cross-entropy", 1, nll, 0, 4.0 * masked * 13, 12.0 * masked),
        Operator(
            "cross-entropy, backward",
            1,
            lambda: torch.autograd.grad(cost, some, ones, retain_graph=True),
            0,
            4.0 * masked * (12 + 16),
            12.0 * masked,
        ),
        Operator(
            "clipping",
            1,
            lambda: nn.utils.clip_grad_norm_(step.parameters, 1.0),
            3.0 * weights,
            12.0 * weights,
        ),
        Operator(
            "AdamW",
            1,
            lambda: set_gradients(step, gradients) or step.optimizer.step(),
            12.0 * weights,
            28.0 * weights,
        ),
        Operator("averages of the weights", 1, step.update_average, 3.0 * weights, 12.0 * weights),
    ]


def set_gradients(step: Step, gradients: list[Tensor | None]) -> None:
    """Those of an earlier step, which cost nothing."""
    for parameter, gradient in zip(step.parameters, gradients, strict=True):
        parameter.grad = gradient


def pointers(*tensors: Tensor | None) -> list[int | None]:
    """Addresses of the data; null for None."""
    return [None if x is None else x.data_ptr() for x in tensors]


def mixer_operators(
    width: int, layers: int, batch: int, length: int, threads: int, keep: bool = True
) -> list[Operator]:
    """Those of a mixer: calls of the library with the arrays of one layer.

    Args:
        keep: the scan stores states for the backward pass; False is inference, which calls the
            first four alone.
    """
    D, E, R, rows, lib = width, 2 * width, math.ceil(width / 16), batch * length, library()
    P, wide, narrow = R + 2 * N, 4.0 * rows * E, 4.0 * rows * D
    hidden, dout, dhidden = (torch.randn(batch, length, D) for _ in range(3))
    x, z, u, u_rev, du, du_rev, ddelta, y, y_rev, dy, delta, delta_rev = (
        torch.randn(batch, length, E) for _ in range(12)
    )
    p, p_rev = torch.randn(batch, length, P), torch.randn(batch, length, P)
    in_proj, out_proj, x_proj, dt = (
        torch.randn(2 * E, D),
        torch.randn(D, E),
        torch.randn(P, E) / E,
        torch.randn(E, R),
    )
    taps, bias, A, skip = (
        torch.randn(E, K),
        torch.randn(E),
        -torch.arange(1.0, N + 1).repeat(E, 1),
        torch.ones(E),
    )
    step_bias = torch.full((E,), -3.0)
    sums = torch.zeros(threads, 4 * D * E + 4 * P * E + 4 * R * E + 4 * (K + 1) * E)
    rows_of = [(taps, bias, x_proj, dt, *out) for out in ((u, p, delta), (u_rev, p_rev, delta_rev))]
    ways = table_of(rows_of)
    B, C = p[..., R : R + N], p[..., R + N :]
    states = scan_forward(u, delta, A, B, C, skip, step_bias, False, True, *PLAIN)[1]
    dB, dC = torch.randn(batch, length, N), torch.randn(batch, length, N)
    sizes, S = (batch, length, D, E), sums.shape[1]
    f = {
        "in": 2.0 * rows * D * E,
        "x": 2.0 * rows * E * (P + R),
    }  # FLOPs of half of the input projection, and of x_proj and dt of one direction
    taps_flops, silu = 2.0 * rows * E * K, 4.0 * rows * E

    def conv(backward: bool) -> Callable[[], object]:
        row = (batch, length, E, K)
        if backward:
            return lambda: lib.dnadiff_conv_backward(
                *pointers(dy, x, taps, bias, None, du, None, sums), *row, 0, E, E, 0, threads
            )
        return lambda: lib.dnadiff_conv_forward(
            *pointers(x, taps, bias, None, u), *row, 0, E, 0, threads
        )

    return [
        Operator(
            "input projection",
            layers,
            lambda: lib.dnadiff_mixer_input(
                *pointers(hidden, in_proj, None, x, z), *sizes, threads
            ),
            2 * f["in"],
            narrow + 2 * wide,
        ),
        Operator(
            "two convolutions, x_proj, dt",
            layers,
            lambda kept=rows_of: lib.dnadiff_mixer_steps(
                *pointers(x, None, None),
                ctypes.cast(ways, c_void_p),
                2,
                batch,
                length,
                E,
                K,
                R,
                N,
                0,
                threads,
            ),
            2 * (f["x"] + taps_flops + silu),
            5 * wide + 8.0 * rows * P,
            2.0 * rows * E,
        ),
        Operator(
            "scan of one direction",
            2 * layers,
            lambda: scan_forward(u, delta, A, B, C, skip, step_bias, False, keep, *PLAIN),
            2.0 * rows * E * N * 10,
            3 * wide + 8.0 * rows * N + keep * wide / 2,
        ),
        Operator(
            "gate, output projection",
            layers,
            lambda: lib.dnadiff_mixer_output(
                *pointers(y, y_rev, z, out_proj, dhidden), *sizes, threads
            ),
            f["in"] + silu,
            3 * wide + narrow,
            1.0 * rows * E,
        ),
        Operator(
            "gate, output projection and half of input projection, backward",
            layers,
            lambda: lib.dnadiff_mixer_output_backward(
                *pointers(dout, y, y_rev, z, hidden, out_proj, in_proj[E:], dy, dhidden, sums),
                *sizes,
                S,
                threads,
            ),
            4 * f["in"] + 3 * silu,
            4 * wide + 3 * narrow,
            1.0 * rows * E,
        ),
        Operator(
            "scan of one direction, backward",
            2 * layers,
            lambda: scan_backward(
                dy, u, delta, A, B, C, skip, step_bias, states, False, *PLAIN[:3], None, None
            ),
            2.0 * rows * E * N * 18,
            5 * wide + 16.0 * rows * N + wide / 2,
        ),
        Operator(
            "x_proj and dt of one direction, backward",
            2 * layers,
            lambda: lib.dnadiff_mixer_steps_backward(
                *pointers(ddelta, dB, dC, u, p, x_proj, dt, None, du, sums),
                batch,
                length,
                E,
                R,
                N,
                S,
                threads,
            ),
            2 * f["x"],
            4 * wide + 4.0 * rows * (P + 2 * N),
        ),
        Operator(
            "two convolutions and half of input projection, backward",
            layers,
            lambda: lib.dnadiff_mixer_input_backward(
                *pointers(
                    du,
                    du_rev,
                    x,
                    None,
                    hidden,
                    in_proj,
                    taps,
                    bias,
                    taps,
                    bias,
                    None,
                    None,
                    dhidden,
                    sums,
                ),
                *sizes,
                K,
                0,
                S,
                threads,
            ),
            2 * f["in"] + 2 * (3 * taps_flops + 2 * silu),
            3 * wide + 3 * narrow,
            2.0 * rows * E,
        ),
        Operator(
            "(one convolution alone)", 0, conv(False), taps_flops + silu, 2 * wide, 1.0 * rows * E
        ),
        Operator(
            "(one convolution alone, backward)",
            0,
            conv(True),
            3 * taps_flops + 2 * silu,
            3 * wide,
            1.0 * rows * E,
        ),
    ]


Probe = tuple[Callable[[], object], float]


def rate_probes() -> dict[str, Probe]:
    """Calls that measure a rate, with what each of them does: FLOPs, bytes or exponentials."""
    probes: dict[str, Probe] = {}
    for n in (512, 1024):
        a, b = torch.randn(n, n), torch.randn(n, n)
        probes[f"product {n}, PyTorch's"] = lambda a=a, b=b: a @ b, 2.0 * n**3
        probes[f"product {n}, kernels'"] = lambda a=a, b=b: linear(a, b), 2.0 * n**3
    tall, small = torch.randn(8192, 128), torch.randn(128, 128)
    probes["product of short rows, kernels'"] = lambda: linear(tall, small), 2.0 * 8192 * 128 * 128
    for level, size in LEVELS.items():
        source, target = torch.zeros(size // 4), torch.empty(size // 4)
        probes[f"copy {level}"] = lambda s=source, t=target: t.copy_(s), 2.0 * size
    angle, out = torch.randn(2**15), torch.empty(2**15)
    probes["exp"] = lambda: torch.exp(angle, out=out), float(len(angle))
    return probes


def measure(
    calls: dict[str, Callable[[], object]], seconds: float, threads: int
) -> dict[str, float]:
    """Seconds of the fastest call of each, in turns."""
    clock = time.process_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(calls, math.inf)
    begin, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - begin < seconds:
        for name, call in calls.items():
            if count == 0:
                call()
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
        count += 1
    return best


def compared(op: Operator, seconds: float, rates: dict[str, float]) -> dict[str, object]:
    """A call of an operator, and the part of its time that the longer of arithmetic and bytes takes
    at the rates of the machine."""
    level = "L2" if op.bytes < 2**20 else "L3" if op.bytes < 2**25 else "memory"
    product = max(rate for name, rate in rates.items() if name.startswith("product"))
    limits = {
        "arithmetic": (op.flops + 14 * op.exps) / product,
        f"bytes ({level})": op.bytes / rates[f"copy {level}"],
    }
    by = max(limits, key=lambda name: limits[name])
    amounts = {"MB": op.bytes / 1e6, "MFLOP": op.flops / 1e6, "Mexp": op.exps / 1e6}
    return {
        "name": op.name,
        "calls": op.calls,
        "ms": seconds * 1e3,
        **amounts,
        "limit": limits[by] / seconds,
        "by": by,
    }


def table(
    options: argparse.Namespace, probes: Mapping[str, Probe] | None = None
) -> dict[str, object]:
    """All operators of one size with their limits, and the rates of the machine."""
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    width, layers = map(int, options.size.split("x"))
    step = Step(width, layers, options.batch, options.length)
    operators = mixer_operators(width, layers, options.batch, options.length, options.threads)
    operators += small_operators(step, width, layers, options.batch, options.length)
    probes = probes or rate_probes()
    calls = (
        {name: run for name, (run, _) in probes.items()}
        | {op.name: op.run for op in operators}
        | {"step": step}
    )
    best = measure(calls, options.seconds, options.threads)
    rates = {name: amount / best[name] for name, (_, amount) in probes.items()}
    product = max(rate for name, rate in rates.items() if name.startswith("product"))
    rows = [
        compared(op, best[op.name], rates) | {"share": op.calls * best[op.name] / best["step"]}
        for op in operators
    ]
    rest = 1 - sum(float(str(row["share"])) for row in rows)
    flops = (
        3
        * layers
        * (
            2 * width * 4 * width
            + 2 * 2 * width * width
            + 2 * 2 * 2 * width * (2 * N + 2 * math.ceil(width / 16))
        )
    )
    tokens = options.batch * options.length
    whole = {
        "ms": best["step"] * 1e3,
        "tokens/s": tokens / best["step"],
        "of the product limit": (flops + 3 * width * 16) * tokens / product / best["step"],
        "rest": rest,
    }
    return {
        "vectors": library().dnadiff_vectors().decode(),
        "size": options.size,
        "threads": options.threads,
        "rates": rates,
        "step": whole,
        "operators": rows,
    }


def markdown(found: list[dict[str, object]]) -> str:
    """One table: an operator per row, a pair of columns for each set of instructions."""
    first = found[0]
    head = "| operator | calls | MB | MFLOP | Mexp |" + "".join(
        f" {t['vectors']}: ms | of its limit | set by | share |" for t in found
    )
    lines = [head, "|" + "---|" * (5 + 4 * len(found))]
    for number, row in enumerate(first["operators"]):  # type: ignore[arg-type, var-annotated]
        cells = [
            row["name"],
            row["calls"] or "",
            f"{row['MB']:.1f}",
            f"{row['MFLOP']:.0f}",
            f"{row['Mexp']:.1f}",
        ]
        for other in found:
            at = other["operators"][number]
            cells += [
                f"{at['ms']:.2f}",
                f"{at['limit']:.0%}",
                at["by"],
                f"{at['share']:.1%}" if at["calls"] else "",
            ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    rest = "".join(f" | | | {t['step']['rest']:.1%} |" for t in found).removeprefix(" ")
    lines.append(
        "| rest | | | | " + "".join(f"| | | | {t['step']['rest']:.1%} " for t in found) + "|"
        if rest
        else ""
    )
    for t in found:
        step, rates = t["step"], t["rates"]
        levels = ", ".join(f"{rates[f'copy {level}'] / 1e9:.0f}" for level in LEVELS)
        product = max(v for k, v in rates.items() if k.startswith("product"))
        lines.append(
            f"\n{t['vectors']}, {t['size']}, {t['threads']} thread(s): a step takes "
            f"{step['ms']:.0f} ms ({step['tokens/s']:,.0f} tokens/s, "
            f"{step['of the product limit']:.0%} of the matrix-product limit). Product "
            f"{product / 1e9:.0f} GFLOP/s, "
            f"copy {levels} GB/s ({', '.join(LEVELS)}), {rates['exp'] / 1e9:.1f} billion exp/s by "
            "PyTorch."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="64x4", help="width x layers")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="of measuring, for each set of instructions (default: %(default)s)",
    )
    parser.add_argument("--avx2", action="store_true", help="also measure without AVX-512")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    found = [table(options)]
    if options.avx2:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "avx2.json"
            keep = [
                "--size",
                options.size,
                *(
                    f"--{k}={getattr(options, k)}"
                    for k in ("batch", "length", "threads", "seconds")
                ),
            ]
            subprocess.run(
                [sys.executable, __file__, *keep, f"--json={file}"],
                env=os.environ | AVX2,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            found += json.loads(file.read_text())
    text = markdown(found)
    print(f"{platform.machine()}, PyTorch {torch.__version__}\n\n{text}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
