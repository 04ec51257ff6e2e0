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
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnadiff.checkpoint import write_json
from dnadiff.data.files import replacing
from dnadiff.downstream.items import TaskData
from dnadiff.downstream.metrics import METRICS, Scored, values

COLUMNS = ("task", "model", "seed", "protocol", "train", "test", *METRICS, "seconds", "digest", "finished", "host", "dnadiff", "torch")
Compute = Callable[[], Tensor]


class Unkept:
    """No folder: every prediction is computed, none is kept."""

    def get(
        self, data: TaskData, model: str, seed: int, about: Mapping[str, Any], labels: Tensor, compute: Compute
    ) -> tuple[Tensor, float]:
        """Log-probabilities and seconds."""
        start = time.monotonic()
        return compute(), time.monotonic() - start

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

    def get(
        self, data: TaskData, model: str, seed: int, about: Mapping[str, Any], labels: Tensor, compute: Compute
    ) -> tuple[Tensor, float] | None:
        """Log-probabilities and seconds: kept ones, or computed and kept now; None while another process computes them.

        Args:
            data: the task; its items are part of the digest.
            model: its name.
            seed: of the run.
            about: all that the predictions depend on besides.
            labels: of the tested items (S,).
            compute: makes them, (S, C).
        """
        digest = digest_of(data, {"model": model, "seed": seed, "version": self.version, **about})
        path = self.folder / slug(data.name) / f"{slug(model)}-s{seed}-{digest}.npz"
        if path.is_file():
            return _read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock"), wait=False) as mine:
            if not mine:
                return None
            if path.is_file():  # finished between the look and the lock
                return _read(path)
            start = time.monotonic()
            log_probs = compute()
            seconds = time.monotonic() - start
            about = {**about, **self.provenance, "model": model, "seed": seed}
            with replacing(path, overwrite=True) as file:
                np.savez_compressed(
                    file, log_probs=log_probs.numpy(), labels=labels.numpy(), seconds=seconds, about=json.dumps(about, default=str)
                )
            self._append(data, model, seed, about, log_probs, labels, seconds, digest)
        path.with_suffix(".lock").unlink(missing_ok=True)
        return log_probs, seconds

    def _append(
        self,
        data: TaskData,
        model: str,
        seed: int,
        about: Mapping[str, Any],
        log_probs: Tensor,
        labels: Tensor,
        seconds: float,
        digest: str,
    ) -> None:
        extra = tuple(self.provenance)
        row = {
            "task": data.name,
            "model": model,
            "seed": seed,
            "protocol": about.get("protocol", ""),
            "train": len(data.train),
            "test": len(labels),
            **{name: f"{value:.6g}" for name, value in values(Scored(log_probs.numpy(), labels.numpy())).items()},
            "seconds": f"{seconds:.1f}",
            "digest": digest,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "dnadiff": self.version,
            "torch": torch.__version__,
            **self.provenance,
        }
        with locked(self.folder / ".results.lock", wait=True):
            table = self.folder / "results.csv"
            text = io.StringIO()
            writer = csv.DictWriter(text, (*COLUMNS, *extra), lineterminator="\n")
            if not table.is_file():
                writer.writeheader()
            writer.writerow(row)
            with table.open("a", encoding="utf-8", newline="") as file:
                file.write(text.getvalue())

    def summarise(self, task: str, result: Mapping[str, Any]) -> None:
        """Put the summary of a task into `results.json`, beside those of others."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".results.lock", wait=True):
            path = self.folder / "results.json"
            known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            write_json(path, known | {task: {**self.provenance, **result}})


def _read(path: Path) -> tuple[Tensor, float]:
    with np.load(path) as kept:
        return torch.from_numpy(kept["log_probs"]), float(kept["seconds"])


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


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock file; the system frees it if this process dies. Yields whether it is held (always, with `wait`)."""
    import fcntl  # like the cache's: Unix only

    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:  # a file system without locks: two processes may do the same work, and a rename decides
                yield True
                return
            # Its last holder may have removed the file while this one waited: a lock on a file without a name protects nothing.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                yield True
                return
        finally:
            os.close(handle)
