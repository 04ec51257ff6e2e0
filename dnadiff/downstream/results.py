"""A folder of finished predictions: a study can be interrupted and resumed, or shared by several processes.

Log-probabilities are in FOLDER/TASK/MODEL-sSEED-DIGEST.npz, their metrics and provenance in FOLDER/results.csv, and the summaries of
finished tasks in FOLDER/results.json. The digest covers items, protocol, model settings, and the code with its libraries (`code_version`).
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
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.checks import expand_user
from dnadiff.config import Json
from dnadiff.data.arrays import read_npz
from dnadiff.data.cache import locked
from dnadiff.data.csv_file import read_csv
from dnadiff.data.files import append, atomic_write, write_json
from dnadiff.data.structured import json_object, read_json
from dnadiff.downstream.items import TaskData
from dnadiff.downstream.metrics import METRICS, ScoredPredictions, compute_metrics

COLUMNS = ("task", "model", "seed", "protocol", "train", "test", *METRICS, "seconds", "digest", "finished", "host")
Compute = Callable[[], tuple[Tensor, list[dict[str, Json]]]]


class Prediction(NamedTuple):
    """Log-probabilities (S, C) of the tested items, the seconds for fitting and predicting, and `TaskModel.fit_info` of each round."""

    log_probs: Tensor
    seconds: float
    fit_info: list[dict[str, Json]]


class Job(NamedTuple):
    """What a prediction is made from; `about` is everything else that it depends on, `labels (S,)` those of the tested items."""

    data: TaskData
    model: str
    seed: int
    about: dict[str, Json]
    labels: Tensor


class Results:
    """Computes every prediction and stores none."""

    def get_or_compute(self, job: Job, compute: Compute) -> Prediction | None:
        """The stored prediction, or a new one; None while another process is computing it.

        `compute` returns log-probabilities (S, C) and the `fit_info` of each round.
        """
        start = time.monotonic()
        log_probs, fit_info = compute()
        return Prediction(log_probs, time.monotonic() - start, fit_info)

    def write_summary(self, task: str, result: Mapping[str, Json]) -> None:
        """Store the summary of a task."""


class ResultsFolder(Results):
    """Stores predictions and summaries in a folder, with `provenance` (such as checkpoint and command) in each of them.

    Predictions of another `version`, the `code_version` that computes them, are not reused.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, object], version: Mapping[str, str]) -> None:
        self.folder, self.provenance, self.version = expand_user(folder), dict(provenance), dict(version)

    @override
    def get_or_compute(self, job: Job, compute: Compute) -> Prediction | None:
        digest = compute_digest(job.data, {"model": job.model, "seed": job.seed, "version": self.version, **job.about})
        path = self.folder / slug(job.data.name) / f"{slug(job.model)}-s{job.seed}-{digest}.npz"
        lock = path.with_suffix(".lock")
        if path.is_file():
            lock.unlink(missing_ok=True)  # of a killed process; with the prediction it protects nothing
            return self._load(path, job, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait=False) as acquired:
            if acquired is False:
                return None
            try:
                if path.is_file():  # finished after the first check and before the lock was acquired
                    return self._load(path, job, digest)
                prediction = super().get_or_compute(job, compute)
                assert prediction is not None  # computed here
                save_prediction(
                    path, prediction, job.labels, {**job.about, **self.version, **self.provenance, "model": job.model, "seed": job.seed}
                )
                self._add_row(job, prediction, digest)
            finally:
                if acquired:
                    lock.unlink(missing_ok=True)
        return prediction

    def _load(self, path: Path, job: Job, digest: str) -> Prediction:
        """A stored prediction. Its row is added if missing: a process may be killed between writing the two."""
        prediction, labels = load_prediction(path)
        if not torch.equal(labels, job.labels):
            raise ValueError(f"{path} has other items than the task {job.data.name}; remove it, and it is computed again")
        self._add_row(job, prediction, digest)
        return prediction

    def _add_row(self, job: Job, prediction: Prediction, digest: str) -> None:
        metrics = compute_metrics(ScoredPredictions(prediction.log_probs.numpy(), job.labels.numpy()))
        row = {
            "task": job.data.name,
            "model": job.model,
            "seed": job.seed,
            "protocol": job.about.get("protocol", ""),
            "train": len(job.data.train),
            "test": len(job.labels),
            **{name: f"{value:.6g}" for name, value in metrics.items()},
            "seconds": f"{prediction.seconds:.1f}",
            "digest": digest,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            **self.version,
            **self.provenance,
        }
        with locked(self.folder / ".results.lock"):
            if digest not in listed_digests(self.folder / "results.csv"):
                append_row(self.folder / "results.csv", row, (*COLUMNS, *self.version, *self.provenance))

    @override
    def write_summary(self, task: str, result: Mapping[str, Json]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".results.lock"):
            path = self.folder / "results.json"
            known = read_json(path) if path.is_file() else {}
            write_json(path, known | {task: {**self.provenance, **result}})


def listed_digests(path: Path) -> set[str]:
    """The digests in a table of results; an empty set if there is no table. ValueError if it is damaged."""
    header, rows = read_csv(path) if path.is_file() else ([], [])
    if header and "digest" not in header:
        raise ValueError(f"{path} has no column digest; it is not a table of results: remove it, or choose another folder")
    return {row["digest"] for row in rows}


def append_row(path: Path, row: Mapping[str, object], columns: Sequence[str]) -> None:
    """Append a row to a CSV file that the caller has locked. If columns or the last line break are missing, the file is rewritten with them.

    Raises:
        ValueError: if the file is damaged.
    """
    header, known = read_csv(path) if path.is_file() else ([], [])
    missing = [name for name in columns if name not in header]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*header, *missing], restval="", lineterminator="\n")
    if header and not missing and path.read_bytes().endswith(b"\n"):
        writer.writerow(row)
        append(path, text.getvalue().encode())
        return
    writer.writeheader()
    writer.writerows([*known, row])
    with atomic_write(path, overwrite=True) as file:
        file.write(text.getvalue().encode())


def save_prediction(path: Path, prediction: Prediction, labels: Tensor, about: Mapping[str, object]) -> None:
    """Write a prediction atomically."""
    description = json.dumps({**about, "found": prediction.fit_info}, default=str)
    with atomic_write(path, overwrite=True) as file:
        np.savez_compressed(
            file, log_probs=prediction.log_probs.numpy(), labels=labels.numpy(), seconds=prediction.seconds, about=description
        )


def load_prediction(path: Path) -> tuple[Prediction, Tensor]:
    """Read what `save_prediction` wrote: the prediction and the labels of its items; a ValueError if the file is damaged."""
    stored = read_npz(path, ("about", "log_probs", "labels", "seconds"))
    log_probs, labels, seconds = stored["log_probs"], stored["labels"], stored["seconds"]
    fit_info = json_object(str(stored["about"]), path).get("found", [])
    fits = log_probs.ndim == 2 and log_probs.dtype.kind == "f" and labels.dtype.kind == "i" and labels.shape == log_probs.shape[:1]
    if not fits or seconds.shape or seconds.dtype.kind != "f" or not isinstance(fit_info, list):
        raise ValueError(f"{path} is damaged: not the arrays of a prediction; remove it, and it is computed again")
    return Prediction(torch.from_numpy(log_probs), float(seconds), fit_info), torch.from_numpy(labels)


def compute_digest(data: TaskData, about: Mapping[str, object]) -> str:
    """12 hexadecimal digits that change with any item, label, division or entry of `about`."""
    digest = hashlib.sha256(json.dumps([data.classes, data.stranded, about], sort_keys=True, default=str).encode())
    for items in (data.train, data.valid, data.test):
        for tensor in (items.ids, items.lengths, items.labels, items.groups):
            digest.update(b"none" if tensor is None else f"{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def weights_digest(network: torch.nn.Module) -> str:
    """12 hexadecimal digits that change with any weight of the network."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def slug(name: str) -> str:
    """The name as part of a file name: only letters, digits, dot, dash and underscore."""
    return re.sub(r"[^\w.-]+", "_", name)
