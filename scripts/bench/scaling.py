"""Time and memory of large genomes, of many genomes, and of many small records: packing, opening,
splitting, and cutting windows.

    python scripts/bench/scaling.py --json scaling.json [--folder FOLDER] [--genomes 3.1e8,3.1e9]
    [--twobit 2e10] [--corpora 100x4e6,10000x1e5]
        [--records 1e6]

Each case is made (random sequence, no compression), packed by one process, and opened and read by
another, which measures itself; then its files are removed. Results are written after every case,
and a case that is in the JSON file already is not run again. A case that needs more than the free
disk is left out. Times are of the processor (`cpu`) and of the clock (`wall`); memory is what is
resident and not mapped from a file (`anonymous`), without what the imports take.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CHILD = """
import json, sys, time
from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.genome.genome import Genome
import torch

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024

found, start = {}, anonymous()
def step(name, work):
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    found[name] = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, "anonymous_mb": anonymous() - start}
    return result

path, what = sys.argv[1], sys.argv[2]
if what == "pack":
    step("pack", lambda: Genome.open(path))
else:
    data = GenomeDataModule(path, length=1024, batch_size=64, augment_rc=True)
    genome = step("open", data.open)
    found["bases"], found["records"] = genome.total, len(genome.names)
    del genome
    step("prepare", data.prepare)  # opens it again, divides it, and finds all windows
    windows = data.train_windows()
    windows.batch(0, 0, 64)
    step("100 batches of 64 x 1024", lambda: [windows.batch(0, 64 * number, 64) for number in range(100)])
print(json.dumps(found))
"""
STRETCH = 16_000_000
WIDTH = 80


def letters(count: int, seed: int = 0) -> np.ndarray:
    return np.frombuffer(b"ACGT", np.uint8)[
        np.random.default_rng(seed).integers(0, 4, count, dtype=np.uint8)
    ]


def wrapped(sequence: np.ndarray) -> bytes:
    lines = np.full((len(sequence) // WIDTH, WIDTH + 1), ord("\n"), np.uint8)
    lines[:, :WIDTH] = sequence[: len(lines) * WIDTH].reshape(-1, WIDTH)
    return lines.tobytes()


def make_genome(folder: Path, bases: int) -> Path:
    """Twenty-one chromosomes of one random stretch that is repeated."""
    path, body = folder / "genome.fa", wrapped(letters(STRETCH))
    with path.open("wb") as file:
        for number in range(21):
            file.write(b">chr%d\n" % number)
            left = bases // 21
            while left > 0:
                file.write(body if left >= STRETCH else body[: left // WIDTH * (WIDTH + 1)])
                left -= STRETCH
    return path


def make_twobit(folder: Path, bases: int) -> Path:
    """The same as a 2bit file with 64-bit offsets, a quarter of the size."""
    path, names, size = (
        folder / "genome.2bit",
        [b"chr%d" % number for number in range(21)],
        bases // 21 // 4,
    )  # bytes of a chromosome
    body, first = (
        np.random.default_rng(0).bytes(STRETCH // 4),
        16 + sum(9 + len(name) for name in names),
    )
    with path.open("wb") as file:
        file.write(struct.pack("<4I", 0x1A412743, 1, len(names), 0))
        for number, name in enumerate(names):
            file.write(bytes([len(name)]) + name + struct.pack("<Q", first + number * (16 + size)))
        for _ in names:
            file.write(struct.pack("<4I", 4 * size, 0, 0, 0))
            for start in range(0, size, len(body)):
                file.write(body[: size - start])
    return path


def make_corpus(folder: Path, count: int, bases: int) -> Path:
    """Genomes of one chromosome and some contigs, each different, and their manifest."""
    body, draw = letters(STRETCH), np.random.default_rng(1)
    (folder / "genomes").mkdir()
    with (folder / "manifest.tsv").open("w") as manifest:
        manifest.write("path\tlabel\tweight\n")
        for number in range(count):
            size = int(bases * draw.uniform(0.5, 1.5))
            with (folder / "genomes" / f"g{number}.fa").open("wb") as file:
                for record, share in enumerate((0.9, 0.05, 0.03, 0.02)):
                    start = int(draw.integers(0, STRETCH - int(share * size) - 1))
                    file.write(
                        b">contig_%d\n%s"
                        % (record, wrapped(body[start : start + max(WIDTH, int(share * size))]))
                    )
            manifest.write(f"genomes/g{number}.fa\tgenus{number % 20}\t{1 + number % 3}\n")
    return folder / "manifest.tsv"


def make_records(folder: Path, count: int) -> Path:
    """Contigs of 300 to 2,000 bases."""
    path, body, draw = folder / "contigs.fa", letters(STRETCH).tobytes(), np.random.default_rng(2)
    sizes, starts = (
        draw.integers(300, 2001, count).tolist(),
        draw.integers(0, STRETCH - 2000, count).tolist(),
    )
    with path.open("wb") as file:
        for number, (size, start) in enumerate(zip(sizes, starts)):
            file.write(b">contig_%d flag=1\n%s\n" % (number, body[start : start + size]))
    return path


def cases(options: argparse.Namespace) -> Iterator[tuple[str, int, object]]:
    """Name, bytes of the sequence, and the function that makes it."""
    for bases in options.genomes:
        yield (
            f"genome of {bases / 1e9:g} Gb",
            int(bases),
            lambda folder, n=int(bases): make_genome(folder, n),
        )
    for bases in options.twobit:
        yield (
            f"genome of {bases / 1e9:g} Gb, 2bit",
            int(bases),
            lambda folder, n=int(bases): make_twobit(folder, n),
        )
    for count, bases in options.corpora:
        name = f"{count:,} genomes of {bases / 1e6:g} Mb"
        yield (
            name,
            int(count * bases),
            lambda folder, n=count, b=int(bases): make_corpus(folder, n, b),
        )
    for count in options.records:
        yield (
            f"{int(count):,} records of 300-2,000 bases",
            int(1150 * count),
            lambda folder, n=int(count): make_records(folder, n),
        )


def measure(make: object, folder: Path) -> dict[str, object]:
    path = make(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    time.sleep(2.5)  # a file younger than two seconds is read again, because it might still change
    found: dict[str, object] = {"file_gb": size / 1e9}
    for what in ("pack", "read"):
        command = [sys.executable, "-c", CHILD, str(path), what]
        reply = subprocess.run(
            command,
            env=os.environ | {"DNADIFF_CACHE": str(folder / "cache")},
            stdout=subprocess.PIPE,
            check=True,
        )
        found |= json.loads(reply.stdout)
    return found


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",") if each]


def pairs(text: str) -> list[tuple[int, float]]:
    return [
        (int(float(count)), float(bases))
        for count, _, bases in (each.partition("x") for each in text.split(",") if each)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="results; those in it are kept"
    )
    parser.add_argument("--folder", type=Path, default=None, help="folder for the temporary files")
    parser.add_argument("--genomes", type=numbers, default=[3.1e8, 3.1e9], metavar="BASES,...")
    parser.add_argument("--twobit", type=numbers, default=[], metavar="BASES,...")
    parser.add_argument(
        "--corpora",
        type=pairs,
        default=[(100, 4e6), (1000, 1e5), (10_000, 1e5)],
        metavar="FILESxBASES,...",
    )
    parser.add_argument("--records", type=numbers, default=[1e5, 1e6], metavar="COUNT,...")
    options = parser.parse_args()
    results = json.loads(options.json.read_text(encoding="utf-8")) if options.json.is_file() else {}
    for name, size, make in cases(options):
        if name in results:
            continue
        free = shutil.disk_usage(options.folder or tempfile.gettempdir()).free
        if 2.1 * size > free - 5e9:
            print(
                f"{name}: left out, it needs {2.1 * size / 1e9:.0f} GB and {free / 1e9:.0f} are "
                "free"
            )
            continue
        with tempfile.TemporaryDirectory(
            dir=options.folder
        ) as folder:  # of many files, whose removal takes minutes
            results[name] = measure(make, Path(folder))
            print(name, json.dumps(results[name]), flush=True)
            part = options.json.with_suffix(".part")
            part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            part.replace(options.json)


if __name__ == "__main__":
    main()
