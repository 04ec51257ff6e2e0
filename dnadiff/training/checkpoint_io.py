"""Reading and writing the checkpoint files of a training run."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from typing_extensions import override

from dnadiff.config import Config
from dnadiff.store.disk import atomic_write
from dnadiff.training.data_module import with_current_state
from dnadiff.weights import shards

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints atomically, next to their target: a killed run leaves the old file or the
    new one. Damaged files are refused."""

    @override
    def save_checkpoint(
        self, checkpoint: Config, path: str | os.PathLike[str], storage_options: object = None
    ) -> None:
        with atomic_write(Path(path), overwrite=True, size=lambda: _size(checkpoint)) as file:
            torch.save(checkpoint, file)
        shards.remove(Path(path))  # of a run with another strategy

    @override
    def load_checkpoint(  # type: ignore[override]  # tensors arrive on the CPU, and no code in the file runs, whatever is asked
        self,
        path: str | os.PathLike[str],
        map_location: object = None,
        weights_only: bool | None = None,
    ) -> Config:
        return with_current_state(shards.read(Path(path)))


def _size(checkpoint: Config) -> int:
    """Bytes of a checkpoint in a file."""
    counter = _Counter()
    torch.save(checkpoint, counter)
    return counter.size


class _Counter(io.BytesIO):
    size = 0

    @override
    def write(self, data: ReadableBuffer, /) -> int:
        count = memoryview(data).nbytes
        self.size += count
        return count
