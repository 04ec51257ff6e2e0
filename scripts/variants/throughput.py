"""Throughput of `python -m dnadiff.variants` by method, compared with forward passes of the same
network; memory; kill and resume.

    python scripts/variants/throughput.py --checkpoint RUN [--genome FILE] [--output DIR] [--list]
    [--table] [--collect FILE]

For an idle machine. Each command is a process of its own that counts the windows that its network
reads, the time inside the network and its peak memory. The limit is the number of forward passes
per second with the same batch, each window masked at one site: the fastest of many calls, before
and after the commands. Rates leave out the start of a command: they begin with the first call of
the network after the warm-up.

speed: variants per second, and windows and bases per second, by method.
memory: peak memory with 1,000, 10,000 and 100,000 random SNVs in windows of 64 bases, and with
    1,000 in the training window.
resume: a run that was killed (SIGKILL) and resumed, compared byte by byte with one that was not.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path += [str(Path(__file__).parent)]
import scoring
import study
import torch
from methods import random_variants
from scoring import Variant

BATCH, NARROW = 32, 64
MASKED, BLOCK, WINDOW = "variant_method=masked", "variant_method=block", "variant_method=window"
# Name to kind of variants, number of them, settings.
FULL = {
    "speed": {
        "`masked`, SNVs": ("snvs", 2000, [MASKED]),
        "`masked`, all SNVs of a stretch": ("all", 3072, [MASKED]),
        "the same, `sites_per_window=8`": ("all", 6144, [MASKED, "sites_per_window=8"]),
        "`block`, SNVs": ("snvs", 24, [BLOCK]),
        "`block`, indels": ("indels", 12, [BLOCK]),
        "`window`, SNVs": ("snvs", 12, [WINDOW]),
    },
    "memory": [(1000, NARROW), (10_000, NARROW), (100_000, NARROW), (1000, None)],
    "resumed": 5000,
    "seconds": 8.0,
}
QUICK = {
    "speed": {
        "`masked`, SNVs": ("snvs", 40, [MASKED]),
        "`block`, indels": ("indels", 2, [BLOCK, "num_orders=2"]),
    },
    "memory": [(20, 16)],
    "resumed": 1500,
    "seconds": 0.1,
}
# Prints the windows of each call of the network, when it began and when it ended, and the peak
# memory.
_MEASURED = """
import importlib, json, sys, time
from dnadiff.training.memory import peak_memory
from dnadiff.variants import main
module, _, name = sys.argv.pop(1).rpartition(".")
kind = getattr(importlib.import_module(module), name)
inner, windows, times = kind.features, [], []
def features(self, ids, *args, **kwargs):
    start = time.perf_counter()
    result = inner(self, ids, *args, **kwargs)
    times.append((start, time.perf_counter()))
    windows.append(len(ids))
    return result
kind.features = features
main()
inside, whole = sum(end - start for start, end in times[1:]), times[-1][1] - times[0][1]
peak = peak_memory() / 2**20
print(json.dumps({"windows": sum(windows), "timed": sum(windows[1:]), "inside": inside, "whole": whole, "peak_mb": peak}))
"""


class Study:
    """The pieces of the study."""

    def __init__(self, options) -> None:
        self.size, self.subject = (
            QUICK if options.quick else FULL,
            scoring.Subject(options.checkpoint, options.genome),
        )
        self.kept = self.subject.kept(
            options, options.output, sizes=self.size, threads=torch.get_num_threads()
        )
        self.folder = self.kept.folder / "files"
        record, length = next(iter(self.subject.genome.lengths.items()))
        self.region = record, 0, length
        self.pieces = {"machine": self.machine}
        self.pieces |= {
            f"speed_{i + 1}": lambda name=name: self.speed(name)
            for i, name in enumerate(self.size["speed"])
        }
        self.pieces |= {
            f"memory_{number}{'' if window else '_whole'}": lambda n=number, w=window: self.memory(
                n, w
            )
            for number, window in self.size["memory"]
        }
        self.pieces["resume"] = self.resume
        self.tables = list(self.pieces)

    def machine(self) -> dict:
        """What the rates belong to."""
        backbone = self.subject.model.denoiser.backbone
        parameters = sum(p.numel() for p in backbone.parameters())
        about = {
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "torch": torch.__version__,
            "batch": BATCH,
        }
        return {
            **about,
            "parameters": parameters,
            "window": self.subject.model.length,
            "weights": self.subject.hashes["weights"],
        }

    def variants(self, kind: str, number: int) -> list[Variant]:
        """Random variants of the whole genome, or all SNVs of a stretch."""
        if kind != "all":
            return random_variants(self.subject.genome, self.region, number, kind == "indels")
        record, _, length = self.region
        stretch = record, length // 2, length // 2 + number // 3
        return scoring.all_snvs(self.subject.genome, stretch)

    def command(self, rows: list[Variant], name: str, *overrides: str) -> list[str]:
        """The arguments of a command that scores some variants."""
        self.folder.mkdir(parents=True, exist_ok=True)
        scoring.write_table(self.folder / f"{name}.in.tsv", rows)
        files = [
            f"vcf={self.folder / name}.in.tsv",
            f"output={self.folder / name}.tsv",
            f"hydra.run.dir={self.folder / 'run'}",
        ]
        shared = [
            f"checkpoint={self.subject.checkpoint}",
            f"genome={self.subject.path}",
            f"batch_size={BATCH}",
            "accelerator=cpu",
        ]
        return [*shared, *files, *overrides]

    def measured(self, arguments: list[str]) -> dict:
        """What a command counts."""
        kind = type(self.subject.model.denoiser.backbone)
        line = [
            sys.executable,
            "-c",
            _MEASURED,
            f"{kind.__module__}.{kind.__qualname__}",
            *arguments,
            "overwrite=true",
        ]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def speed(self, name: str) -> dict:
        """Rates of one method, and passes per second before and after."""
        kind, number, overrides = self.size["speed"][name]
        rows = self.variants(kind, number)
        limits = [self.passes_per_second()]
        found = self.measured(self.command(rows, "speed", *overrides))
        limits.append(self.passes_per_second())
        windows_per_second, window = found["timed"] / found["whole"], self.subject.model.length
        return {
            "name": name,
            "variants": len(rows),
            "windows": found["windows"],
            "variants_per_second": windows_per_second * len(rows) / found["windows"],
            "windows_per_second": windows_per_second,
            "bases_per_second": windows_per_second * window,
            "passes_per_second": max(limits),
            "of_the_limit": windows_per_second / max(limits),
            "in_the_network": found["inside"] / found["whole"],
        }

    def passes_per_second(self) -> float:
        """Forward passes (windows) per second, masked at one site each, of the fastest of several
        calls."""
        model = self.subject.model
        ids = torch.randint(7, 11, (BATCH, model.length))
        where = torch.zeros(ids.shape, dtype=torch.bool)
        where[:, model.length // 2] = True
        xt, t = (
            ids.masked_fill(where, model.process.vocab.mask_id),
            torch.full((BATCH,), 1 / model.length),
        )
        best, end = float("inf"), time.monotonic() + self.size["seconds"]
        with torch.no_grad():
            while time.monotonic() < end or best == float("inf"):
                start = time.perf_counter()
                model.denoiser.log_probs(xt, t, positions=where)
                best = min(best, time.perf_counter() - start)
        return BATCH / best

    def memory(self, number: int, window: int | None) -> dict:
        """Peak memory of the command."""
        found = self.measured(
            self.command(
                self.variants("snvs", number), "memory", *([f"window={window}"] if window else [])
            )
        )
        return {
            "variants": number,
            "window": window or self.subject.model.length,
            "peak_mb": found["peak_mb"],
            "seconds": found["whole"],
        }

    def resume(self) -> dict:
        """Kill a run after its first rows, resume it, and compare."""
        shutil.rmtree(self.folder, ignore_errors=True)
        rows = self.variants("snvs", self.size["resumed"])
        line = [
            sys.executable,
            "-m",
            "dnadiff.variants",
            *self.command(rows, "killed", f"window={NARROW}"),
            "resume=true",
        ]
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not any(
            path.stat().st_size for path in self.folder.glob("*killed.tsv*part*")
        ):
            time.sleep(0.01)
        process.kill()
        killed = process.wait()
        before = sum(
            path.read_bytes().count(b"\n") for path in self.folder.glob("*killed.tsv*part*")
        )
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        whole = self.command(rows, "whole", f"window={NARROW}")
        subprocess.run(
            [sys.executable, "-m", "dnadiff.variants", *whole],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        same = (self.folder / "killed.tsv").read_bytes() == (self.folder / "whole.tsv").read_bytes()
        return {
            "variants": len(rows),
            "status": killed,
            "lines_when_killed": before,
            "same_bytes": same,
        }


def table(rows: dict) -> str:
    """All tables, from the file that `--collect` writes."""
    speed = []
    for name, row in rows.items():
        if name.startswith("speed"):
            cells = [
                row["name"],
                f"{row['windows'] / row['variants']:.1f}",
                f"{row['variants_per_second']:,.2f}",
                f"{row['windows_per_second']:,.1f}",
            ]
            cells += [
                f"{row['bases_per_second']:,.0f}",
                f"{row['passes_per_second']:,.1f}",
                f"{row['of_the_limit']:.0%}",
                f"{row['in_the_network']:.1%}",
            ]
            speed.append(cells)
    header = [
        "method",
        "windows per variant",
        "variants/s",
        "windows/s",
        "bases/s",
        "limit, windows/s",
        "of the limit",
        "time in the network",
    ]
    memory = [
        [
            f"{row['variants']:,}",
            f"{row['window']:,}",
            f"{row['peak_mb']:.0f}",
            f"{row['seconds']:,.0f}",
        ]
        for name, row in rows.items()
        if name.startswith("memory")
    ]
    parts = [
        study.markdown(header, speed),
        study.markdown(["SNVs", "window", "peak memory, MB", "seconds"], memory),
    ]
    if "machine" in rows:
        row = rows["machine"]
        parts.insert(
            0,
            f"{row['threads']} threads, batch of {row['batch']}, windows of {row['window']:,} "
            f"bases, {row['parameters']:,} parameters.",
        )
    return "\n\n".join([*parts, *resumed(rows)])


def resumed(rows: dict) -> list[str]:
    """What `resume` found, in a sentence."""
    if "resume" not in rows:
        return []
    row = rows["resume"]
    same = "the same bytes as" if row["same_bytes"] else "other bytes than"
    return [
        f"{row['variants']:,} SNVs, killed after {row['lines_when_killed']:,} lines and resumed: "
        f"{same} a run that was not killed."
    ]


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/variants/throughput")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--genome", default=scoring.ECOLI)
    options = parser.parse_args()
    scoring.run(lambda: Study(options), options, table)


if __name__ == "__main__":
    main()
