"""Batches of training windows that can be left at any batch and taken up there again.

Lightning saves the state of an iterable that has `state_dict`; this one says how many batches of the epoch are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from dnadiff.data.windows import TrainWindows


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
    """

    def __init__(
        self,
        windows: TrainWindows,
        batch_size: int,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        progress: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        self.windows, self.batch_size, self.num_workers = windows, batch_size, num_workers
        self.rank, self.world_size, self.progress = rank, world_size, progress
        self.num_batches = -(-len(windows) // (batch_size * world_size))
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
        keys = [self._keys(batch) for batch in range(first, self.num_batches)]
        # Its own generator: a loader otherwise draws from the global one, and resuming would shift dropout.
        loader = DataLoader(self.windows, batch_sampler=keys, num_workers=self.num_workers, generator=torch.Generator())
        for number, batch in enumerate(loader, start=first + 1):
            self._handed_out = number
            yield batch

    def _keys(self, batch: int) -> list[tuple[int, int]]:
        first = (batch * self.world_size + self.rank) * self.batch_size
        return [(self.epoch, index) for index in range(first, first + self.batch_size)]
