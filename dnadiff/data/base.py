"""The base class of all data modules: records of token ids, a tokenizer and a split become batches
of windows. And the data of a training run, read again by later commands from the files that its
configuration names, and never from the network.

Subclasses read the records: `genome.datamodule` for genomes and for many short sequences, and
`text.datamodule` for text. The contents of a batch are defined in `windows`.
`dnadiff.training.module` hands the batches to Lightning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Generator
from torch.utils.data import DataLoader, Dataset, Subset

from dnadiff.data.records import Cutter, Interval, Intervals, Records, StoredRecords, num_tokens
from dnadiff.data.splits import (
    MAX_HELD_OUT,
    PARTS,
    DefaultSplit,
    Lengths,
    Names,
    Parts,
    Split,
    split_hash,
)
from dnadiff.data.tokenizer import TokenIds, Tokenizer
from dnadiff.data.windows import (
    Batch,
    Conditions,
    SampledWindows,
    TiledWindows,
    UniformWindows,
    Window,
)
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config, Json, Natural, PositiveInt, as_list, checked_dataclass
from dnadiff.store.address import CACHED, file_name, is_remote, shortened, with_texts
from dnadiff.store.files import bare_name
from dnadiff.store.objects import PACKAGE, build

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome


_FURTHER = 1 << 32  # added to the number of an epoch for its batches after all windows
_WORKER = re.compile(
    r"DataLoader worker \(pid.*?\) (is killed by signal: [\w ]+|exited unexpectedly)"
)

LoaderState = dict[str, int]
About = dict[str, Json]  # what a report says
# Names and token ids of the records, and their tokenizer
Contents = tuple[list[str], Records, Tokenizer]
StartMethod = Literal["fork", "spawn", "forkserver"]


class ProcessRank(NamedTuple):
    """Which of the processes of a training run this one is.

    Attributes:
        rank: its number; processes with the same windows (context parallelism) have the same
            number.
        world_size: how many numbers there are.
        progress: returns how many batches of this epoch training has finished, and how many there
            are; called when the state of a loader
            is saved. None: every batch that was returned counts as finished, including the current
            one.
        accumulated: batches of one optimizer step; an epoch has a multiple of them.
    """

    rank: int = 0
    world_size: int = 1
    progress: Callable[[], tuple[int, float]] | None = None
    accumulated: int = 1

    def whole_steps(self, batches: int) -> int:
        """The number of batches without those of an optimizer step that is not complete: a step is
        never resumed in its middle."""
        return batches // self.accumulated * self.accumulated

    def finished(self, returned: int, end: float) -> tuple[int, float]:
        """The batches of complete optimizer steps that are finished, and the number of batches of
        an epoch, if a loader has returned so many and has `end`."""
        done, end = (returned, end) if self.progress is None else self.progress()
        return self.whole_steps(min(done, returned)), end


ALONE = ProcessRank()


class Loader(Iterable[Batch]):
    """Batches of an epoch in each iteration, the next epoch in the next one. Epochs are counted
    here, because Lightning's own count advances by an empty epoch when a run resumes from the end
    of one."""

    epoch = 0
    process: ProcessRank
    _returned = 0  # of this epoch, including those before a resume
    _resumed = False

    def state_dict(self) -> LoaderState:
        """Where training resumes: the epoch, and the number of its finished batches."""
        raise NotImplementedError

    def load_state_dict(self, state: LoaderState) -> None:
        """Resume from a saved state in the next iteration."""
        # Older versions also saved in the middle of an optimizer step.
        self.epoch, self._returned = state["epoch"], self.process.whole_steps(state["batch"])
        self._resumed = True

    def _begin(self) -> bool:
        """Begin an iteration; returns whether it begins the next epoch."""
        is_next = not self._resumed and self._returned > 0
        if is_next:
            self.epoch = self.epoch + 1
            self._returned = 0
        self._resumed = False
        return is_next


@dataclass(eq=False)
class TrainLoader(Loader):
    """Windows in full batches; each iteration is one epoch, and the next iteration is the next
    epoch.

    Row r of batch b is window (b * batch_size + r) * world_size + rank: ranks share an epoch, no
    window occurs twice, and batch b of all ranks together has the windows that one process with the
    same global batch has in it. An epoch has `len(self)` batches, enough for all windows of the
    dataset; the last batch is completed with further windows. The last optimizer step of an epoch
    is completed with further batches, of an epoch that is used for nothing else, because Lightning
    would otherwise take a smaller step.

    Args:
        windows: what is read; its size is rounded up to full batches.
        batch_size: windows in a batch, on this rank.
        num_workers: processes that cut windows; 0 cuts them in this process. Batches do not depend
            on it.
        start_method: how workers start, `fork`, `spawn` or `forkserver`; None: the default of the
            system.
    """

    windows: SampledWindows
    batch_size: int
    num_workers: int = 0
    process: ProcessRank = ALONE
    start_method: StartMethod | None = None

    def __post_init__(self) -> None:
        together = self.batch_size * self.process.world_size
        accumulated = self.process.accumulated
        self.num_full = -(-self.windows.size // together)  # with all windows
        self.windows.size = self.num_full * together
        self.num_batches = -(-self.num_full // accumulated) * accumulated

    def state_dict(self) -> LoaderState:
        done, end = self.process.finished(self._returned, self.num_batches)
        return {"epoch": self.epoch + (done >= end), "batch": done if done < end else 0}

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        # A generator, because Lightning creates iterators that it never uses.
        self._begin()
        rank = self.process.rank
        together = self.batch_size * self.process.world_size
        numbers = range(self._returned, self.num_batches)
        keys = [
            (
                self.epoch + number // self.num_full * _FURTHER,
                number % self.num_full * together + rank,
                self.batch_size,
                self.process.world_size,
            )
            for number in numbers
        ]
        # With a generator of its own: a DataLoader otherwise draws from the global one, and
        # resuming would change the dropout.
        batches = DataLoader(
            _Batches(self.windows),
            None,
            sampler=keys,
            num_workers=self.num_workers,
            generator=Generator(),
            multiprocessing_context=self.start_method if self.num_workers else None,
            worker_init_fn=own_process_group,
        )
        for number, batch in zip(numbers, batches):
            self._returned = number + 1
            yield batch


def named(error: ValueError, name: str) -> ValueError:
    """The error with the name of the data in front, unless it begins with it."""
    return ValueError(str(error) if str(error).startswith(name) else f"{name}: {error}")


def own_process_group(worker: int) -> None:
    """Called in a worker process, so that Ctrl-C and the signals of a scheduler reach only the
    process that saves a checkpoint."""
    os.setpgrp()


@dataclass
class _Batches(Dataset[Batch]):
    """Batches by the arguments of `SampledWindows.batch`; this object is sent to the workers."""

    windows: SampledWindows

    def __getitem__(self, key: tuple[int, int, int, int]) -> Batch:
        return self.windows.batch(*key)


def worker_loss(error: Exception, num_workers: int) -> str | None:
    """How an error says that a process that loads data ended; None if it does not.

    PyTorch names the process if it notices first. Otherwise the connection through which the
    process sent its batch fails.
    """
    if worker := _WORKER.search(str(error)):
        return " ".join(worker[0].split())
    if num_workers and isinstance(error, (ConnectionError, EOFError)):
        what = str(error) or type(error).__name__
        return f"the connection to a DataLoader worker failed ({what})"
    return None


_BLOCK = 1 << 20  # tokens that are looked at together


@checked_dataclass
class SequenceDataModule:
    """Windows of records for training, validation and test.

    A batch is a dict of tensors: `ids (B, L)` uint8 (uint16 for more than 254 characters),
    `weight (B, L)` uint8, 1 where a token counts, and `index (B,)` int64. Files are read by
    `prepare`, or on first access to what is in them.

    A subclass is a dataclass too and declares its own settings as fields.

    Args:
        path: a file, or several files; `bundled:NAME` ships with the package.
        length: tokens in a window.
        batch_size: windows in a batch, on each device.
        split: the intervals for training, validation and test; None: `DefaultSplit`.
        seed: seed of the training windows.
        num_workers: processes that cut windows; batches do not depend on it.
        epoch_size: training windows in an epoch, rounded up to full batches; None: enough to cover
            the training part once.
        max_valid_windows: maximum number of validation windows; they are evenly spaced and always
            the same.
        augment_rc: replace half of the training windows by their reverse complement; None: no.
        name: name of the data in reports; None: the file name.
        start_method: how workers start, `fork`, `spawn` or `forkserver`; None: the default of the
            system.

    Raises:
        ValueError: naming the setting that is not valid.
    """

    buildable = True  # a checkpoint's configuration may name it
    n_policy = ""
    opens_genome = False  # whether `open` returns a genome
    process = ALONE  # of those that train together
    # whether the sequences have a direction, so that the strands are not interchangeable
    stranded = False
    soft_weight = 1.0  # of lower-case bases in training

    path: Any
    length: PositiveInt
    batch_size: PositiveInt
    # None is replaced in `__post_init__`, as for `name`
    split: Split = None  # type: ignore[assignment]
    seed: Natural = 0
    num_workers: Natural = 0
    epoch_size: PositiveInt | None = None
    max_valid_windows: PositiveInt = 256
    augment_rc: bool | None = None
    name: str = None  # type: ignore[assignment]
    start_method: StartMethod | None = None

    def __post_init__(self) -> None:
        self.path = shortened(self.path)
        self.paths = self.path_names()
        if not self.paths:
            raise ValueError("data.path names no file; set it to a file or to a list of files")
        self.split = self.split or DefaultSplit()
        self.name = self.name or ", ".join(
            file_name(p).removeprefix("bundled:") for p in self.paths
        )
        self._names: list[str] = []  # empty until they are prepared
        self._loader: Loader | None = None
        self._resume: LoaderState | None = None

    # What subclasses provide

    def path_names(self) -> list[str]:
        """The paths that the user wrote, as strings, for reports."""
        path = self.path
        if isinstance(path, Mapping):  # files by part
            return [f"{part}={each}" for part, several in path.items() for each in as_list(several)]
        paths = [path] if isinstance(path, (str, Path)) else path or ()
        return [str(each).removeprefix(CACHED) for each in paths]

    def read(self) -> Contents:
        """Read the data: names and token ids of the records, and their tokenizer."""
        raise NotImplementedError

    def expect(self, tokenizer: Tokenizer) -> None:
        """Announce the tokenizer of the model that will use the data, before anything is read.

        Raises:
            ValueError: if these data cannot be tokenized with it.
        """
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """SHA-256 of the data; a resumed run compares it."""
        raise NotImplementedError

    @property
    def parts(self) -> Sequence[str]:
        """The available parts among train, valid and test."""
        return PARTS

    @property
    def conditions(self) -> Conditions:
        """Labels and values of the windows, in the order of the columns of `cond`."""
        return Conditions()

    @property
    def alignment(self) -> str | Path | None:
        """The alignment of related genomes whose columns are in the windows; None without one."""
        return None

    @property
    def blacklist(self) -> str | Path | None:
        """BED file of regions that no window touches; None if there is no such file."""
        return None

    def open(self) -> Genome:
        """The genome in the files, with all records.

        Raises:
            ValueError: if the data are not DNA.
        """
        raise ValueError(f"{self.name} is not DNA; choose data=fasta, ecoli, hg38 or sequences")

    # Reading and splitting

    def prepare(self) -> None:
        """Read the files and check that windows fit; a second call does nothing.

        Raises:
            FileNotFoundError, ValueError: from reading, splitting or cutting, in one line with the
                remedy.
        """
        if self._names:
            return
        names, records, self._tokenizer = self.read()
        self._records = StoredRecords.of(records)
        self._intervals = self.split_records(names, self._records.lengths)
        self._names = names
        self._check_windows(PARTS)

    def _check_windows(self, parts: Iterable[str]) -> None:
        """Cut the windows of some parts; what was read is forgotten if they do not fit."""
        try:
            for part in parts:
                if part == "train":
                    self.train_windows()
                    self._check_countable()
                else:
                    self.test_windows(part)
        except ValueError as error:
            self._names = []
            raise named(error, self.name) from None

    def check_training(self) -> None:
        """Check before training what `prepare` has not checked yet; nothing by default."""

    def check_corruption(self, protocol: str) -> None:
        """Raise ValueError if a protocol masks what must stay visible; nothing by default."""

    def measured(self) -> Config:
        """What a checkpoint records of the training part for sampling, by the names of arguments;
        nothing by default."""
        return {}

    def check_step(self, world_size: int, accumulated: int) -> None:
        """Check that there is an optimizer step of `accumulated` batches in each of `world_size`
        processes; nothing by default."""

    def _check_countable(self) -> None:
        """Refuse a training part without a single token that counts."""
        for record, first, end in self._part("train"):
            for start in range(first, end, _BLOCK):  # stops at the first block with one
                where = self.records, min(_BLOCK, end - start), self.vocab
                cut = Cutter(*where, self.soft_weight)
                if cut(*np.array([[record], [start]]))["weight"].any():
                    return
        raise ValueError(
            "no window for training has a base that counts: all are N, or lower case with "
            "data.soft_weight=0; choose another data.split, or a weight above 0"
        )

    def split_records(self, names: Names, lengths: Lengths) -> Parts:
        """The intervals of each part."""
        return self.split(names, lengths)

    @property
    def names(self) -> list[str]:
        """Names of the records."""
        self.prepare()
        return self._names

    @property
    def records(self) -> Records:
        """Token ids of each record: arrays `(length,)`."""
        self.prepare()
        return self._records

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data."""
        self.prepare()
        return self._tokenizer

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the tokenizer."""
        return self.tokenizer.vocab

    @property
    def intervals(self) -> Parts:
        """Intervals of "train", "valid" and "test"."""
        self.prepare()
        return self._intervals

    def sequences(self, split: str) -> list[TokenIds]:
        """Token ids of each interval of a part: arrays `(end - start,)`."""
        return [self.records[i.record][i.start : i.end] for i in self._part(split)]

    def _part(self, split: str) -> Sequence[Interval]:
        if split not in self.intervals:
            raise ValueError(f"split is {split!r}; expected one of {', '.join(self.intervals)}")
        return self.intervals[split]

    # Windows and loaders

    def train_windows(self) -> SampledWindows:
        """The training windows as a dataset, as the loader reads them."""
        intervals = self._part("train")
        augment_rc = bool(self.augment_rc)
        where = self.records, intervals, self.length, self._epoch_size(self.length)
        return UniformWindows(*where, self.vocab, self.seed, augment_rc)

    def _epoch_size(self, length: int) -> int:
        """Training windows in an epoch: by default enough of this length to cover the part."""
        return self.epoch_size or max(1, num_tokens(self._part("train")) // length)

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        """All of a part in adjacent windows of `length` tokens; None: the length of the module."""
        return TiledWindows(self.records, self._part(split), length or self.length, self.vocab)

    def _train_loader(self) -> Loader:
        return TrainLoader(
            self.train_windows(),
            self.batch_size,
            self.num_workers,
            self.process,
            self.start_method,
        )

    def token_counts(self, num_tokens: int = 1 << 20) -> NDArray:
        """How often each token is counted in the first batches of training, of about `num_tokens`
        tokens or one epoch: (V,)."""
        counts = np.zeros(self.vocab.size, np.int64)
        for batch in self._train_loader():
            counted = batch["ids"][batch["weight"] > 0].numpy()
            counts += np.bincount(counted, minlength=len(counts))
            if counts.sum() >= num_tokens:
                break
        return counts

    def train_dataloader(self) -> Loader:
        """The training batches of this process."""
        self._loader = self._train_loader()
        if self._resume is not None:
            self._loader.load_state_dict(self._resume)
            self._resume = None
        return self._loader

    def state_dict(self) -> dict[str, LoaderState]:
        """Where training resumes."""
        return {} if self._loader is None else {"train_loader": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, LoaderState]) -> None:
        """Let the next loader of training batches resume."""
        self._resume = state_dict.get("train_loader")

    def val_dataloader(self) -> DataLoader[Window]:
        """The validation windows."""
        tiles = self.test_windows("valid")
        count = min(len(tiles), self.max_valid_windows)
        chosen = np.linspace(0, len(tiles) - 1, count).round().astype(int).tolist()
        return DataLoader(
            Subset(tiles, chosen),
            self.batch_size,
            num_workers=self.num_workers,
            multiprocessing_context=self.start_method if self.num_workers else None,
            worker_init_fn=own_process_group,
        )

    def describe(self) -> About:
        """What a report must name next to each number: plain values, ready for JSON."""
        parts = {part: Intervals.of(intervals) for part, intervals in self.intervals.items()}
        held_out = {
            part: sorted(self.names[number] for number in np.unique(parts[part].record).tolist())
            for part in ("valid", "test")
        }
        return {
            "name": self.name,
            "path": ", ".join(self.paths),
            "records": len(self.names),
            "tokens": sum(self._records.lengths),
            "split": self.split.describe(),
            "split_hash": split_hash(self.intervals, self.names),
            "split_tokens": {part: num_tokens(each) for part, each in parts.items()},
            "too_short_tokens": {
                part: num_tokens(each.where(each.length < self.length))
                for part, each in parts.items()
            },
            "held_out_records": {part: names[:MAX_HELD_OUT] for part, names in held_out.items()},
            "window": self.length,
            "n_policy": self.n_policy,
        }

    def layout(self, length: int | None = None) -> str | None:
        """How documents fill windows of `length` tokens, in words; None for data without
        documents."""
        return None


_REMEDY = (
    "give them to evaluate, judge or copies, as in data=ecoli or data=fasta data.path=my.fa, or "
    "to finetune, as in pretraining_overlap=my.fa"
)


def run_data(
    config: Json,
    tokenizer: Tokenizer | None,
    trust: Sequence[str] = (),
    given: Config | None = None,
) -> SequenceDataModule:
    """The data that a model was trained on, not yet prepared, or others that are `given`. A model
    without a run, such as published weights, needs them.

    A checkpoint can come from anyone. Its configuration may name files of this machine, but nothing
    that it names is fetched.

    Args:
        config: `data` of the configuration in the checkpoint; None if it has none.
        tokenizer: of the model; None if it is not known, and the data choose it.
        trust: packages besides dnadiff whose classes the configuration may name.
        given: `data` of the command line.

    Raises:
        ValueError: as `run_config`; or if the data are not sequences that this tokenizer reads.
    """
    data = build(given or run_config(config), trust=None if given else (PACKAGE, *trust))
    if not isinstance(data, SequenceDataModule):
        raise ValueError(
            f"data of the training run are described as {type(data).__name__}, which is no data "
            "module; name other data"
        )
    if tokenizer is not None:
        data.expect(tokenizer)
    return data


def run_config(config: Json) -> Config:
    """`data` of the configuration of a run, for a model that has its tokenizer, without what would
    be fetched.

    Raises:
        ValueError: if the run used downloaded data only, or the source of the model names no file.
    """
    if config is None:
        raise ValueError(
            f"data is missing: this model comes without a run that names its data; {_REMEDY}"
        )
    if not isinstance(config, Mapping):
        raise ValueError(
            f"data of the training run are {config!r}, expected a mapping; name other data"
        )
    fetched = [key for key in ("download", "hub") if config.get(key)]
    if fetched and not config.get("path"):
        raise ValueError(
            f"the run was trained on downloaded data ({config.get('name')}); name it again, as in "
            "data=hg38, to allow the download"
        )
    if config.get("path", "") is None:
        raise ValueError(
            "data is missing: this model was exported without the path of its data "
            f"({config.get('name')}); {_REMEDY}"
        )
    # The model's own tokenizer replaces the one that the configuration names.
    kept = {key: value for key, value in config.items() if key not in (*fetched, "tokenizer")}
    if "path" in kept:
        kept["path"] = with_texts(kept["path"], _stored_manifest)
    return kept


def _stored_manifest(path: str) -> str:
    """A path, with a mark if it is a manifest, whose addresses are read from the cache; `build`
    marks the addresses themselves."""
    return CACHED + path if bare_name(path).endswith(".tsv") and not is_remote(path) else path
