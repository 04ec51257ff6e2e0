"""Batches of training windows that can be left at any batch and taken up there again.

Lightning saves the state of an iterable that has `state_dict`; this one says how many batches of the epoch are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset


class Batches(Protocol):
    """What a loader reads: `RandomWindows`, `ShortSequences`. Its size is rounded up to whole batches by the loader."""

    size: int

    def batch(self, epoch: int, first: int, count: int) -> dict[str, torch.Tensor]:
        """Windows `first` up to `first + count` of an epoch, collated."""
        ...


class TrainLoader:
    """Windows in whole batches; each iteration is one epoch, the next iteration the next.

    Row r of batch b holds window (b * world_size + rank) * batch_size + r, so that ranks share an epoch and no window
    occurs twice. An epoch has `len(self)` batches, enough for all windows of the dataset, the last one filled up.

    Args:
        windows: the dataset; its size is rounded up to whole batches.
        batch_size: windows in a batch, on this rank.
        num_workers: processes that cut windows; 0 cuts them here. Batches do not depend on it.
        rank: number of this process.
        world_size: number of processes.
        progress: asked when the state is saved: how many batches of this epoch training has finished, and with how
            many it ends. Without it every batch handed out counts, the one just worked on included.
        start_method: how workers start, `fork`, `spawn` or `forkserver`; None: the system's way.
    """

    def __init__(
        self,
        windows: Batches,
        batch_size: int,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        progress: Callable[[], tuple[int, float]] | None = None,
        start_method: str | None = None,
    ) -> None:
        self.windows, self.batch_size, self.num_workers, self.start_method = windows, batch_size, num_workers, start_method
        self.rank, self.world_size, self.progress = rank, world_size, progress
        self.num_batches = -(-windows.size // (batch_size * world_size))
        windows.size = self.num_batches * batch_size * world_size
        self.epoch = 0
        self._handed_out = 0  # batches of this epoch, those before a resume included
        self._resumed = False

    def state_dict(self) -> dict[str, int]:
        """Where training goes on: epoch, and finished batches of it."""
        done, end = (self._handed_out, self.num_batches) if self.progress is None else self.progress()
        done = min(done, self._handed_out)
        return {"epoch": self.epoch, "batch": done} if done < end else {"epoch": self.epoch + 1, "batch": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where the state was saved."""
        self.epoch, self._handed_out = state["epoch"], state["batch"]
        self._resumed = True

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # A generator, so that the iterators that Lightning makes and drops use up nothing. Epochs are counted here:
        # Lightning's own number moves on by an empty epoch when a run resumes from the end of one.
        if not self._resumed and self._handed_out:
            self.epoch, self._handed_out = self.epoch + 1, 0
        self._resumed = False
        first = self._handed_out
        for number, batch in enumerate(self._batches(first), start=first + 1):
            self._handed_out = number
            yield batch

    def _batches(self, first: int) -> Iterator[dict[str, Any]]:
        keys = [(self.epoch, (batch * self.world_size + self.rank) * self.batch_size) for batch in range(first, self.num_batches)]
        read = _Reader(self.windows, self.batch_size)
        if self.num_workers == 0:
            return map(read.__getitem__, keys)
        # Its own generator: a loader otherwise draws from the global one, and resuming would shift dropout.
        return iter(
            DataLoader(
                read,
                batch_size=None,
                sampler=keys,
                num_workers=self.num_workers,
                generator=torch.Generator(),
                multiprocessing_context=self.start_method,
            )
        )


class _Reader(Dataset):
    """Whole batches by (epoch, first window); what travels to a worker."""

    def __init__(self, windows: Batches, batch_size: int) -> None:
        self.windows, self.batch_size = windows, batch_size

    def __getitem__(self, key: tuple[int, int]) -> dict[str, torch.Tensor]:
        return self.windows.batch(*key, self.batch_size)
