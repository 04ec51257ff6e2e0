"""Programs that align sequences to a target: LAST, minimap2, and minimap2's Python package mappy.

The default options find homologs of 60 to 100 % identity.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from dnadiff.formats.alignments import Block, Maf, Paf, texts_of_cs
from dnadiff.formats.sequences import iter_sequences

_SMALL = 1_000_000  # bases of a target for which LAST has denser seeds
_INSTALL = (
    "install LAST (Debian: apt install last-align; conda: last), minimap2 (apt install minimap2) "
    "or mappy (pip install -e '.[align]' in the checkout)"
)


@dataclass
class Engine:
    """A program that aligns; ValueError if it is not installed. The base class is no program, for
    files that are aligned already."""

    name: ClassVar[str] = "none"

    def version(self) -> str:
        """The version of the program."""
        return ""

    def prepare(self, target: Path, lengths: Mapping[str, int]) -> None:
        """Index a FASTA file of the target, next to it, for all queries."""
        raise ValueError(f"no program that aligns genomes is installed; {_INSTALL}")

    def blocks(self, query: Path) -> Iterator[Block]:
        """The alignments of a FASTA file; what the program writes is next to it."""
        return iter(())


class Program(Engine):
    """An executable."""

    executables: ClassVar[Sequence[str]]

    def __post_init__(self) -> None:
        if missing := [name for name in self.executables if shutil.which(name) is None]:
            raise ValueError(f"engine={self.name}: {missing[0]} is not installed; {_INSTALL}")

    def version(self) -> str:
        with TemporaryDirectory() as folder:
            output = self.run(Path(folder) / "version", self.executables[0], "--version")
            return Path(output).read_text().split()[-1]

    def run(self, output: Path, *command: str | Path) -> str:
        """Write what a command prints to a file."""
        with output.open("wb") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise ValueError(
                f"engine={self.name}: {command[0]} ended with status {done.returncode} "
                f"({message}); check its installation and engine.options, and whether memory or "
                "disk were full"
            )
        return str(output)


@dataclass
class Last(Program):
    """LAST (Kielbasa et al. 2011, doi:10.1101/gr.113985.110).

    Args:
        options: of lastal.
        seeds: of lastdb; None is RY8, and RY4 for a target of less than a million bases.
    """

    name = "last"
    executables = ("lastal", "lastdb")

    options: Sequence[str] = ("-m20", "-pHOXD70", "-e2500")
    seeds: str | None = None

    def prepare(self, target: Path, lengths: Mapping[str, int]) -> None:
        self.target = target
        self.lengths = lengths
        seeds = self.seeds or ("RY4" if sum(lengths.values()) < _SMALL else "RY8")
        self.run(target.with_suffix(".out"), "lastdb", f"-u{seeds}", target, target)

    def blocks(self, query: Path) -> Iterator[Block]:
        found = self.run(query.with_suffix(".maf"), "lastal", *self.options, self.target, query)
        return Maf.blocks(found, self.lengths)


@dataclass
class Minimap2(Program):
    """Minimap2 (Li 2018, doi:10.1093/bioinformatics/bty191)."""

    name = "minimap2"
    executables = ("minimap2",)

    options: Sequence[str] = ("-k13", "-w5", "-A2", "-B3", "-O5", "-E2", "-s60", "-t1")

    def prepare(self, target: Path, lengths: Mapping[str, int]) -> None:
        self.target = target
        self.lengths = lengths

    def blocks(self, query: Path) -> Iterator[Block]:
        options = "-c", "--cs", *self.options
        found = query.with_suffix(".paf")
        path = self.run(found, "minimap2", *options, self.target, query)
        # a file without rows is no PAF
        return Paf.blocks(path, self.lengths) if found.stat().st_size else iter(())


@dataclass
class Mappy(Engine):
    """Minimap2 in Python; the arguments are those of `mappy.Aligner`."""

    name = "mappy"

    k: int = 13
    w: int = 5
    scoring: Sequence[int] = (2, 3, 5, 2)
    min_dp_score: int = 60

    def __post_init__(self) -> None:
        try:
            import mappy
        except ImportError:
            raise ValueError(f"engine=mappy: mappy is not installed; {_INSTALL}") from None
        self.library = mappy

    def version(self) -> str:
        return self.library.__version__

    def prepare(self, target: Path, lengths: Mapping[str, int]) -> None:
        self.aligner = self.library.Aligner(str(target), **asdict(self))

    def blocks(self, query: Path) -> Iterator[Block]:
        for record in iter_sequences(query):
            size = len(record.sequence)
            for hit in self.aligner.map(record.sequence.decode(), cs=True):
                texts = texts_of_cs(hit.cs)
                reverse = hit.strand < 0
                score = 5 * hit.mlen - 3 * hit.blen  # its own is not in a hit
                start = size - hit.q_en if reverse else hit.q_st
                yield Block(hit.ctg, hit.r_st, *texts, score, record.name, size, start, reverse)


def installed() -> Engine:
    """The first engine that is installed: LAST, which covers most, minimap2 or mappy."""
    for kind in (Last, Minimap2, Mappy):
        with suppress(ValueError):
            return kind()
    return Engine()
