"""What the studies of variants share: a model with the genome of its variants, pieces that hold for
these alone, and scores in files that resume."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as commands do, before torch is loaded
sys.path += [str(Path(__file__).parents[1])]
import study

import dnadiff
from dnadiff.data.base import run_data
from dnadiff.data.genome.genome import Genome
from dnadiff.data.splits import split_hash
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.genomics.held_out import fit_markov
from dnadiff.networks.kernels.facade import choose_threads
from dnadiff.options.command import compose, keep_freed_memory
from dnadiff.progress import configure_logging
from dnadiff.store.disk import atomic_write
from dnadiff.store.objects import build
from dnadiff.variants import variants
from dnadiff.weights.tensors import fingerprint

if TYPE_CHECKING:
    import argparse

    import pandas
    from torch import Tensor

    from dnadiff.data.base import SequenceDataModule
    from dnadiff.genomics.markov import BackoffMarkov
    from dnadiff.genomics.variants.methods import VariantMethod
    from dnadiff.model import Model

ECOLI = "bundled:ecoli_K12_MG1655.fa.gz"
_SHOWN = 16  # digits of a hash


class Variant(NamedTuple):
    """One row of a table of variants.

    Attributes:
        pos: position of the first base of REF, counted from 1.
    """

    chrom: str
    pos: int
    ref: str
    alt: str


class Subject:
    """A model and the genome whose variants it scores.

    Attributes:
        model: from `dnadiff.load`.
        genome: opened; its file is `path`.
    """

    def __init__(self, checkpoint: str | Path, path: str | Path) -> None:
        self.checkpoint = str(checkpoint)
        self.path = str(path)
        self.model, self.genome = dnadiff.load(self.checkpoint), Genome(self.path)

    @property
    def hashes(self) -> dict[str, str]:
        """What scores depend on: the weights and the bases."""
        return {
            "weights": fingerprint(self.model.denoiser)[:_SHOWN],
            "genome": self.genome.digest[:_SHOWN],
        }

    def kept(self, options: argparse.Namespace, folder: Path, **settings: object) -> study.Kept:
        """The pieces of a study in `folder`, or in `folder/quick`; one that was made with other
        weights, bases or settings is run again."""
        return study.Kept(
            folder / "quick" if options.quick else folder, {**self.hashes, **settings}, strict=True
        )

    @cached_property
    def data(self) -> SequenceDataModule:
        """The training data of the model, with its split."""
        data = run_data(self.model.config.get("data"), self.model.tokenizer, ())
        data.prepare()
        return data

    @property
    def split(self) -> str:
        """Identifies the division of the training data."""
        return split_hash(self.data.intervals, self.data.names)

    @cached_property
    def markov(self) -> dict[int, BackoffMarkov]:
        """Markov models of orders 6 and 12, fitted on the training part and tuned on the validation
        part of the network's own split."""
        return fit_markov(self.data, (6, 12))

    def part(self, name: str) -> tuple[str, int, int]:
        """Record, start and end of the longest interval of `train`, `valid` or `test`."""
        longest = max(self.data.intervals[name], key=lambda interval: interval.end - interval.start)
        return self.data.names[longest.record], longest.start, longest.end

    def scores(
        self,
        kept: study.Kept,
        name: str,
        rows: Sequence[Variant],
        *overrides: str,
        resume: bool = True,
    ) -> pandas.DataFrame:
        """The rows of `python -m dnadiff.variants` for some variants. A call that was interrupted
        resumes.

        The name of the file contains a hash of everything that the scores depend on.

        Args:
            resume: reuse a finished or unfinished file.

        Raises:
            ValueError: if a variant was skipped.
        """
        import pandas

        path = kept.folder / f"{name}-{digest(kept.settings, rows, overrides)}.tsv"
        write_table(path.with_suffix(".in.tsv"), rows)
        given = [
            f"checkpoint={self.checkpoint}",
            f"genome={self.path}",
            f"vcf={path.with_suffix('.in.tsv')}",
            f"output={path}",
            "resume=true" if resume else "overwrite=true",
        ]
        variants.start([*given, *overrides], kept.folder)
        found = pandas.read_csv(path, sep="\t", na_values=".")
        if len(found) != len(rows):
            raise ValueError(
                f"{path} has {len(found)} rows of {len(rows)}; remove the variants that are skipped"
            )
        return found


def configure_process() -> None:
    """What every command of the package does first."""
    configure_logging()
    keep_freed_memory()
    choose_threads()


def write_table(path: Path, rows: Sequence[Variant]) -> None:
    """A table that `vcf=` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, overwrite=True) as file:
        file.write(
            "".join("\t".join(map(str, row)) + "\n" for row in (Variant._fields, *rows)).encode()
        )


def all_snvs(genome: Genome, region: tuple[str, int, int]) -> list[Variant]:
    """Every SNV of (record, start, end) where the base is known."""
    record, low, high = region
    letters = DNATokenizer().decode(genome.window(record, low, high))
    return [
        Variant(record, low + i + 1, ref, alt)
        for i, ref in enumerate(letters)
        for alt in "ACGT"
        if ref != "N" and alt != ref
    ]


@contextmanager
def windows_read(model: Model) -> Iterator[list[int]]:
    """A list to which every call of a network of this kind adds the number of its windows."""
    kind = type(model.denoiser.backbone)
    counts = []
    inner = kind.features

    def features(self: object, ids: Tensor, *args: object, **kwargs: object) -> Tensor:
        counts.append(len(ids))
        return inner(self, ids, *args, **kwargs)

    kind.features = features
    try:
        yield counts
    finally:
        kind.features = inner


class VariantStudy(Protocol):
    """A study that `run` can run; `tables` names the pieces that its table reads."""

    pieces: Mapping[str, study.Piece]
    kept: study.Kept
    tables: Sequence[str]


def run(
    make: Callable[[], VariantStudy],
    options: argparse.Namespace,
    table: Callable[[Mapping[str, dict]], str],
) -> None:
    """Run the pieces of a study, as its options say, and print its table."""
    configure_process()
    made = make()
    study.work(made.pieces, made.kept, options, made.tables)
    if not options.list:
        print("\n" + table({name: made.kept[name] for name in made.tables if name in made.kept}))


def method(*overrides: str) -> VariantMethod:
    """A method of scoring variants as the command line names it, such as `variant_method=block`."""
    return build(
        compose("variants", ["checkpoint=x", "genome=x", *overrides])["variant_method"], trust=None
    )


def digest(*contents: object) -> str:
    """A hash of plain values."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True, default=str).encode()).hexdigest()[
        :_SHOWN
    ]


def file_digest(path: Path) -> str:
    """A hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_SHOWN]
