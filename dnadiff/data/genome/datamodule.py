"""Data modules for DNA: windows of genomes, and many short sequences: padded, in batches of similar
length, with labels from their headers or files.

A short sequence is a record. Equal sequences, on either strand, always belong to the same part. In
a batch `valid` is False on padding, and padding has weight 0.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from dnadiff.data.alignment import Alignment
from dnadiff.data.base import About, Contents, SequenceDataModule
from dnadiff.data.genome.genome import Genome, SequencePath, expand, paths_of
from dnadiff.data.genome.packed import RecordInfo, pack
from dnadiff.data.records import (
    Integers,
    Interval,
    Intervals,
    Mask,
    NRuns,
    PaddedCutter,
    TokenTable,
    num_tokens,
)
from dnadiff.data.splits import PARTS, Leak, Lengths, Names, Parts, Split, split_hash, subtract
from dnadiff.data.tokenizer import DNATokenizer, TokenIds, Tokenizer
from dnadiff.data.windows import (
    Batch,
    Columns,
    Conditions,
    IntervalWindows,
    RandomWindows,
    RecordConditions,
    SampledWindows,
    TiledWindows,
    UniformWindows,
    bits,
    number,
)
from dnadiff.diffusion.draws import hash64
from dnadiff.fields import Fraction, PositiveInt, checked_dataclass
from dnadiff.formats.regions import names_of, read_bed, read_regions
from dnadiff.formats.sequences import Record, write_fasta
from dnadiff.jobs.job import Job, Result
from dnadiff.progress import log
from dnadiff.store.disk import write_json
from dnadiff.store.files import resolve
from dnadiff.store.remote import Download


@checked_dataclass
class DNADataModule(SequenceDataModule):
    """Base class of the data modules for DNA.

    Args:
        path: what `Genome` takes: a FASTA, 2bit or GenBank file, an address, a folder, a
            pattern, a manifest, several of them, `{label: path}`, a pyfaidx.Fasta.
        stranded: the sequences have a direction (promoters, transcripts), so that the strands are
            not interchangeable.
        augment_rc: replace half of the training windows by their reverse complement; None: unless
            `stranded`.
        keep: names of the records to use, or a regular expression that matches complete names;
            None: all.
        iupac: `unknown` reads ambiguity codes as N, `refuse` raises an error.
        label_dropout: fraction of training windows without labels and values, so that the model
            also learns the unconditional distribution.

    The other arguments are those of `SequenceDataModule`.
    """

    n_policy = "N is seen but never masked, generated or counted"
    opens_genome = True

    path: SequencePath | None
    stranded: bool = False
    keep: str | Sequence[str | int] | None = None
    iupac: Literal["unknown", "refuse"] = "unknown"
    label_dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augment_rc = not self.stranded if self.augment_rc is None else self.augment_rc
        self._conditions: RecordConditions | None = None

    def path_names(self) -> list[str]:
        return paths_of(self.path)

    def expect(self, tokenizer: Tokenizer) -> None:
        if tokenizer != DNATokenizer():
            raise ValueError(
                f"the model was trained on {tokenizer.name}, these data are DNA ({self.name}); "
                "choose data or a model of the same vocabulary"
            )

    def local_path(self) -> SequencePath | None:
        """`path`, downloaded if need be."""
        return self.path

    def open(self) -> Genome:
        return Genome(self.local_path(), self.keep, self.iupac, self.num_workers)

    @property
    def genome(self) -> Genome:
        """The records with their names and soft-masking."""
        self.prepare()
        return self._genome

    @property
    def digest(self) -> str:
        return self.genome.digest

    @property
    def conditions(self) -> Conditions:
        self.prepare()
        return Conditions() if self._conditions is None else self._conditions.conditions

    def read(self) -> Contents:
        self._genome = self.open()
        return self._genome.names, self._genome.records, self._genome.tokenizer


@checked_dataclass
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
        alignment: of related genomes to this one (`dnadiff.align`): windows have its columns, and
            the network reads them next to the sequence.
        alignment_dropout: fraction of training windows without columns, so that the model also
            learns to do without them.

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
    alignment: str | Path | None = None
    alignment_dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        self._fetched = self.download if self.path is None else None
        if self.path is None:
            if self.download is None:
                raise ValueError(
                    "data.path names no file; set it to a FASTA file, a folder, or to a list of "
                    "them"
                )
            self.path = self.download.name
        super().__post_init__()
        self._leak: Leak | None = None
        self._columns: Columns | None = None

    def local_path(self) -> SequencePath | None:
        return self.path if self._fetched is None else self._fetched.fetch()

    def read(self) -> Contents:
        found = super().read()
        if self._genome.weights is not None and self.windows != "uniform":
            raise ValueError(
                "the manifest has weights, and data.windows=intervals uses each window once; set "
                "data.windows=uniform, or leave them out"
            )
        labels = [[] if label is None else [label] for label in self._genome.labels]
        self._conditions = RecordConditions.of(labels, {}, self.label_dropout)
        if self.alignment is None:
            return found
        if self._conditions is not None:
            raise ValueError(
                f"data.alignment does not fit sequences with labels "
                f"({', '.join(self._conditions.conditions.labels)}); leave one of both out"
            )
        try:
            columns = Alignment(self.alignment)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"data.alignment: {error}; set it to the file, or evaluate with alignment=none"
            ) from None
        columns.check(self._genome)
        self._columns = Columns(columns, self._genome.names, self.alignment_dropout)
        return found

    def split_records(self, names: Names, lengths: Lengths) -> Parts:
        parts = self.split(names, lengths)
        self._leak = leak = self.split.leak(names, lengths, self.length)
        if leak is not None:
            log.info(
                f"split {self.split.describe()}: {leak['as_evaluated']:,} of {leak['windows']:,} "
                f"training windows ({100 * leak['share_as_evaluated']:.1f} %) overlap held-out "
                f"intervals as they are evaluated, {leak['as_written']:,} "
                f"({100 * leak['share_as_written']:.1f} %) as the file has them"
            )
        if self.blacklist is None:
            return parts
        number = {name: each for each, name in enumerate(names)}
        regions = read_bed(self.blacklist, dict(zip(names, lengths)), skip_unknown=True)
        holes = [Interval(number[r.chrom], r.start, r.end) for r in regions]
        return {part: subtract(intervals, holes) for part, intervals in parts.items()}

    def train_windows(self) -> RandomWindows:
        once = self.windows == "intervals"
        size = self.epoch_size or 0 if once else self._epoch_size(self.length)
        where = self.records, self._part("train"), self.length, size, self.vocab, self.seed
        cond = self._conditions or self._columns
        how = bool(self.augment_rc), self._n_runs(), self.max_n, self.soft_weight, cond
        if once:
            return IntervalWindows(*where, *how)
        return UniformWindows(*where, *how, weights=self._genome.weights)

    def _n_runs(self) -> NRuns | None:
        return self.genome.n_runs if self.max_n < 1 else None

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        where = self.records, self._part(split), length or self.length, self.vocab
        return TiledWindows(*where, self._n_runs(), self.max_n, self._conditions or self._columns)

    def describe(self) -> About:
        about = super().describe()
        about |= {
            "max_n": self.max_n,
            "keep": self.keep,
            "soft_weight": self.soft_weight,
            "iupac": self.iupac,
        }
        if self.max_n < 1:
            left_out = dict.fromkeys(("valid", "test"), 0)
            for part in left_out:
                with contextlib.suppress(ValueError):  # no interval of this part is long enough
                    left_out[part] = self.test_windows(part).left_out
            about["tiles_left_out_for_n"] = left_out
        about |= {"blacklist": str(self.blacklist)} if self.blacklist else {}
        about |= self.conditions.describe() if self._conditions is not None else {}
        about |= {"weights": "of the manifest"} if self._genome.weights is not None else {}
        if self._columns is not None:
            found = self._columns.alignment
            about["alignment"] = {
                "name": Path(found.path).name,
                "genomes": len(found.genomes),
                "identity": found.identity,
            }
        return about | ({"leak": self._leak} if self._leak else {})


class ShortSequences(SampledWindows):
    """Batches of complete sequences, bucketed by length; sequence i of epoch e depends only on
    (seed, e, i). A batch over all devices is from one bucket."""

    def __init__(self, data: ShortSequenceDataModule) -> None:
        self.chosen = Intervals.of(data.intervals["train"]).record
        self.num_starts = len(self.chosen)
        if not self.num_starts:
            raise ValueError(
                "no sequence for training; choose another data.split, or data with more records"
            )
        self.together = data.batch_size * data.process.world_size
        self.seed = data.seed
        self.augment_rc = bool(data.augment_rc)
        self.cond = data._conditions
        self.cut = PaddedCutter(data.records, data.length, data.vocab, step=data.bucket)
        lengths = data.genome.records.length[self.chosen]
        self.bucket = np.minimum(-(-lengths // data.bucket) * data.bucket, data.length)
        _, sizes = np.unique(self.bucket, return_counts=True)
        self.size = int((-(-sizes // self.together) * self.together).sum())
        self._epoch: int | None = None

    def order(self, epoch: int) -> tuple[Integers, Mask]:
        """The record of each index of an epoch, and whether it is a repetition that only fills a
        batch."""
        if epoch != self._epoch:
            drawn = bits(hash64(self.seed, "order", epoch), np.arange(self.num_starts))
            shuffled = np.lexsort((drawn, self.bucket))
            rows: list[Integers] = []
            repeated: list[Mask] = []
            for bucket in np.split(shuffled, np.flatnonzero(np.diff(self.bucket[shuffled])) + 1):
                size = -(-len(bucket) // self.together) * self.together
                rows.append(np.resize(bucket, size))
                repeated.append(np.arange(size) >= len(bucket))
            batches = np.concatenate(rows).reshape(-1, self.together)
            fills = np.concatenate(repeated).reshape(batches.shape)
            turn = np.argsort(bits(hash64(self.seed, "batches", epoch), np.arange(len(batches))))
            self._order = self.chosen[batches[turn].reshape(-1)], fills[turn].reshape(-1)
            self._epoch = epoch
        return self._order

    def _places(self, epoch: int, index: Integers) -> tuple[Integers, Integers]:
        return self.order(epoch)[0][index], np.zeros_like(index)

    def batch(self, epoch: int, first: int, count: int, step: int = 1) -> Batch:
        """See `SampledWindows`; sequences that only fill a batch have weight 0."""
        batch = super().batch(epoch, first, count, step)
        batch["weight"][torch.from_numpy(self.order(epoch)[1])[batch["index"]]] = 0
        return batch


@checked_dataclass
class ShortSequenceDataModule(DNADataModule):
    """Complete DNA sequences, none longer than `length`.

    Args:
        path: see `DNADataModule`; with `{label: path}` all sequences of a file have its label.
        length: maximum length of a sequence; shorter sequences are padded.
        split: which records are held out; it must not divide a record. None: 80, 10 and 10 % by a
            hash of the sequence.
        label: key of the class in the headers, as in `>name class=enhancer`; None: headers are not
            read.
        condition_columns: keys of values in the headers, as in `>name activity=2.5`, or columns of
            the table.
        bucket: batches are padded to a multiple of this number of bases.

    The other arguments are those of `DNADataModule` and `SequenceDataModule`; an epoch has each
    training sequence once.
    """

    epoch_size: None = field(default=None, init=False)
    label: str | None = None
    condition_columns: Sequence[str] = ()
    bucket: PositiveInt = 16

    def __post_init__(self) -> None:
        self._given_split: Split | None = self.split
        super().__post_init__()

    def read(self) -> Contents:
        names, records, tokenizer = super().read()
        genome = self._genome
        if genome.weights is not None:
            raise ValueError(
                "the manifest has weights, and data=sequences uses each sequence once per epoch; "
                "leave the weights out"
            )
        longest = genome.row(int(genome.records.length.argmax()))
        if longest["length"] > self.length:
            raise ValueError(
                f"record {longest['name']} has {longest['length']} bases, more than length "
                f"{self.length}; set data.length={longest['length']}, "
                f"or use data=fasta, which cuts windows"
            )
        rows = [genome.row(number) for number in range(len(names))]
        values = {
            column: [
                number(
                    given(row, column, "condition_columns=[]"), f"{column} of record {row['name']}"
                )
                for row in rows
            ]
            for column in self.condition_columns
        }
        labels = [self._labels_of(row) for row in rows]
        self._conditions = RecordConditions.of(labels, values, self.label_dropout)
        return names, records, tokenizer

    def split_records(self, names: Names, lengths: Lengths) -> Parts:
        if self._given_split is None:
            table = TokenTable(self._tokenizer.vocab)
            fractions = [content_fraction(sequence[:], table) for sequence in self._records]
            part = np.digitize(np.array(fractions), (0.8, 0.9))
            every = Intervals.whole(lengths)
            return {name: every.where(part == number) for number, name in enumerate(PARTS)}
        parts = self._given_split(names, lengths)
        for record, start, end in (interval for many in parts.values() for interval in many):
            if end - start != lengths[record]:
                raise ValueError(
                    f"split {self.split.describe()} cuts through record {names[record]}; "
                    "choose one that holds out complete records"
                )
        return parts

    def train_windows(self) -> ShortSequences:
        return ShortSequences(self)

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        """All sequences of a part, padded to the length of the module; `length` is ignored."""
        where = self.records, padded(self._part(split), self.length), self.length, self.vocab
        cut = PaddedCutter(self.records, self.length, self.vocab)
        return TiledWindows(*where, cond=self._conditions, cut=cut)

    def describe(self) -> About:
        about = super().describe() | {
            **self.conditions.describe(),
            "label_dropout": self.label_dropout,
        }
        if self._given_split is None:
            about["split"] = "whole sequences by a hash of their letters (80, 10, 10 %)"
        # The hash is that of the padded intervals, as in runs and checkpoints of earlier versions.
        # No sequence is too short for a window.
        of_split = split_hash(
            {part: padded(intervals, self.length) for part, intervals in self.intervals.items()},
            self.names,
        )
        too_short = dict.fromkeys(self.intervals, 0)
        return about | {"split_hash": of_split, "too_short_tokens": too_short}

    def _labels_of(self, row: RecordInfo) -> list[str]:
        found = [] if row["label"] is None else [row["label"]]
        if self.label is not None:
            found.append(f"{self.label}={given(row, self.label, 'label=null')}")
        return found


def given(row: RecordInfo, key: str, remedy: str) -> str:
    """What the header of a record has for a key; a ValueError if there is nothing."""
    pairs = dict(word.split("=", 1) for word in row["description"].split() if "=" in word)
    if key not in pairs:
        raise ValueError(
            f"record {row['name']} has no {key}= in its header; write '>{row['name']} {key}=...', "
            f"or set data.{remedy}"
        )
    return pairs[key]


def padded(intervals: Sequence[Interval], length: int) -> Intervals:
    """The windows of `length` positions that begin where the intervals begin."""
    every = Intervals.of(intervals)
    return Intervals(every.record, every.start, every.start + length)


def content_fraction(ids: TokenIds, table: TokenTable) -> float:
    """A number in [0, 1) that depends only on the sequence, and is the same for both strands."""
    other = table.reverse_complement(ids[None])[0]
    digest = hashlib.blake2b(min(ids.tobytes(), other.tobytes()), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


class PackJob(Job):
    """Packs files into the cache. Items are files; a result lists the name, checksum, records and
    bases of one.

    Args:
        describe: what is printed of the packed genome, after some seconds.
    """

    stream = "files"
    label = "genome"

    def __init__(
        self, data: DNADataModule, output: Path, describe: Callable[[DNADataModule, float], str]
    ) -> None:
        self.data = data
        self.output = output
        self.describe = describe
        self.sources = expand(data.local_path())
        sizes = [[each.path, resolve(each.path).stat().st_size] for each in self.sources]
        self.settings = {"files": sizes}

    def starts(self) -> list[int]:
        return list(range(len(self.sources) + 1))

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for source in self.sources[start + skip :]:
            file = pack(source.path)
            bases = int(file.offsets[-1])
            about = {
                "file": source.path,
                "sha256": file.digest,
                "records": len(file.records),
                "bases": bases,
            }
            self.report(1, bases)
            yield Result(1, json.dumps(about).encode())

    def write(self, results: Iterator[Result]) -> None:
        self.data.open()  # packs in several processes, and finds what shards have packed
        write_json(self.output, {"files": [json.loads(result.content) for result in results]})

    def closing(self, seconds: float) -> str:
        return f"{self.describe(self.data, seconds)}\n{super().closing(seconds)}"


def contents(data: DNADataModule) -> About:
    """Lengths and composition of each record, and the windows of each part or the reason why there
    are none."""
    genome = data.open()
    # A malformed BED file is an error; windows that do not fit are only reported.
    if data.split.bed:
        data.split(genome.names, list(genome.lengths.values()))
    if data.blacklist is not None:
        read_bed(data.blacklist, genome.lengths, skip_unknown=True)
    rows = genome.rows
    content = {
        "records": [_composition(row["name"], [row]) for row in rows],
        "all": _composition("all", rows),
    }
    parts: About = {}
    try:
        data.prepare()
        about = data.describe()
        for part, intervals in data.intervals.items():
            bases, too_short = num_tokens(intervals), about["too_short_tokens"][part]
            tiles = data.test_windows(part) if too_short < bases else None
            parts[part] = {
                "bases": bases,
                "intervals": len(intervals),
                "too_short_bases": too_short,
                "windows": 0 if tiles is None else len(tiles),
                "left_out": 0 if tiles is None else tiles.left_out,
            }
        return content | {
            "window": data.length,
            "split": about["split"],
            "split_hash": about["split_hash"],
            "parts": parts,
            "training_windows": data.train_windows().num_starts,
            "leak": about.get("leak"),
        }
    except ValueError as error:
        return content | {"problem": str(error)}


def _composition(name: str, rows: Sequence[RecordInfo]) -> About:
    """Total length of some records, GC content of the known bases, and fractions of N and of
    soft-masked bases."""
    length, unknown, gc, soft = (
        sum(row[key] for row in rows) for key in ("length", "unknown", "gc", "soft")
    )
    return {
        "name": name,
        "length": length,
        "gc": round(gc / max(length - unknown, 1), 6),
        "n": round(unknown / length, 6),
        "soft_masked": round(soft / length, 6),
    }


def extract(
    data: DNADataModule,
    regions: str | list[str],
    feature: str | None,
    output: str | Path,
    overwrite: bool,
    spliced: bool,
) -> int:
    """Write the sequences of regions to FASTA, on their strand, with soft-masked bases in lower
    case, named `chrom:first-last(strand)`, 1-based; returns their number."""
    genome = data.open()
    found = read_regions(regions, genome.lengths, feature, spliced)

    def records() -> Iterator[Record]:
        for name, region in zip(names_of(found), found):
            letters = genome.tokenizer.letters(region.joined(genome.window))
            letters[region.joined(genome.soft_masked)] |= 0x20  # lower case
            yield Record(name, " ".join(region.name.split()), letters.tobytes())

    return write_fasta(output, records(), overwrite)
