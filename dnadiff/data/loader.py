"""A loader of training batches whose position can be saved and restored at any batch.

Lightning saves the state of an iterable that has `state_dict`; the state is the number of finished
batches of the epoch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

_FURTHER = 1 << 32  # added to the number of an epoch for its batches after all windows
_WORKER = re.compile(
    r"DataLoader worker \(pid.*?\) (is killed by signal: [\w ]+|exited unexpectedly)"
)

Batch: TypeAlias = dict[str, Tensor]
LoaderState: TypeAlias = dict[str, int]


class BatchSource(Protocol):
    """What a loader reads from: `RandomWindows`, `ShortSequences`. The loader rounds `size` up to
    full batches."""

    size: int

    def batch(self, epoch: int, first: int, count: int, step: int = 1) -> Batch:
        """The `count` windows `first`, `first + step`, ... of an epoch, collated."""


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


class TrainLoader:
    """Windows in full batches; each iteration is one epoch, and the next iteration is the next
    epoch.

    Row r of batch b is window (b * batch_size + r) * world_size + rank: ranks share an epoch, no
    window occurs twice, and batch b of all ranks together has the windows that one process with the
    same global batch has in it. An epoch has `len(self)` batches, enough for all windows of the
    dataset; the last batch is completed with further windows. The last optimizer step of an epoch
    is completed with further batches, of an epoch that is used for nothing else, because Lightning
    would otherwise take a smaller step.

    Args:
        windows: the dataset; its size is rounded up to full batches.
        batch_size: windows in a batch, on this rank.
        num_workers: processes that cut windows; 0 cuts them in this process. Batches do not depend
            on it.
        rank, world_size, progress, accumulated: see `ProcessRank`.
        start_method: how workers start, `fork`, `spawn` or `forkserver`; None: the default of the
            system.
    """

    def __init__(
        self,
        windows: BatchSource,
        batch_size: int,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        progress: Callable[[], tuple[int, float]] | None = None,
        accumulated: int = 1,
        start_method: str | None = None,
    ) -> None:
        self.windows, self.batch_size, self.num_workers, self.start_method = (
            windows,
            batch_size,
            num_workers,
            start_method,
        )
        self.rank, self.world_size, self.progress, self.accumulated = (
            rank,
            world_size,
            progress,
            accumulated,
        )
        self.num_full = -(-windows.size // (batch_size * world_size))  # with all windows
        windows.size = self.num_full * batch_size * world_size
        self.num_batches = -(-self.num_full // accumulated) * accumulated
        self.epoch = 0
        self._returned = 0  # batches of this epoch, including those before a resume
        self._resumed = False

    def state_dict(self) -> LoaderState:
        """Where training resumes: the epoch, and the number of its finished batches. An optimizer
        step is never resumed in its middle."""
        done, end = (self._returned, self.num_batches) if self.progress is None else self.progress()
        done = min(done, self._returned) // self.accumulated * self.accumulated
        return (
            {"epoch": self.epoch, "batch": done}
            if done < end
            else {"epoch": self.epoch + 1, "batch": 0}
        )

    def load_state_dict(self, state: LoaderState) -> None:
        """Resume from a saved state in the next iteration."""
        self.epoch, self._returned = (
            state["epoch"],
            state["batch"] // self.accumulated * self.accumulated,
        )
        self._resumed = True

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        # A generator, because Lightning creates iterators that it never uses. Epochs are counted
        # here, because Lightning's own count advances by an empty epoch when a run resumes from the
        # end of one.
        if not self._resumed and self._returned:
            self.epoch, self._returned = self.epoch + 1, 0
        self._resumed = False
        first = self._returned
        for number, batch in enumerate(self._batches(first), start=first + 1):
            self._returned = number
            yield batch

    def _batches(self, first: int) -> Iterator[Batch]:
        together = self.batch_size * self.world_size
        keys = [
            (self.epoch + further * _FURTHER, batch * together + self.rank)
            for further, batch in (
                divmod(number, self.num_full) for number in range(first, self.num_batches)
            )
        ]
        reader = _Reader(self.windows, self.batch_size, self.world_size)
        if self.num_workers == 0:
            return map(reader.__getitem__, keys)
        # With a generator of its own: a DataLoader otherwise draws from the global one, and
        # resuming would change the dropout.
        own = Generator()
        context, workers = self.start_method, self.num_workers
        start = own_process_group
        return iter(
            DataLoader(
                reader,
                None,
                sampler=keys,
                num_workers=workers,
                generator=own,
                multiprocessing_context=context,
                worker_init_fn=start,
            )
        )


def own_process_group(worker: int) -> None:
    """Called in a worker process, so that Ctrl-C and the signals of a scheduler reach only the
    process that saves a checkpoint."""
    os.setpgrp()


class _Reader(Dataset[Batch]):
    """Complete batches by (epoch, first window); this object is sent to the workers."""

    def __init__(self, windows: BatchSource, batch_size: int, step: int) -> None:
        self.windows, self.batch_size, self.step = windows, batch_size, step

    @override
    def __getitem__(self, key: tuple[int, int]) -> Batch:
        return self.windows.batch(*key, self.batch_size, self.step)


def worker_loss(error: Exception, num_workers: int) -> str | None:
    """How an error says that a process that loads data ended; None if it does not.

    PyTorch names the process if it notices first. Otherwise the connection through which the
    process sent its batch fails.
    """
    if worker := _WORKER.search(str(error)):
        return " ".join(worker[0].split())
    broken = num_workers > 0 and isinstance(error, (ConnectionError, EOFError))
    return (
        f"the connection to a DataLoader worker failed ({str(error) or type(error).__name__})"
        if broken
        else None
    )
