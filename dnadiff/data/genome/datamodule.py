"""Data modules for DNA: what all of them share, and the one for genomes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from dnadiff.data.base import SequenceDataModule
from dnadiff.data.genome.genome import Genome, SequencePath, Source, expand, paths_of
from dnadiff.data.intervals import Interval, NRuns
from dnadiff.data.records import SOFT_MASKED, Records
from dnadiff.data.splits import Leak, Parts, subtract
from dnadiff.data.tokenizer import DNATokenizer, Tokenizer
from dnadiff.data.windows import (
    IntervalWindows,
    Labels,
    RandomWindows,
    TiledWindows,
    UniformWindows,
    WeightedWindows,
)
from dnadiff.fields import Fraction, Json, checked
from dnadiff.formats.regions import read_bed
from dnadiff.store.remote import Download

log = logging.getLogger("dnadiff")


@checked
@dataclass(eq=False, repr=False)
class DNADataModule(SequenceDataModule):
    """Base class of the data modules for DNA.

    Args:
        path: what `Genome.open` takes: a FASTA, 2bit or GenBank file, an address, a folder, a
            pattern, a manifest, several of them, `{label: path}`, a pyfaidx.Fasta.
        stranded: the sequences have a direction (promoters, transcripts), so that the strands are
            not interchangeable.
        augment_rc: replace half of the training windows by their reverse complement; None: unless
            `stranded`.
        keep: names of the records to use, or a regular expression that matches complete names;
            None: all.
        iupac: `unknown` reads ambiguity codes as N, `refuse` raises an error.
        label_dropout: fraction of training windows without labels, so that the model also learns
            the unconditional distribution.

    The other arguments are those of `SequenceDataModule`.
    """

    n_policy: ClassVar[str] = "N is seen but never masked, generated or counted"
    opens_genome: ClassVar[bool] = True

    path: SequencePath | None
    stranded: bool = False
    keep: str | Sequence[str | int] | None = None
    iupac: Literal["unknown", "refuse"] = "unknown"
    label_dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augment_rc = not self.stranded if self.augment_rc is None else self.augment_rc
        self._labels: Labels | None = None

    @override
    def path_names(self) -> list[str]:
        return paths_of(self.path)

    @override
    def expect(self, tokenizer: Tokenizer) -> None:
        if tokenizer != DNATokenizer():
            raise ValueError(
                f"the model was trained on {tokenizer.name}, these data are DNA ({self.name}); "
                "choose data or a model of the same vocabulary"
            )

    def source_files(self) -> list[Source]:
        """The files of `path`, downloaded if need be."""
        return expand(self.path)

    @override
    def open(self) -> Genome:
        return Genome.open(self.path, self.keep, self.iupac, self.num_workers)

    @property
    @override
    def labels(self) -> Sequence[str]:
        self.prepare()
        return self._labels.names if self._labels is not None else []


@checked
@dataclass(eq=False, repr=False)
class GenomeDataModule(DNADataModule):
    """Windows of a genome. The files are packed into the cache when they are used for the first
    time.

    Args:
        path: see `DNADataModule`; None: the file that `download` fetches.
        windows: how training windows are drawn: `uniform` over all starts, or `intervals`, each
            tile of each interval once per epoch.
        max_n: maximum fraction of N in a window; other windows are left out.
        blacklist: BED file of regions that no window touches; rows of records that are not used are
            skipped with a warning.
        soft_weight: weight of soft-masked (lower-case) bases in training; likelihoods count them in
            full.
        download: fetches the file if `path` is None.

    The other arguments are those of `DNADataModule` and `SequenceDataModule`.

    Examples:
        >>> data = GenomeDataModule("bundled:ecoli_K12_MG1655.fa.gz", length=512, batch_size=16)
        >>> data.describe()["tokens"]
        4641652
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch["ids"].shape, batch["weight"].shape
        (torch.Size([16, 512]), torch.Size([16, 512]))
    """

    windows: Literal["uniform", "intervals"] = "uniform"
    max_n: Fraction = 0.1
    blacklist: str | Path | None = None
    soft_weight: Fraction = 1.0
    download: Download | None = None

    def __post_init__(self) -> None:
        self._fetches = self.path is None
        if self.path is None:
            if self.download is None:
                raise ValueError(
                    "data.path names no file; set it to a FASTA file, a folder, or to a list of "
                    "them"
                )
            self.path = self.download.name
        super().__post_init__()
        self._leak: Leak | None = None

    @property
    def genome(self) -> Genome:
        """The records with their names and soft-masking."""
        self.prepare()
        return self._genome

    @property
    @override
    def digest(self) -> str:
        return self.genome.digest

    @override
    def open(self) -> Genome:
        return Genome.open(self._local_path(), self.keep, self.iupac, self.num_workers)

    @override
    def source_files(self) -> list[Source]:
        return expand(self._local_path())

    def _local_path(self) -> SequencePath | None:
        return self.download.fetch() if self._fetches and self.download is not None else self.path

    @override
    def read(self) -> tuple[list[str], Records, Tokenizer]:
        self._genome = self.open()
        self._weights = self._genome.weights
        if self._weights is not None and self.windows != "uniform":
            raise ValueError(
                "the manifest has weights, and data.windows=intervals uses each window once; set "
                "data.windows=uniform, or leave them out"
            )
        self._labels = Labels.from_names(
            [[] if label is None else [label] for label in self._genome.labels], self.label_dropout
        )
        return self._genome.names, self._genome.records, self._genome.tokenizer

    @override
    def _check_countable(self) -> None:
        super()._check_countable()
        if self.soft_weight > 0:
            return
        emitted, packed = self._tokenizer.vocab.is_emitted().numpy(), self._genome.records.packed
        blocks = (packed(record)[start:end] for record, start, end in self._blocks("train"))
        if not any(emitted[block[block < SOFT_MASKED]].any() for block in blocks):
            raise ValueError(
                "the training part has no weight: all of its known bases are lower case, and "
                "data.soft_weight is 0; set data.soft_weight above 0"
            )

    @override
    def split_records(self, names: list[str], lengths: list[int]) -> Parts:
        parts = self.split(names, lengths)
        self._leak = leak = self.split.leak(names, lengths, self.length)
        if leak is not None:
            log.info(
                f"split {self.split.describe()}: {leak['as_evaluated']:,} of {leak['windows']:,} "
                "training windows "
                f"({100 * leak['share_as_evaluated']:.1f} %) overlap held-out intervals as they "
                "are evaluated, "
                f"{leak['as_written']:,} ({100 * leak['share_as_written']:.1f} %) as the file has "
                "them"
            )
        if self.blacklist is None:
            return parts
        number = {name: each for each, name in enumerate(names)}
        regions = read_bed(self.blacklist, dict(zip(names, lengths)), skip_unknown=True)
        holes = [Interval(number[r.chrom], r.start, r.end) for r in regions]
        return {part: subtract(intervals, holes) for part, intervals in parts.items()}

    @override
    def train_windows(self) -> RandomWindows:
        size = self.epoch_size or (
            None if self.windows == "intervals" else self._windows_to_cover("train")
        )
        where = self.records, self._part("train"), self.length, size, self.vocab, self.seed
        how = bool(self.augment_rc), self._n_runs(), self.max_n, self.soft_weight, self._labels
        if self._weights is not None:
            return WeightedWindows(self._weights, *where, *how)
        kind = UniformWindows if self.windows == "uniform" else IntervalWindows
        return kind(*where, *how)

    def _n_runs(self) -> NRuns | None:
        return self.genome.n_runs if self.max_n < 1 else None

    @override
    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        length = self.length if length is None else length
        return TiledWindows(
            self.records,
            self._part(split),
            length,
            self.vocab,
            self._n_runs(),
            self.max_n,
            self._labels,
        )

    @override
    def describe(self) -> dict[str, Json]:
        about = super().describe()
        about |= {
            "max_n": self.max_n,
            "keep": self.keep,
            "soft_weight": self.soft_weight,
            "iupac": self.iupac,
        }
        if self.max_n < 1:
            about["tiles_left_out_for_n"] = {
                part: self._left_out(part) for part in ("valid", "test")
            }
        about |= {"blacklist": str(self.blacklist)} if self.blacklist else {}
        about |= {"labels": self.labels} if self._labels is not None else {}
        about |= {"weights": "of the manifest"} if self._weights is not None else {}
        return about | ({"leak": self._leak} if self._leak else {})

    def _left_out(self, part: str) -> int:
        try:
            return self.test_windows(part).left_out
        except ValueError:  # no interval of this part is long enough
            return 0
