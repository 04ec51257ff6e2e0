"""What all Lightning data modules share: records of token ids, a tokenizer and a split become batches of windows.

A subclass says how its records are read; `datamodule` has that for genomes, `text` that for text, `short` one for many short sequences.
What a batch is made of is decided in `windows`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import lightning
import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Subset

from dnadiff.data.genome.sources import paths_of
from dnadiff.data.loader import Batches, TrainLoader
from dnadiff.data.splits import DefaultSplit, Interval, Split, split_hash
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.data.windows import RandomWindows, TiledWindows, UniformWindows
from dnadiff.vocab import Vocab


class SequenceDataModule(lightning.LightningDataModule):
    """Windows of records for training, validation and test.

    A batch is a dict of tensors: `ids (B, L)` uint8 (uint16 for more than 254 characters), `weight (B, L)` uint8, 1 where
    a token counts, and `index (B,)` int64. Files are read by `prepare`, or when something is first asked for.

    Args:
        path: file, or list of files; `bundled:NAME` ships with the package.
        length: tokens in a window.
        batch_size: windows in a batch, on each device.
        split: which intervals are for training, validation and test.
        seed: of the training windows.
        num_workers: processes that cut windows; batches do not depend on it.
        epoch_size: training windows in an epoch, rounded up to whole batches; None: as many as cover the training part once.
        max_valid_windows: validation uses at most so many tiles, spread evenly and always the same.
        augment_rc: show half of the training windows from the other strand.
        name: what reports call the data; None: the file name.
        start_method: how workers start, `fork` or `spawn`; None: the system's way.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    n_policy = ""

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
        augment_rc: bool = False,
        name: str | None = None,
        start_method: str | None = None,
    ) -> None:
        super().__init__()
        for key, value, least in (
            ("length", length, 1),
            ("batch_size", batch_size, 1),
            ("num_workers", num_workers, 0),
            ("epoch_size", 1 if epoch_size is None else epoch_size, 1),
            ("max_valid_windows", max_valid_windows, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{key} is {value!r}; set data.{key} to {least} or more, a whole number")
        if start_method not in (None, "fork", "spawn", "forkserver"):
            raise ValueError(f"start_method is {start_method!r}; choose fork, spawn, forkserver or null for data.start_method")
        self.path, self.paths, self.start_method = path, paths_of(path), start_method
        if not self.paths:
            raise ValueError("path names no file; set data.path to a file or to a list of files")
        self.length, self.batch_size, self.num_workers = length, batch_size, num_workers
        if split is not None and not callable(split):
            raise ValueError(f"split is {split!r}; choose a policy by data/split=NAME, such as chromosomes or fraction")
        self.split = split or DefaultSplit()
        self.seed, self.epoch_size, self.max_valid_windows, self.augment_rc = seed, epoch_size, max_valid_windows, augment_rc
        self.name = name or ", ".join(Path(p).name.removeprefix("bundled:") for p in self.paths)
        self._names: list[str] | None = None
        self._loader: TrainLoader | None = None
        self._resume: dict[str, int] | None = None

    def read(self) -> tuple[list[str], list[NDArray[Any]], DNATokenizer | CharTokenizer]:
        """Names and token ids of the records, and what the ids mean."""
        raise NotImplementedError

    def expect(self, tokenizer: Any) -> None:
        """Announce, before anything is read, the tokenizer of the model that will use the data.

        Raises:
            ValueError: if these data cannot be written in its alphabet.
        """
        raise NotImplementedError

    def prepare(self) -> None:
        """Read the files and check that windows fit; a second call does nothing.

        Raises:
            FileNotFoundError, ValueError: from reading, splitting or cutting, in one line with the remedy.
        """
        if self._names is not None:
            return
        names, self._records, self._tokenizer = self.read()
        self._intervals = self.split_records(names, [len(r) for r in self._records])
        self._names = names
        try:
            self.train_windows()
            self.test_windows("valid")
            self.test_windows("test")
            self._check_countable()
        except ValueError as error:
            self._names = None
            raise ValueError(f"{self.name}: {error}") from None

    def check_training(self) -> None:
        """What `prepare` has left to check before training begins: here nothing."""

    def _check_countable(self) -> None:
        """Refuse a training part without a single letter that the model emits; looks no further than the first."""
        emitted = self._tokenizer.vocab.is_emitted().numpy()
        for interval in self._intervals["train"]:
            for start in range(interval.start, interval.end, 1 << 20):
                if emitted[self._records[interval.record][start : min(start + (1 << 20), interval.end)]].any():
                    return
        raise ValueError("the training part holds no letter to learn from: every one is unknown (N)")

    def split_records(self, names: list[str], lengths: list[int]) -> dict[str, list[Interval]]:
        """The intervals of each part."""
        return self.split(names, lengths)

    def setup(self, stage: str | None = None) -> None:
        """Lightning's name for `prepare`."""
        self.prepare()

    @property
    def names(self) -> list[str]:
        """Names of the records."""
        self.prepare()
        return self._names

    @property
    def records(self) -> list[NDArray[Any]]:
        """Token ids of each record: arrays `(length,)`."""
        self.prepare()
        return self._records

    @property
    def tokenizer(self) -> DNATokenizer | CharTokenizer:
        """Letters to ids and back."""
        self.prepare()
        return self._tokenizer

    @property
    def vocab(self) -> Vocab:
        """What the model needs to know of the alphabet."""
        return self.tokenizer.vocab

    @property
    def intervals(self) -> dict[str, list[Interval]]:
        """Intervals of "train", "valid" and "test"."""
        self.prepare()
        return self._intervals

    @property
    def digest(self) -> str:
        """SHA-256 of the data, which a resumed run compares."""
        raise NotImplementedError

    def sequences(self, split: str) -> list[NDArray[Any]]:
        """Token ids of each interval of a part: arrays `(end - start,)`."""
        return [self.records[i.record][i.start : i.end] for i in self._part(split)]

    def train_windows(self) -> RandomWindows:
        """The training windows as a dataset."""
        intervals = self._part("train")
        return UniformWindows(self.records, intervals, self.length, self._epoch_size(), self.vocab, self.seed, self.augment_rc)

    def train_batches(self) -> Batches:
        """The training windows as the loader reads them."""
        return self.train_windows()

    def _epoch_size(self) -> int:
        return self.epoch_size or max(1, sum(i.end - i.start for i in self._part("train")) // self.length)

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        """All of a part in windows side by side, of `length` tokens or the module's own."""
        return TiledWindows(self.records, self._part(split), self.length if length is None else length, self.vocab)

    def train_dataloader(self) -> TrainLoader:
        """Batches of random windows; resumable at any batch."""
        rank, world_size, progress = self.rank_and_progress()
        self._loader = TrainLoader(self.train_batches(), self.batch_size, self.num_workers, rank, world_size, progress, self.start_method)
        if self._resume is not None:
            self._loader.load_state_dict(self._resume)
            self._resume = None
        return self._loader

    def rank_and_progress(self) -> tuple[int, int, Callable[[], tuple[int, float]] | None]:
        """The number of this process, that of all, and how many batches of the epoch training has finished and how many there are."""
        trainer = self.trainer
        if trainer is None:
            return 0, 1, None

        # After Ctrl-C the batch being worked on has left the loader, but is not trained on.
        def progress() -> tuple[int, float]:
            return trainer.fit_loop.epoch_loop.batch_progress.current.processed, trainer.num_training_batches

        return trainer.global_rank, trainer.world_size, progress

    def state_dict(self) -> dict[str, Any]:
        """Where the training windows go on; Lightning saves it in checkpoints."""
        # Lightning saves the loader's state too, but does not give it back to a run saved at the end of an epoch.
        return {} if self._loader is None else {"train_loader": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next training loader go on where the state was saved."""
        self._resume = state_dict.get("train_loader")

    def val_dataloader(self) -> DataLoader:
        """Batches of validation tiles, the same every time."""
        tiles = self.test_windows("valid")
        count = min(len(tiles), self.max_valid_windows)
        chosen = np.linspace(0, len(tiles) - 1, count).round().astype(int).tolist()
        workers = {"num_workers": self.num_workers, "multiprocessing_context": self.start_method if self.num_workers else None}
        return DataLoader(Subset(tiles, chosen), batch_size=self.batch_size, **workers)

    def describe(self) -> dict[str, Any]:
        """What every reported number must name: plain values, ready for JSON."""
        sizes = {part: [i.end - i.start for i in intervals] for part, intervals in self.intervals.items()}
        held_out = {part: sorted({self.names[i.record] for i in self.intervals[part]}) for part in ("valid", "test")}
        return {
            "name": self.name,
            "path": ", ".join(self.paths),
            "records": len(self.names),
            "tokens": sum(len(r) for r in self.records),
            "split": self.split.describe(),
            "split_hash": split_hash(self.intervals, self.names),
            "split_tokens": {part: sum(each) for part, each in sizes.items()},
            "too_short_tokens": {part: sum(n for n in each if n < self.length) for part, each in sizes.items()},
            "held_out_records": {part: names[:20] for part, names in held_out.items()},
            "window": self.length,
            "n_policy": self.n_policy,
        }

    def _part(self, split: str) -> list[Interval]:
        if split not in self.intervals:
            raise ValueError(f"split is {split!r}; expected one of {', '.join(self.intervals)}")
        return self.intervals[split]


def check_share(key: str, value: Any) -> None:
    """Refuse what is no number from 0 to 1.

    Raises:
        ValueError: naming the key.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{key} is {value!r}; set data.{key} to a share from 0 to 1")


def expect_dna(tokenizer: Any, name: str) -> None:
    """What `expect` means for DNA, which has one alphabet."""
    if tokenizer != DNATokenizer():
        raise ValueError(
            f"the model was trained on {tokenizer.name}, these data are DNA ({name}); choose data or a model of the same vocabulary"
        )
