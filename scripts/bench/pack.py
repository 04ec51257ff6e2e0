"""Time to pack a synthetic genome: wall time, peak memory, and time to open it again.

    python scripts/bench/pack.py [--bases 3.1e9] [--gzip] [--folder FOLDER] [--json FILE]

The file repeats a random sequence (with soft-masked runs and runs of N) in 24 records, wrapped at
50 bases; with --gzip it repeats one compressed member. It needs twice its size on the disk of
--folder and is removed at the end.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

RECORDS = 24
MEASURED = """
import json, sys, time
from dnadiff.data.genome.genome import Genome
from dnadiff.training.memory import peak_memory
start, work = time.perf_counter(), time.process_time()
genome = Genome.open(sys.argv[1])
seconds, work = time.perf_counter() - start, time.process_time() - work
peak = peak_memory() >> 10
start = time.perf_counter()
Genome.open(sys.argv[1])
print(json.dumps({"seconds": seconds, "work": work, "peak": peak, "again": time.perf_counter() - start, "total": genome.total}))
"""  # runs in a separate process to measure its peak memory
STRETCH = 32_000_000
WIDTH = 50


def stretch() -> bytes:
    """Wrapped random sequence, half of it soft-masked, a fiftieth of it N."""
    draw = np.random.default_rng(0)
    letters = np.frombuffer(b"ACGT", np.uint8)[draw.integers(0, 4, STRETCH)].copy()
    for start in draw.integers(0, STRETCH, STRETCH // 3000).tolist():
        letters[start : start + 1500] |= 0x20
    for start in draw.integers(0, STRETCH, 64).tolist():
        letters[start : start + 10_000] = ord("N")
    lines = np.full((STRETCH // WIDTH, WIDTH + 1), ord("\n"), np.uint8)
    lines[:, :WIDTH] = letters.reshape(-1, WIDTH)
    return lines.tobytes()


def member(content: bytes, compressed: bool) -> bytes:
    if not compressed:
        return content
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(content) + packer.flush()


def make(path: Path, bases: int, compressed: bool) -> int:
    """Write the genome and return its number of bases."""
    body = member(stretch(), compressed)
    each = max(1, round(bases / RECORDS / STRETCH))
    with path.open("wb") as file:
        for number in range(1, RECORDS + 1):
            file.write(member(f">chr{number}\n".encode(), compressed))
            for _ in range(each):
                file.write(body)
    return RECORDS * each * STRETCH


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bases", type=float, default=3.1e9, help="size of the genome (default: %(default)s)"
    )
    parser.add_argument("--gzip", action="store_true", help="a compressed file")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the temporary files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows of name, value, unit")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / ("made.fa.gz" if args.gzip else "made.fa")
        bases = make(path, int(args.bases), args.gzip)
        size = path.stat().st_size
        time.sleep(
            2.5
        )  # a file younger than two seconds is read again, because it might still change
        command = [sys.executable, "-c", MEASURED, str(path)]
        env = os.environ | {"DNADIFF_CACHE": str(Path(folder) / "cache")}
        found = json.loads(
            subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout
        )
        assert found["total"] == bases
        rows = [
            ("bases", bases / 1e9, "Gb"),
            ("file", size / 1e9, "GB"),
            ("packing", found["seconds"], "s"),
            ("processor time", found["work"], "s"),
            ("rate", bases / found["seconds"] / 1e6, "Mb/s"),
            (
                "peak memory of the process",
                found["peak"] / (1 << 20 if sys.platform == "darwin" else 1 << 10),
                "MB",
            ),
            ("opening it again", found["again"] * 1e3, "ms"),
        ]
    for name, value, unit in rows:
        print(f"{name:28} {value:10.2f} {unit}")
    if args.json:
        args.json.write_text(
            json.dumps([{"name": n, "value": v, "unit": u} for n, v, u in rows], indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
