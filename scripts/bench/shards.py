"""Two shards at a time compared with two unrelated processes: what sharing the work of one command
costs.

    python scripts/bench/shards.py [--command score sample] [--units 3] [--repeats 3] [--json FILE]

Unrelated processes: two runs without shards at the same time, each of half the work. Shards:
`shard=1/2` and `shard=2/2` of all of it at the same time. Both are timed from start to end,
alternately; the ratio is of their medians, 1 if shards cost nothing. The time of the merge is
printed apart. Each process has one thread. With the default sizes about two minutes on two idle
cores.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

WINDOW, TOGETHER = 256, 512  # bases of a window, and windows in a unit of scoring
BATCH, LENGTH = 32, 256


def write_fasta(path: Path, units: int, seed: int) -> None:
    """Records of one window each, in so many units."""
    draw = random.Random(seed)
    path.write_text(
        "".join(
            f">r{n}\n{''.join(draw.choices('ACGT', k=WINDOW))}\n" for n in range(units * TOGETHER)
        )
    )


class Scoring:
    """Scoring of FASTA files with two draws per window."""

    def __init__(self, folder: Path, units: int) -> None:
        self.units = units
        for name, size in (("half", units), ("all", 2 * units)):
            write_fasta(folder / f"{name}.fa", size, 0)

    def arguments(self, part: str) -> list[str]:
        """Of the command, for `half` or `all` of the work."""
        return [
            "dnadiff.score",
            "checkpoint=ecoli",
            f"input={part}.fa",
            "num_draws=2",
            f"window={WINDOW}",
            "accelerator=cpu",
        ]


class Sampling:
    """Sampling with 16 network calls per batch."""

    def __init__(self, folder: Path, units: int) -> None:
        self.batches = 2 * units

    def arguments(self, part: str) -> list[str]:
        number = BATCH * self.batches * {"half": 1, "all": 2}[part]
        size = [
            f"num_samples={number}",
            f"length={LENGTH}",
            f"batch_size={BATCH}",
            "sampler.num_groups=16",
            "accelerator=cpu",
        ]
        return ["dnadiff.sample", "checkpoint=ecoli", *size]


WORKLOADS = {"score": Scoring, "sample": Sampling}


def together(folder: Path, commands: Sequence[Sequence[str]]) -> float:
    """Seconds until processes that are started at once have all ended; raises CalledProcessError if
    one fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", *c], cwd=folder, env=environment, stdout=subprocess.DEVNULL
        )
        for c in commands
    ]
    for process, command in zip(running, commands):
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - start


def measure(folder: Path, name: str, units: int, repeats: int) -> dict:
    """The times of both ways."""
    work, suffix = WORKLOADS[name](folder, units), {"score": ".tsv", "sample": ".fa"}[name]
    unrelated, shards, merging = [], [], []
    for number in range(repeats):
        commands = [[*work.arguments("half"), f"output={number}{each}{suffix}"] for each in "ab"]
        unrelated.append(together(folder, commands))
        output = f"output={number}{suffix}"
        shards.append(
            together(folder, [[*work.arguments("all"), output, f"shard={i}/2"] for i in (1, 2)])
        )
        merging.append(together(folder, [["dnadiff.merge", output]]))
    row = {
        "command": name,
        "unrelated": statistics.median(unrelated),
        "shards": statistics.median(shards),
        "merge": statistics.median(merging),
    }
    return row | {
        "ratio": row["unrelated"] / row["shards"],
        "all": {"unrelated": unrelated, "shards": shards},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", nargs="+", choices=tuple(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument(
        "--units", type=int, default=3, help="units of work for each process (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    rows = []
    for name in args.command:
        with tempfile.TemporaryDirectory(prefix="shards-") as folder:
            rows.append(measure(Path(folder), name, args.units, args.repeats))
        row = rows[-1]
        print(
            f"{name}: two unrelated processes {row['unrelated']:.1f} s, two shards "
            f"{row['shards']:.1f} s, ratio {row['ratio']:.3f}; "
            f"merge {row['merge']:.1f} s",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
