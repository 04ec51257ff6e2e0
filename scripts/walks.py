"""Count the files of the package that three walks go through: `python scripts/walks.py [--list]`.

- data: the first batch of `GenomeDataModule` on a FASTA file
- variants: `Model.variants` with one SNV
- finetune: the command `finetune` on a CSV file, with everything that it imports

A file counts if a function of it runs, in any thread; what runs while a module is imported counts
only for `finetune`. The first two walks are counted the second time they are made, without workers,
so that imports and caches are not part of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import runpy
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

LIMITS = {"data": 18, "variants": 28, "finetune": 90}
ROOT = Path(__file__).resolve().parents[1]


class Files:
    """The files of the package whose code runs while this context is entered."""

    def __init__(self, with_modules: bool) -> None:
        self.with_modules = with_modules
        self.found = set()
        self.package = f"{ROOT / 'dnadiff'}{os.sep}"

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        counts = self.with_modules or code.co_name != "<module>"
        if event == "call" and counts and code.co_filename.startswith(self.package):
            self.found.add(code.co_filename.removeprefix(self.package))

    def __enter__(self) -> Files:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def sequence(length: int, seed: int = 3) -> str:
    """Random bases."""
    return "".join(random.Random(seed).choices("ACGT", k=length))


def batches(folder: Path) -> Callable[[], object]:
    """The first batch of training windows of a FASTA file; each call reads a file of its own."""
    from dnadiff.data.genome.datamodule import GenomeDataModule

    calls = iter(range(2))

    def first() -> object:
        call = next(calls)
        path = folder / f"{call}.fa"
        path.write_text(f">chr1\n{sequence(6000, call)}\n>chr2\n{sequence(5000, call + 2)}\n")
        data = GenomeDataModule(path=str(path), length=64, batch_size=4, num_workers=0)
        return next(iter(data.train_dataloader()))

    return first


def variants(folder: Path) -> Callable[[], object]:
    """The effect of one SNV under a bundled model."""
    import dnadiff

    genome = folder / "g.fa"
    genome.write_text(f">chr1\n{sequence(3000)}\n")
    model = dnadiff.load("ecoli")
    base = sequence(3000)[1499]
    alternative = "ACGT"["CGTA".index(base)]
    return lambda: model.variants([("chr1", 1500, base, alternative)], genome=str(genome))


def finetune(folder: Path) -> Callable[[], object]:
    """The command on 60 sequences of two classes."""
    rows = [f"{sequence(60, n)},{n % 2}" for n in range(60)]
    (folder / "t.csv").write_text("\n".join(["sequence,label", *rows]))
    arguments = [
        *("dnadiff.finetune", "checkpoint=ecoli", "task=csv", f"task.path={folder / 't.csv'}"),
        *("epochs=1", "scratch=false", "baselines=none", "seeds=1", "accelerator=cpu"),
        f"hydra.run.dir={folder / 'run'}",
    ]

    def run() -> None:
        sys.argv = arguments
        with contextlib.suppress(SystemExit):
            runpy.run_module("dnadiff.finetune", run_name="__main__", alter_sys=True)

    return run


def count(name: str) -> list[str]:
    """The files of a walk."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "data":  # the others would compile the kernels again
            os.environ["DNADIFF_CACHE"] = folder
        if name == "finetune":  # imports are part of it: `runpy` loads the module itself
            walk = finetune(Path(folder))
        else:
            walk = {"data": batches, "variants": variants}[name](Path(folder))
            walk()
        with Files(with_modules=name == "finetune") as files:
            walk()
    return sorted(files.found)


def main() -> None:
    """Count in one process for each walk, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walks", nargs="*", help=f"of {', '.join(LIMITS)}; all without any")
    parser.add_argument("--list", action="store_true", help="the names of the files")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    print("| walk | files | limit |\n|---|---|---|")
    over = []
    for name in options.walks or LIMITS:
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                found = count(name)
            with open(writing, "w") as pipe:
                pipe.write("\n".join(found))
            os._exit(0)
        os.close(writing)
        with open(reading) as pipe:
            found = pipe.read().splitlines()
        os.waitpid(child, 0)
        print(f"| {name} | {len(found)} | {LIMITS[name]} |", flush=True)
        over += [name] * (len(found) > LIMITS[name])
        if options.list:
            print("\n".join(f"  {path}" for path in found))
    if over:
        raise SystemExit(f"over their limits: {', '.join(over)}")


if __name__ == "__main__":
    main()
