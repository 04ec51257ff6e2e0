"""The Lightning data module for a genome; `text` has that for text, and `module` what they share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dnadiff.data.base import SequenceDataModule, check_share, expect_dna
from dnadiff.data.download import Download
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.regions import read_bed
from dnadiff.data.labels import Labels
from dnadiff.data.splits import Interval, Split, subtract
from dnadiff.data.text.datamodule import TextDataModule  # noqa: F401 - runs of earlier versions name it here
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.data.windows import IntervalWindows, RandomWindows, TiledWindows, UniformWindows

WINDOWS = {"uniform": UniformWindows, "intervals": IntervalWindows}
log = logging.getLogger("dnadiff")


class GenomeDataModule(SequenceDataModule):
    """DNA from sequence files, packed into the cache when they are met for the first time.

    Args:
        path: what `Genome.open` takes: a FASTA, 2bit or GenBank file, a folder, several of them, `{label: path}`, a
            pyfaidx.Fasta. None: what `download` fetches.
        length, batch_size, split, seed, num_workers, epoch_size, max_valid_windows, name, start_method: see `SequenceDataModule`.
        stranded: the letters have a direction (promoters, transcripts), so that strands are not interchangeable.
        augment_rc: None means: unless `stranded`.
        keep: names of the records to use, or a regular expression for whole names; None: all.
        windows: how training windows are drawn: `uniform` over all starts, or `intervals`, each tile of each interval once an epoch.
        max_n: windows with a larger share of N are left out.
        blacklist: BED whose regions no window touches; rows of records that are not used are left out with a warning.
        soft_weight: training weight of soft-masked (lower-case) bases; likelihoods count them in full.
        iupac: `unknown` reads ambiguity codes as N, `refuse` raises.
        label_dropout: share of training windows that are not told their label; only with `{label: path}`.
        download: fetches the file if `path` is None.
    """

    n_policy = "N is seen but never masked, generated or counted"

    def __init__(
        self,
        path: Any,
        length: int,
        batch_size: int,
        split: Split | None = None,
        seed: int = 0,
        num_workers: int = 0,
        epoch_size: int | None = None,
        max_valid_windows: int = 256,
        stranded: bool = False,
        augment_rc: bool | None = None,
        name: str | None = None,
        keep: str | Sequence[str] | None = None,
        windows: str = "uniform",
        max_n: float = 0.1,
        blacklist: str | Path | None = None,
        soft_weight: float = 1.0,
        iupac: str = "unknown",
        label_dropout: float = 0.1,
        download: Download | None = None,
        start_method: str | None = None,
    ) -> None:
        if path is None:
            if download is None:
                raise ValueError("path names no file; set data.path to a FASTA file, a folder, or to a list of them")
            path = download.name
            self._download: Download | None = download
        else:
            self._download = None
        if windows not in WINDOWS:
            raise ValueError(f"windows is {windows!r}; choose {' or '.join(WINDOWS)} for data.windows")
        for key, value in (("max_n", max_n), ("soft_weight", soft_weight), ("label_dropout", label_dropout)):
            check_share(key, value)
        if iupac not in ("unknown", "refuse"):
            raise ValueError(f"iupac is {iupac!r}; choose unknown or refuse for data.iupac")
        augment_rc = not stranded if augment_rc is None else augment_rc
        super().__init__(path, length, batch_size, split, seed, num_workers, epoch_size, max_valid_windows, augment_rc, name, start_method)
        self.stranded, self.keep, self.max_n, self.blacklist, self.soft_weight = stranded, keep, max_n, blacklist, soft_weight
        self.iupac, self.label_dropout, self._windows, self._leak = iupac, label_dropout, WINDOWS[windows], None
        self._labels: Labels | None = None

    def expect(self, tokenizer: Any) -> None:
        """See `SequenceDataModule.expect`: DNA has one alphabet."""
        expect_dna(tokenizer, self.name)

    @property
    def genome(self) -> Genome:
        """The records with their names and soft-masking."""
        self.prepare()
        return self._genome

    @property
    def digest(self) -> str:
        """See `SequenceDataModule.digest`."""
        return self.genome.digest

    def open(self) -> Genome:
        """The genome, fetched and packed if need be; the split is not asked."""
        path = self.path if self._download is None else self._download.fetch()
        return Genome.open(path, self.keep, self.iupac)

    @property
    def labels(self) -> list[str]:
        """The labels of `{label: path}` in the order of the columns of `cond`."""
        self.prepare()
        return self._labels.names if self._labels is not None else []

    def read(self) -> tuple[list[str], Sequence[Any], DNATokenizer]:
        """Names and token ids of the records."""
        self._genome = self.open()
        self._labels = Labels.from_names([[] if label is None else [label] for label in self._genome.labels], self.label_dropout)
        return self._genome.names, self._genome.records, self._genome.tokenizer

    def split_records(self, names: list[str], lengths: list[int]) -> dict[str, list[Interval]]:
        """The split without the blacklist."""
        parts = self.split(names, lengths)
        if hasattr(self.split, "leak"):
            self._leak = self.split.leak(names, lengths, self.length)
            leak = self._leak
            log.info(
                f"split {self.split.describe()}: {leak['as_evaluated']:,} of {leak['windows']:,} training windows "
                f"({100 * leak['share_as_evaluated']:.1f} %) overlap held-out intervals as they are evaluated, "
                f"{leak['as_written']:,} ({100 * leak['share_as_written']:.1f} %) as the file has them"
            )
        if self.blacklist is None:
            return parts
        number = {name: each for each, name in enumerate(names)}
        regions = read_bed(self.blacklist, dict(zip(names, lengths)), skip_unknown=True)
        holes = [Interval(number[r.chrom], r.start, r.end) for r in regions]
        return {part: subtract(intervals, holes) for part, intervals in parts.items()}

    def train_windows(self) -> RandomWindows:
        """The training windows as a dataset."""
        size = self.epoch_size or (None if self._windows is IntervalWindows else self._epoch_size())
        return self._windows(
            self.records,
            self._part("train"),
            self.length,
            size,
            self.vocab,
            self.seed,
            self.augment_rc,
            self._genome.n_runs if self.max_n < 1 else None,
            self.max_n,
            self.soft_weight,
            self._labels,
        )

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        """See `SequenceDataModule.test_windows`; tiles with more N than `max_n` are left out."""
        length = self.length if length is None else length
        unknown = self.genome.n_runs if self.max_n < 1 else None
        return TiledWindows(self.records, self._part(split), length, self.vocab, unknown, self.max_n, self._labels)

    def describe(self) -> dict[str, Any]:
        """See `SequenceDataModule.describe`, with what is left out."""
        about = super().describe()
        about |= {"max_n": self.max_n, "keep": self.keep, "soft_weight": self.soft_weight, "iupac": self.iupac}
        if self.max_n < 1:
            about["tiles_left_out_for_n"] = {part: self._left_out(part) for part in ("valid", "test")}
        about |= {"blacklist": str(self.blacklist)} if self.blacklist else {}
        about |= {"labels": self.labels} if self._labels is not None else {}
        return about | ({"leak": self._leak} if self._leak else {})

    def _left_out(self, part: str) -> int:
        try:
            return self.test_windows(part).left_out
        except ValueError:  # nothing of this part is long enough
            return 0
