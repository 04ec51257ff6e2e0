"""Windows per second from real genomes in one process, compared with pyfaidx.

    python scripts/bench/loader.py [--data FOLDER] [--quick] [--step] [--json FILE]

For each genome and window length, windows per second of

- pyfaidx and a Python dictionary, letter by letter (what most published loaders do);
- pyfaidx and a NumPy table;
- the bare slice of the packed, memory-mapped array, as bytes;
- the complete loader: start by (seed, epoch, index) among starts with few N, other strand for half,
  ids, weights, one tensor per batch.

pyfaidx reads an uncompressed, indexed FASTA file. All read the same random starts, spread over the
complete genome. Times are medians of many calls. The limit is the rate at which this machine reads
a large array from memory, in order, into a buffer that stays in the processor's cache, as a batch
does; it is the best of several repeats. A genome that fits into the cache itself (E. coli and yeast
into 32 MB, chr20 does not) is read faster than that. --step times a training step (Caduceus,
d_model 128, 1,024 bases) and a batch for it.
"""

import argparse
import gzip
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path

import numpy as np

GENOMES = {
    "E. coli": "genomes/ecoli_K12_MG1655.fa.gz",
    "yeast": "genomes/scerevisiae_R64-1-1.fa.gz",
    "chr20": "genomes/GRCh37_chr20.fa.gz",
}
LENGTHS = {1024: 128, 131072: 8}  # window length: windows in a batch
ID = dict(zip("ACGTN", range(7, 12)))


def calls(f: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each of at least three calls, and of as many as fit into `seconds`, after a
    warm-up."""
    times = []
    for limit in (seconds / 4, seconds):
        times.clear()
        begin = time.perf_counter()
        while len(times) < 3 or time.perf_counter() - begin < limit:
            start = time.perf_counter()
            f()
            times.append(time.perf_counter() - start)
    return times


def median(f: Callable[[], object], seconds: float) -> float:
    """Median seconds of a call."""
    return float(np.median(calls(f, seconds)))


def memory_rates(seconds: float) -> tuple[float, float]:
    """Bytes per second read from memory into the cache, and of a copy in memory (read plus
    written); the best of several."""
    x, y = (
        np.ones((2048, 1 << 17), np.uint8),
        np.ones((2048, 1 << 17), np.uint8),
    )  # untouched zeros would share one page, which is in the cache

    def into_cache() -> None:
        for row in x:
            np.copyto(y[0], row)

    return x.nbytes / min(calls(into_cache, seconds)), 2 * x.nbytes / min(
        calls(lambda: np.copyto(y, x), seconds)
    )


def ways(fasta: Path, length: int, batch_size: int) -> dict[str, tuple[Callable[[], object], int]]:
    """For each name the function to time, and the number of windows that it gives."""
    import pyfaidx

    from dnadiff.data.genome.genome import Genome
    from dnadiff.data.splits import Interval
    from dnadiff.data.windows import UniformWindows

    genome = Genome.open(fasta)
    intervals = [Interval(number, 0, n) for number, n in enumerate(genome.lengths.values())]
    windows = UniformWindows(
        genome.records,
        intervals,
        length,
        1 << 30,
        genome.tokenizer.vocab,
        0,
        True,
        genome.n_runs,
        0.1,
    )
    reader, names = pyfaidx.Fasta(str(fasta)), genome.names
    table = np.full(256, 11, np.uint8)
    table[np.frombuffer(b"ACGTacgt", np.uint8)] = [7, 8, 9, 10] * 2
    turn = iter(range(1 << 40))
    ahead = [
        windows.places(1, np.arange(first, first + batch_size))[:2]
        for first in range(0, 512 * batch_size, batch_size)
    ]
    places = [list(zip(record.tolist(), start.tolist())) for record, start in ahead]

    def letters(record: int, start: int) -> str:
        return reader[names[record]][start : start + length].seq

    def slow(convert: Callable[[str], object]) -> list[object]:
        return [convert(letters(*place)) for place in places[next(turn) % len(places)]]

    def by_table(text: str) -> np.ndarray:
        return table[np.frombuffer(text.encode(), np.uint8)]

    for place, row in zip(places[0], windows._cut.raw(*ahead[0])):
        assert np.array_equal(by_table(letters(*place)), row & 127)
    return {
        "pyfaidx + Python map": (
            lambda: slow(lambda text: [ID.get(c, 11) for c in text.upper()]),
            batch_size,
        ),
        "pyfaidx + NumPy table": (lambda: slow(by_table), batch_size),
        "bare cut": (lambda: windows._cut.raw(*ahead[next(turn) % len(ahead)]), batch_size),
        "ours complete": (
            lambda: windows.batch(0, next(turn) * batch_size, batch_size),
            batch_size,
        ),
    }


def training_step(fasta: Path, batch_size: int, seconds: float) -> tuple[float, float]:
    """Seconds of a training step and of a batch."""
    import torch

    from dnadiff.config import build
    from dnadiff.draws import Draws
    from dnadiff.options.command import compose
    from dnadiff.training.run import assemble

    overrides = [
        f"data.path={fasta}",
        "data.length=1024",
        f"data.batch_size={batch_size}",
        "backbone.d_model=128",
        "trainer.accelerator=cpu",
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = compose("train", ["data=fasta", *overrides])
        data = build(config["data"], trust=None)
        _, module = assemble(config, Path(folder), data)
        batches = chain.from_iterable(repeat(data.train_dataloader()))  # epoch after epoch
        batch = next(batches)
        optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
        objective = module.objective

        def step() -> None:
            optimizer.zero_grad()
            module.loss(batch, objective, Draws.for_batch(0, batch_size)).loss.backward()
            optimizer.step()

        return median(step, seconds), median(lambda: next(batches), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data"),
        help="folder with genomes/ (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="only E. coli, a few repeats")
    parser.add_argument("--step", action="store_true", help="also time a training step")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write rows of name, value, unit, ratio and the reference of the ratio",
    )
    args = parser.parse_args()
    seconds = 0.1 if args.quick else 1.0
    rate, copied = memory_rates(seconds)
    print(
        f"memory is read at {rate / 1e9:.1f} GB/s; a copy in memory moves {copied / 1e9:.1f} GB/s "
        "(read + write)\n"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, file in list(GENOMES.items())[: 1 if args.quick else None]:
            fasta = Path(folder) / f"{Path(file).name.removesuffix('.gz')}"
            with gzip.open(args.data / file) as packed, fasta.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            for length, batch_size in LENGTHS.items():
                base = None
                for way, (f, count) in ways(fasta, length, batch_size).items():
                    took = median(f, seconds) / count
                    base = took if way == "pyfaidx + NumPy table" else base
                    ratio = base / took if base else None
                    limit = rate / length
                    row = {
                        "name": f"{name} L {length} {way}",
                        "value": 1 / took,
                        "unit": "windows/s",
                        "ratio": ratio,
                        "to": "pyfaidx + NumPy table",
                    }
                    rows.append(row | {"gigabases_per_second": length / took / 1e9, "limit": limit})
                    shown = f"{ratio:8.1f} x pyfaidx + table" if ratio else " " * 26
                    print(
                        f"{row['name']:40} {1 / took:14,.0f} windows/s {length / took / 1e9:8.3f} "
                        f"Gbase/s {shown}   limit {limit:14,.0f} windows/s"
                    )
            print()
        if args.step:
            step, batch = training_step(fasta, 16, 4 * seconds)
            rows.append(
                {
                    "name": "training step d_model 128 L 1024 B 16",
                    "value": step * 1e3,
                    "unit": "ms",
                    "ratio": None,
                    "to": "",
                }
            )
            rows.append(
                {
                    "name": "its batch",
                    "value": batch * 1e3,
                    "unit": "ms",
                    "ratio": batch / step,
                    "to": "of the step",
                }
            )
            print(
                f"training step (d_model 128, L 1024, batch 16) {step * 1e3:.1f} ms; its batch "
                f"{batch * 1e3:.3f} ms, {100 * batch / step:.3f} % of it"
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
