"""The data of a training run for Lightning's Trainer. Data modules are independent of Lightning,
whose import takes seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import lightning
from typing_extensions import override

from dnadiff.config import Config
from dnadiff.data.loader import LoaderState, ProcessRank

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule


class TrainingData(lightning.LightningDataModule):
    """Batches for training and validation.

    Args:
        data: where they come from.
        processes_per_window: processes that hold a piece each of the same windows (context
            parallelism).
    """

    def __init__(self, data: SequenceDataModule, processes_per_window: int = 1) -> None:
        super().__init__()
        self.data, self.processes_per_window = data, processes_per_window

    @override
    def setup(self, stage: str | None = None) -> None:
        self.data.prepare()

    @override
    def train_dataloader(self) -> Iterable[object]:
        trainer, pieces = self.trainer, self.processes_per_window
        assert trainer is not None

        # After Ctrl-C the current batch has left the loader, but the model is not trained on it.
        def progress() -> tuple[int, float]:
            current = trainer.fit_loop.epoch_loop.batch_progress.current
            return current.processed, trainer.num_training_batches  # type: ignore[attr-defined]

        self.data.process = ProcessRank(
            trainer.global_rank // pieces,
            trainer.world_size // pieces,
            progress,
            trainer.accumulate_grad_batches,
        )
        return self.data.train_dataloader()

    @override
    def val_dataloader(self) -> Iterable[object]:
        return self.data.val_dataloader()

    @override
    def state_dict(self) -> dict[str, LoaderState]:
        # Lightning saves the loader's state too, but does not restore it for a run that was saved
        # at the end of an epoch.
        return self.data.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, LoaderState]) -> None:
        self.data.load_state_dict(state_dict)


def with_current_state(checkpoint: Config) -> Config:
    """The contents of a checkpoint with the state of `TrainingData`, which older versions saved
    under the name of the data's class."""
    found = next(
        (
            value
            for value in checkpoint.values()
            if isinstance(value, dict) and "train_loader" in value
        ),
        None,
    )
    return checkpoint if found is None else {TrainingData.__qualname__: found, **checkpoint}


def saved_position(checkpoint: Config) -> LoaderState | None:
    """The `epoch` and the `batch` in it with which a resumed run begins; None if the checkpoint has
    no state of `TrainingData`."""
    state: dict[str, LoaderState] = with_current_state(checkpoint).get(
        TrainingData.__qualname__, {}
    )
    return state.get("train_loader")
