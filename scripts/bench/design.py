"""Time and memory of generating many sequences: streamed to disk by the command line, compared with
a loop that keeps them all in memory.

    python scripts/bench/design.py --checkpoint RUN [--num 10000] [--length 1024] [--batch 32]
    [--calls 16] [--json FILE] [KEY=VALUE ...]

Each side is a separate process with `calls` network calls per batch: `python -m dnadiff.sample` for
NUM sequences and for a tenth of them, and the same draws in a Python process that keeps the
sequences in a list. Memory is the maximum resident set size of the process. The script checks that
the FASTA files have the same sequences. KEY=VALUE are further keys of `sample`, such as
`reward=gc method=smc`; then only the command is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dnadiff.progress import duration, table

NAIVE = """
import sys
import dnadiff
from dnadiff.sampler.grouped import Grouped
run, num, length, batch, calls, output = sys.argv[1:]
m = dnadiff.load(run, "cpu")
texts = m.sample(int(num), int(length), Grouped(int(calls)), seed=1, batch_size=int(batch))
with open(output, "w") as file:
    file.writelines(f">sample_{i}\\n{text}\\n" for i, text in enumerate(texts, 1))
"""


def measured(command: list[str]) -> dict[str, float]:
    """Seconds and peak memory (MB) of a process; exits if it fails."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command[:4])} ... failed")
    scale = 1 if sys.platform == "darwin" else 1024
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "seconds": time.monotonic() - start,
        "cpu_seconds": cpu,
        "megabytes": usage.ru_maxrss * scale / 1e6,
    }


def letters(path: Path) -> list[str]:
    """The sequences of a FASTA file."""
    return ["".join(record.split("\n")[1:]) for record in path.read_text().split(">")[1:]]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", required=True, help="a model of DNA")
    for name, value in (("num", 10_000), ("length", 1024), ("batch", 32), ("calls", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument(
        "keys", nargs="*", metavar="KEY=VALUE", help="further keys of python -m dnadiff.sample"
    )
    parser.add_argument("--skip-naive", action="store_true", help="only the streamed side")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    }
    with tempfile.TemporaryDirectory() as folder:
        sample = [
            sys.executable,
            "-m",
            "dnadiff.sample",
            f"checkpoint={options.checkpoint}",
            f"length={options.length}",
        ]
        sample += [
            f"batch_size={options.batch}",
            f"sampler.num_groups={options.calls}",
            f"hydra.run.dir={folder}/run",
            *options.keys,
        ]
        sides = {
            "a tenth, streamed": (max(options.num // 10, 1), "tenth"),
            "streamed": (options.num, "all"),
        }
        for name, (num, file) in sides.items():
            results[name] = measured(
                [*sample, f"num_samples={num}", f"output={folder}/{file}.fa"]
            ) | {"sequences": num}
            print(f"{name}: {results[name]}", flush=True)
        if not (options.skip_naive or options.keys):
            numbers = [str(n) for n in (options.num, options.length, options.batch, options.calls)]
            naive = [
                sys.executable,
                "-c",
                NAIVE,
                options.checkpoint,
                *numbers,
                f"{folder}/naive.fa",
            ]
            results["kept in memory"] = measured(naive) | {"sequences": options.num}
            if letters(Path(folder, "naive.fa")) != letters(Path(folder, "all.fa")):
                raise SystemExit("the two sides wrote different sequences")
    rows = [
        (
            name,
            f"{r['sequences']:,}",
            duration(r["seconds"]),
            f"{r['sequences'] / r['seconds']:.2f}",
            f"{r['cpu_seconds']:.0f}",
            f"{r['megabytes']:.0f}",
        )
        for name, r in results.items()
        if name != "settings"
    ]
    print(table(rows, ("side", "sequences", "time", "sequences/s", "CPU seconds", "peak MB")))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
