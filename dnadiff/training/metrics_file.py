"""The logger of a training run: one table with a row for each logged step."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.loggers.logger import Logger
from typing_extensions import override

from dnadiff.data.csv_file import read_log
from dnadiff.store.disk import append, atomic_write
from dnadiff.training.module import DiffusionModule

COLUMNS = (
    "step",
    "tokens",
    "seconds",
    "train_loss",
    "train_nll",
    "lr",
    "valid_nll",
    "valid_nll_live",
    "clip_low",
    "clip_high",
)


class MetricsFile(Logger):
    """`metrics.csv` in `folder`, with one row per logged step, appended to on resume (Lightning's
    CSV logger deletes it).

    A training step that was logged is not logged again.

    Columns: step (optimizer steps done), tokens seen, seconds of training, train_loss, train_nll,
        lr, valid_nll (averaged weights), valid_nll_live, clip_low and clip_high (`ClipSearch`).
        Losses are in nats per token; cells are empty where nothing was measured.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.csv"
        self.module: DiffusionModule | None = None
        self.previous_seconds = 0.0
        self.start = time.monotonic()
        self._logged_step = -1

    @property
    @override
    def name(self) -> str:
        return "metrics"

    @property
    @override
    def version(self) -> str:
        return ""

    @override
    def log_hyperparams(self, params: object, *args: object, **kwargs: object) -> None:
        """Nothing: the run folder holds config.yaml instead."""

    def begin(self, module: DiffusionModule, step: int) -> None:
        """Start the file; on resume, drop the rows after the step of the checkpoint."""
        self.module, self.start = module, time.monotonic()
        rows = (
            [row for row in self.rows() if float(row["step"]) <= step]
            if step and self.path.is_file()
            else []
        )
        self.previous_seconds = float(rows[-1]["seconds"]) if rows else 0.0
        self._write(rows)

    def _write(self, rows: Sequence[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        with atomic_write(self.path, overwrite=True) as file:
            file.write(text.getvalue().encode())

    def remove_validation(self, step: int) -> None:
        """Drop the validation at a step, which a resumed run repeats."""
        self._write(
            [row for row in self.rows() if int(row["step"]) != step or not row["valid_nll"]]
        )

    def rows(self) -> list[dict[str, str]]:
        """The rows written so far, without a last one that was cut.

        Raises:
            ValueError: if the file is damaged.
        """
        return read_log(self.path, COLUMNS, ("step", "seconds"))

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before a resume."""
        return self.previous_seconds + time.monotonic() - self.start

    @override
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        names = {name: name.replace("/", "_") for name in metrics}
        row = {
            column: f"{float(metrics[name]):.6g}"
            for name, column in names.items()
            if column in COLUMNS
        }
        if not row or self.module is None:
            return
        if "train_loss" in row:
            if step == self._logged_step:
                return
            self._logged_step = -1 if step is None else step
        row |= {
            "step": str((step or 0) + 1),
            "tokens": str(self.module.tokens_seen),
            "seconds": f"{self.seconds:.1f}",
        }
        text = io.StringIO(newline="")
        csv.DictWriter(text, COLUMNS).writerow(row)
        append(self.path, text.getvalue().encode())
