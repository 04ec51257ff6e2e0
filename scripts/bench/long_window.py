"""One forward pass on one long window on a CPU: time, memory, and where the time goes, against the
arithmetic limit. Random weights.

    python scripts/bench/long_window.py [--size 256x16] [--length 131072] [--threads 1 2] [--seconds
    20] [--json FILE] [--markdown FILE]

The pass is Caduceus-Ph with logits at every position, without gradients. Each number of threads is
a process of its own. Peak memory is what the pass adds to the memory of the process. Operators are
measured one by one on the arrays of one layer, and their limits are those of operators.py:
arithmetic at the rate of a large float32 product, bytes at the rate of a copy. The row "rest" is
what the pass takes beyond them; it is negative if an operator was slower when it was repeated.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from measuring import peak_memory
from operators import Operator, Probe, compared, measure, mixer_operators, rate_probes

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.kernels.native import library, rms_norm
from dnadiff.options.command import keep_freed_memory

FORWARD = 4  # of the operators of a mixer


def other_operators(network: Caduceus, ids: torch.Tensor) -> list[Operator]:
    """Those outside the mixers."""
    rows, width, table = ids.numel(), network.d_model, network.embedding.weight
    x, added, scale = (
        torch.randn(*ids.shape, width),
        torch.randn(*ids.shape, width),
        torch.ones(width),
    )
    row_bytes, norms = 4.0 * rows * width, len(network.layers) + 1
    return [
        Operator("embedding", 1, lambda: network.embedding(ids), 0, row_bytes + 8 * rows),
        Operator(
            "residual addition and norm",
            norms,
            lambda: rms_norm(x, scale, 1e-5, added),
            5.0 * rows * width,
            4 * row_bytes,
        ),
        Operator(
            "head",
            1,
            lambda: network.head(x),
            2.0 * rows * width * len(table),
            row_bytes + 4.0 * rows * len(table),
        ),
    ]


def seconds_of(call: Callable[[], object], seconds: float, threads: int) -> float:
    """Seconds of the fastest of at least two calls; with one thread of the processor, as of the
    operators."""
    clock, times = time.process_time if threads == 1 else time.perf_counter, []
    while len(times) < 2 or sum(times) < seconds:
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


@torch.no_grad()
def measured(
    options: argparse.Namespace, threads: int, probes: Mapping[str, Probe] | None = None
) -> dict:
    """The pass and its operators with one number of threads."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    torch.manual_seed(0)
    width, layers = map(int, options.size.split("x"))
    network = Caduceus(DNATokenizer().vocab, width, layers).eval()
    ids = torch.randint(7, 11, (1, options.length))
    memory = peak_memory(lambda: network(ids))
    whole = seconds_of(lambda: network(ids), options.seconds, threads)
    operators = mixer_operators(width, layers, 1, options.length, threads, keep=False)[
        :FORWARD
    ] + other_operators(network, ids)
    probes = probes or rate_probes()
    best = measure(
        {name: run for name, (run, _) in probes.items()} | {op.name: op.run for op in operators},
        options.seconds,
        threads,
    )
    rates = {name: amount / best[name] for name, (_, amount) in probes.items()}
    product = max(rate for name, rate in rates.items() if name.startswith("product"))
    rows = [
        compared(op, best[op.name], rates) | {"share": op.calls * best[op.name] / whole}
        for op in operators
    ]
    arithmetic = sum(op.calls * (op.flops + 14 * op.exps) for op in operators) / product
    return {
        "vectors": library().dnadiff_vectors().decode(),
        "size": options.size,
        "length": options.length,
        "threads": threads,
        "parameters": sum(p.numel() for p in network.parameters()),
        "seconds": whole,
        "peak_mb": memory,
        "rates": rates,
        "arithmetic_seconds": arithmetic,
        "of_arithmetic": arithmetic / whole,
        "operators": rows,
        "rest": 1 - sum(row["share"] for row in rows),
    }


def markdown(found: list[dict]) -> str:
    """One table: an operator per row, a group of columns for each number of threads."""
    head = "| operator | calls | MB | GFLOP | Gexp |" + "".join(
        f" {each['threads']} thread(s): s | of its limit | set by | share |" for each in found
    )
    lines = [head, "|" + "---|" * (5 + 4 * len(found))]
    for number, row in enumerate(found[0]["operators"]):
        cells = [
            row["name"],
            row["calls"],
            f"{row['MB']:,.0f}",
            f"{row['MFLOP'] / 1e3:,.1f}",
            f"{row['Mexp'] / 1e3:,.2f}",
        ]
        for each in found:
            at = each["operators"][number]
            cells += [
                f"{at['calls'] * at['ms'] / 1e3:.2f}",
                f"{at['limit']:.0%}",
                at["by"],
                f"{at['share']:.1%}",
            ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines.append(
        "| rest | | | | | "
        + " | ".join(
            f"{each['rest'] * each['seconds']:.2f} | | | {each['rest']:.1%}" for each in found
        )
        + " |"
    )
    lines.append(
        "| all | | | | | "
        + " | ".join(
            f"{each['seconds']:.2f} | {each['of_arithmetic']:.0%} | arithmetic | 100%"
            for each in found
        )
        + " |"
    )
    for each in found:
        product, copy = (
            max(v for k, v in each["rates"].items() if k.startswith("product")),
            each["rates"]["copy memory"],
        )
        memory = "not known" if each["peak_mb"] is None else f"{each['peak_mb']:,.0f} MB"
        lines.append(
            f"\n{each['threads']} thread(s), {each['vectors']}: {each['seconds']:.1f} s for "
            f"{each['length']:,} bases ({each['length'] / each['seconds']:,.0f} bases/s), "
            f"peak memory of the pass {memory}; {each['parameters']:,} parameters. Arithmetic "
            f"alone would take {each['arithmetic_seconds']:.1f} s at "
            f"{product / 1e9:.0f} GFLOP/s; a copy reads and writes {copy / 1e9:.0f} GB/s."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--length", type=int, default=131_072)
    parser.add_argument("--size", default="256x16", help="width x layers (default: %(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="of measuring passes, and of measuring operators (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if len(options.threads) == 1:
        found = [measured(options, options.threads[0])]
    else:
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for threads in options.threads:
                file = Path(folder) / f"{threads}.json"
                line = [
                    "--size",
                    options.size,
                    f"--length={options.length}",
                    f"--seconds={options.seconds}",
                    f"--threads={threads}",
                    f"--json={file}",
                ]
                subprocess.run(
                    [sys.executable, __file__, *line], check=True, stdout=subprocess.DEVNULL
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
