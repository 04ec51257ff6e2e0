"""The loggers of a training run: `metrics.csv`, and any of Lightning's loggers that the
configuration adds."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import Logger

from dnadiff.fields import Json
from dnadiff.formats.table import read_log
from dnadiff.store.disk import append, write_bytes
from dnadiff.store.objects import build, locate

if TYPE_CHECKING:
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
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: object, *args: object, **kwargs: object) -> None:
        """Nothing: the run folder holds config.yaml instead."""

    def begin(self, module: DiffusionModule, step: int) -> None:
        """Start the file; on resume, drop the rows after the step of the checkpoint."""
        self.module, self.start = module, time.monotonic()
        is_resumed = step and self.path.is_file()
        rows = [row for row in self.rows() if float(row["step"]) <= step] if is_resumed else []
        self.previous_seconds = float(rows[-1]["seconds"]) if rows else 0.0
        self._write(rows)

    def _write(self, rows: Sequence[dict[str, str]]) -> None:
        write_bytes(self.path, _lines(dict(zip(COLUMNS, COLUMNS)), *rows))

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

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        found = {name.replace("/", "_"): f"{float(value):.6g}" for name, value in metrics.items()}
        row = {column: text for column, text in found.items() if column in COLUMNS}
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
        append(self.path, _lines(row))


def _lines(*rows: dict[str, str]) -> bytes:
    text = io.StringIO(newline="")
    csv.DictWriter(text, COLUMNS).writerows(rows)
    return text.getvalue().encode()


def build_loggers(
    config: Mapping[str, Json], run_dir: Path, resumed: bool, writes: bool = True
) -> list[Logger]:
    """The loggers of a run, `MetricsFile` first: resuming and the final table read it, so that
    every run has it.

    Args:
        config: names and configurations, as `logger=[csv,tensorboard]` composes them; None leaves
            one out.
        resumed: whether the run continues one that was logged before. The classes of this module
            continue its record.
        writes: whether this process writes logs; of several, one does.

    Raises:
        ValueError: if one cannot be built, such as without its package.
    """
    if "_target_" in config:  # a run of version 0.2, which had one logger
        config = {"csv": config}
    found: list[Logger] = [MetricsFile(run_dir)]
    for name, entry in config.items() if writes else ():
        if not entry or locate(entry["_target_"], None) is MetricsFile:
            continue
        own = str(entry["_target_"]).startswith(f"{__name__}.")
        more = {"folder": run_dir, "resumed": resumed} if own else {}
        try:
            logger = build(entry, **more, trust=None)
        except ModuleNotFoundError as error:
            extra = str(entry["_target_"]).rpartition(".")[2].lower()
            reason = " ".join(str(error).split())
            raise ValueError(
                f"logger={extra} needs a package that is not installed ({reason}): pip install -e "
                f"'.[{extra}]' in the checkout"
            ) from None
        if not isinstance(logger, Logger):
            raise ValueError(
                f"logger.{name} is a {type(logger).__name__}; name a class of "
                "lightning.pytorch.loggers or one of your own"
            )
        found.append(logger)
    return found


class TensorBoard(loggers.TensorBoardLogger):
    """Event files in `tensorboard/` of the run folder; `tensorboard --logdir runs` shows all runs.
    A resumed run adds a file."""

    def __init__(self, folder: str | Path = ".", resumed: bool = False) -> None:
        super().__init__(folder, name="", version="tensorboard", default_hp_metric=False)


class WandB(loggers.WandbLogger):
    """A run of Weights & Biases, with its local files in `wandb/` of the run folder. A resumed run
    has the same id.

    Args:
        project, entity, group, tags: as in `wandb.init`.
        name: of the run; by default that of the run folder.
        offline: keep everything on this machine; `wandb sync` uploads it later.

    Raises:
        ModuleNotFoundError: without the package.
        ValueError: online without a valid API key.
    """

    def __init__(
        self,
        folder: str | Path = ".",
        resumed: bool = False,
        project: str = "dnadiff",
        entity: str | None = None,
        group: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        offline: bool = False,
    ) -> None:
        local = offline or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
        import wandb

        if not local and not wandb.login(prompt=False):  # compares a key with the server
            raise ValueError(
                "logger=wandb found no API key: run `wandb login`, set WANDB_API_KEY, or keep "
                "the run here with logger.wandb.offline=true"
            )
        super().__init__(
            name=name or Path(folder).absolute().name,
            save_dir=folder,
            version=self.run_id(Path(folder)) if resumed else None,
            offline=local,
            project=project,
            entity=entity,
            group=group,
            tags=list(tags),
            resume="allow" if resumed and not local else None,
            mode="offline" if offline else None,
        )

    @staticmethod
    def run_id(folder: Path) -> str | None:
        """The id of the last run that was logged in a folder; W&B writes it at the end of the name
        of its files."""
        files = sorted(
            (folder / "wandb").glob("*run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime
        )
        return files[-1].stem.removeprefix("run-") if files else None


class MLflow(loggers.MLFlowLogger):
    """A run of MLflow, which a resumed run continues.

    Args:
        experiment_name: of MLflow.
        tracking_uri: of the server; by default the environment variable MLFLOW_TRACKING_URI, or
            else a database in the run folder.
        run_name: by default the name of the run folder.

    Raises:
        ModuleNotFoundError: without the package.
        OSError: if the server does not answer.
    """

    def __init__(
        self,
        folder: str | Path = ".",
        resumed: bool = False,
        experiment_name: str = "dnadiff",
        tracking_uri: str | None = None,
        run_name: str | None = None,
    ) -> None:
        path = Path(folder).absolute()
        uri = (
            tracking_uri
            or os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{path / 'mlflow.db'}"
        )
        super().__init__(
            experiment_name, run_name or path.name, uri, tags={self.TAG: self.tag_of(path)}
        )
        if resumed:
            self._run_id = self.previous(self.tag_of(path))

    TAG = "dnadiff.run_dir"

    @staticmethod
    def tag_of(folder: Path) -> str:
        """The name of a folder in a tag. MLflow's filters have no escape for quotes and
        backslashes."""
        return str(folder).translate({ord(letter): f"%{ord(letter):02X}" for letter in "'\"\\"})

    def previous(self, folder: str) -> str | None:
        """The id of the newest run with this tag of a folder."""
        experiment = self._mlflow_client.get_experiment_by_name(self._experiment_name)
        if experiment is None:
            return None
        runs = self._mlflow_client.search_runs(
            [experiment.experiment_id], f"tags.`{self.TAG}` = '{folder}'", max_results=1
        )
        return runs[0].info.run_id if runs else None
