"""Variants per second of `python -m dnadiff.variants` and the limit: forward passes per second of the same network, and memory.

    python scripts/variants/throughput.py --checkpoint RUN [--genome FILE] [--variants N] [--batch-size N] [--json FILE]

SNVs at random places, both strands, one site per window: two forward passes per variant. The run is a process of its own; its peak memory is
reported for N / 10 and for N variants, which shows whether memory grows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer

_MEASURED = """
import resource, sys
from dnadiff.variants import main
main()
print("peak_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def write_snvs(path: Path, genome: Genome, number: int) -> None:
    """A VCF file of random SNVs of the first record."""
    record, length = next(iter(genome.lengths.items()))
    draw = np.random.default_rng(0)
    places = np.sort(draw.integers(0, length, number))
    with path.open("w") as file:
        file.write(f"##fileformat=VCFv4.2\n##contig=<ID={record},length={length}>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n")
        for place in places.tolist():
            ref = DNATokenizer().decode(genome.window(record, place, place + 1))
            if ref != "N":
                file.write(f"{record}\t{place + 1}\t.\t{ref}\t{'ACGT'[('ACGT'.index(ref) + 1) % 4]}\t.\t.\t.\n")


def passes_per_second(checkpoint: str, batch_size: int, seconds: float) -> float:
    """Forward passes (windows) per second, masked at one site each, of the fastest of several calls."""
    model = dnadiff.load(checkpoint, "cpu")
    ids = torch.randint(7, 11, (batch_size, model.length))
    where = torch.zeros(ids.shape, dtype=torch.bool)
    where[:, model.length // 2] = True
    xt, t = ids.masked_fill(where, model.process.vocab.mask_id), torch.full((batch_size,), 1 / model.length)
    best, end = float("inf"), time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end or best == float("inf"):
            start = time.perf_counter()
            model.denoiser.log_probs(xt, t, positions=where)
            best = min(best, time.perf_counter() - start)
    return batch_size / best


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--genome", default="bundled:ecoli_K12_MG1655.fa.gz")
    parser.add_argument("--variants", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the measurement of forward passes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    genome, found = (
        Genome.open(options.genome),
        {"passes_per_second": passes_per_second(options.checkpoint, options.batch_size, options.seconds)},
    )
    with tempfile.TemporaryDirectory() as folder:
        for number in (max(options.variants // 10, 1), options.variants):
            write_snvs(Path(folder) / "x.vcf", genome, number)
            arguments = (f"checkpoint={Path(options.checkpoint).absolute()}", f"vcf={folder}/x.vcf", f"output={folder}/y{number}.tsv")
            given = options.genome if options.genome.startswith("bundled:") else Path(options.genome).absolute()
            more = (f"genome={given}", f"batch_size={options.batch_size}", "accelerator=cpu", f"hydra.run.dir={folder}/run")
            done = subprocess.run([sys.executable, "-c", _MEASURED, *arguments, *more], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            rows = {line.rpartition(" ")[0].strip(): line.rpartition(" ")[2] for line in done.stdout.splitlines()}
            rate = float(rows["variants/s"].replace(",", ""))
            found |= {f"variants_per_second_{number}": rate, f"peak_mb_{number}": float(rows["peak_mb"])}
    found["of_the_limit"] = 2 * found[f"variants_per_second_{options.variants}"] / found["passes_per_second"]
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
