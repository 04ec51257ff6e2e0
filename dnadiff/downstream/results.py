"""A folder that keeps every finished prediction, so that a study survives an interruption and several processes share it.

    FOLDER/TASK/MODEL-sSEED-DIGEST.npz    log-probabilities of the tested items, with the seconds they took
    FOLDER/results.csv                    one line for each of them: metrics and where they came from
    FOLDER/results.json                   the summary of each task, written by whoever finishes it

The digest covers items, protocol, model settings and version: anything else is computed afresh and kept beside.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import json
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dnadiff.data.cache import locked
from dnadiff.data.files import atomic_write, write_json
from dnadiff.downstream.items import TaskData
from dnadiff.downstream.metrics import METRICS, Scored, values

COLUMNS = ("task", "model", "seed", "protocol", "train", "test", *METRICS, "seconds", "digest", "finished", "host", "dnadiff", "torch")
Compute = Callable[[], "tuple[Tensor, list[dict[str, Any]]]"]


class Prediction(NamedTuple):
    """What one model predicts with one seed.

    Attributes:
        log_probs: (S, C) of the tested items.
        seconds: that learning and predicting took.
        found: for each round what the model reports of itself, such as settings tried on validation.
    """

    log_probs: Tensor
    seconds: float
    found: list[dict[str, Any]]


class Unkept:
    """No folder: every prediction is computed, none is kept."""

    def get(self, data: TaskData, model: str, seed: int, about: Mapping[str, Any], labels: Tensor, compute: Compute) -> Prediction:
        """Computed now."""
        start = time.monotonic()
        log_probs, found = compute()
        return Prediction(log_probs, time.monotonic() - start, found)

    def summarise(self, task: str, result: Mapping[str, Any]) -> None:
        """Nothing."""


class ResultsFolder:
    """Predictions kept in a folder.

    Args:
        folder: made if it does not exist.
        provenance: written with each prediction and summary, such as checkpoint and command.
        version: of this package.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, Any], version: str) -> None:
        self.folder, self.provenance, self.version = Path(folder).expanduser(), dict(provenance), version

    def get(self, data: TaskData, model: str, seed: int, about: Mapping[str, Any], labels: Tensor, compute: Compute) -> Prediction | None:
        """Kept before, or computed and kept now; None while another process computes it.

        Args:
            data: the task; its items are part of the digest.
            model: its name.
            seed: of the run.
            about: all that the predictions depend on besides.
            labels: of the tested items (S,).
            compute: gives log-probabilities (S, C) and what was found on the way.
        """
        digest = digest_of(data, {"model": model, "seed": seed, "version": self.version, **about})
        path = self.folder / slug(data.name) / f"{slug(model)}-s{seed}-{digest}.npz"
        if path.is_file():
            return self._known(path, data, model, seed, about, labels, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock")
        with locked(lock, wait=False) as mine:
            if mine is False:
                return None
            try:
                if path.is_file():  # finished between the look and the lock
                    return self._known(path, data, model, seed, about, labels, digest)
                new = Unkept().get(data, model, seed, about, labels, compute)
                save(path, new, labels, {**about, **self.provenance, "model": model, "seed": seed})
                self._list(data, model, seed, about, new, labels, digest)
            finally:
                if mine:
                    lock.unlink(missing_ok=True)
        return new

    def _known(
        self, path: Path, data: TaskData, model: str, seed: int, about: Mapping[str, Any], labels: Tensor, digest: str
    ) -> Prediction:
        """A prediction kept before. Its line is added if it is missing: a process may be killed between prediction and line."""
        kept = load(path)[0]
        self._list(data, model, seed, about, kept, labels, digest)
        return kept

    def _list(
        self,
        data: TaskData,
        model: str,
        seed: int,
        about: Mapping[str, Any],
        new: Prediction,
        labels: Tensor,
        digest: str,
    ) -> None:
        """Give the prediction its line in `results.csv`, unless it has one."""
        extra = tuple(self.provenance)
        row = {
            "task": data.name,
            "model": model,
            "seed": seed,
            "protocol": about.get("protocol", ""),
            "train": len(data.train),
            "test": len(labels),
            **{name: f"{value:.6g}" for name, value in values(Scored(new.log_probs.numpy(), labels.numpy())).items()},
            "seconds": f"{new.seconds:.1f}",
            "digest": digest,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "dnadiff": self.version,
            "torch": torch.__version__,
            **self.provenance,
        }
        with locked(self.folder / ".results.lock"):
            if digest not in listed_digests(self.folder / "results.csv"):
                append_row(self.folder / "results.csv", row, (*COLUMNS, *extra))

    def summarise(self, task: str, result: Mapping[str, Any]) -> None:
        """Put the summary of a task into `results.json`, beside those of others."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".results.lock"):
            path = self.folder / "results.json"
            known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            write_json(path, known | {task: {**self.provenance, **result}})


def listed_digests(path: Path) -> set[str]:
    """The digests that a table of results has lines for; none if there is no table."""
    if not path.is_file():
        return set()
    with path.open(encoding="utf-8", newline="") as file:
        return {row.get("digest") or "" for row in csv.DictReader(file)}


def append_row(path: Path, row: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Add a line to a table that the caller has locked; one that has other columns is written anew with those of both."""
    known: list[dict[str, str]] = []
    header = list(columns)
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = list(reader.fieldnames or ())
            missing = [name for name in columns if name not in header]
            known = list(reader) if missing else []
            header += missing
        if not missing:
            with path.open("rb") as file:  # a line cut short, or written in an editor, may lack its end
                file.seek(-1, io.SEEK_END)
                whole = file.read() == b"\n"
            with path.open("a", encoding="utf-8", newline="") as file:
                file.write("" if whole else "\n")
                csv.DictWriter(file, header, lineterminator="\n").writerow(row)
            return
    text = io.StringIO()
    writer = csv.DictWriter(text, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*known, row])
    with atomic_write(path, overwrite=True) as file:
        file.write(text.getvalue().encode())


def save(path: Path, prediction: Prediction, labels: Tensor, about: Mapping[str, Any]) -> None:
    """Write a prediction, wholly or not at all."""
    whole = json.dumps({**about, "found": prediction.found}, default=str)
    with atomic_write(path, overwrite=True) as file:
        np.savez_compressed(file, log_probs=prediction.log_probs.numpy(), labels=labels.numpy(), seconds=prediction.seconds, about=whole)


def load(path: Path) -> tuple[Prediction, Tensor]:
    """What `save` wrote: the prediction and the labels of its items."""
    with np.load(path) as kept:
        found = json.loads(str(kept["about"])).get("found", [])
        return Prediction(torch.from_numpy(kept["log_probs"]), float(kept["seconds"]), found), torch.from_numpy(kept["labels"])


def digest_of(data: TaskData, about: Mapping[str, Any]) -> str:
    """12 hexadecimal digits that change with any item, label, division or entry of `about`."""
    whole = hashlib.sha256(json.dumps([data.classes, data.stranded, about], sort_keys=True, default=str).encode())
    for items in (data.train, data.valid, data.test):
        for tensor in (items.ids, items.lengths, items.labels, items.groups):
            whole.update(b"none" if tensor is None else f"{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
    return whole.hexdigest()[:12]


def slug(name: str) -> str:
    """The name with only letters, digits, dot, dash and underscore, for a file.

    >>> slug("6-mer logistic regression")
    '6-mer_logistic_regression'
    """
    return re.sub(r"[^\w.-]+", "_", name)
