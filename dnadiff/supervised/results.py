"""The weights of a classifier in a safetensors file, identified by its SHA-256: the format has no
checksums of its own."""

from __future__ import annotations

import contextlib
import csv
import datetime
import hashlib
import importlib.metadata
import importlib.resources
import inspect
import io
import json
import logging
import platform
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dnadiff import supervised
from dnadiff.data import tokenizer
from dnadiff.diffusion import draws, vocab
from dnadiff.fields import Json
from dnadiff.formats import nucleotides
from dnadiff.formats.table import read_csv
from dnadiff.genomics import kmers
from dnadiff.networks import backbone, kernels
from dnadiff.renamed import VERSION
from dnadiff.store.address import expand_user
from dnadiff.store.cache import locked
from dnadiff.store.disk import append, atomic_write, json_object, read_json, read_npz, write_json
from dnadiff.supervised.classifier import SequenceClassifier
from dnadiff.supervised.items import Compute, Job, Prediction, TaskData
from dnadiff.supervised.metrics import METRICS, metric_values
from dnadiff.supervised.saved import WeightsFile, write_weights
from dnadiff.training import optim

log = logging.getLogger("dnadiff")


# Given items, division and weights, which have digests of their own, predictions depend on nothing
# else in the package.
SOURCES = tuple(
    module.__name__.removeprefix("dnadiff.").replace(".", "/")
    for module in (
        backbone,
        supervised,
        kernels,
        optim,
        tokenizer,
        nucleotides,
        draws,
        kmers,
        vocab,
    )
)
_SUFFIXES = (".py", ".cpp", ".h")


def code_version(network: type | None = None, config: Json = None) -> dict[str, str]:
    """What the code that computes predictions is identified by: a digest of its sources, and the
    versions of the libraries.

    The digest covers `SOURCES`, also of a package in a zip file, and your own modules of `network`
    and of each `_target_` in `config`, such as a head. Other modules that yours import are not
    covered.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        entry = importlib.resources.files("dnadiff").joinpath(name)
        if not entry.is_dir():
            name, entry = f"{name}.py", importlib.resources.files("dnadiff").joinpath(f"{name}.py")
        for path, content in _files(entry, name):
            digest.update(f"{path}:{len(content)}:".encode() + content)
    own = {network.__module__} if network is not None else set()
    for module in sorted(own | set(_modules(config))):
        if not module.startswith("dnadiff."):
            with contextlib.suppress(OSError, TypeError):  # of a compiled module
                digest.update(inspect.getsource(sys.modules[module]).encode())
    return {
        "dnadiff": VERSION,
        "code": digest.hexdigest()[:12],
        "torch": torch.__version__,
        **{
            name: importlib.metadata.version(name)
            for name in ("lightning", "scikit-learn", "numpy", "scipy")
        },
    }


def _modules(config: Json) -> Iterator[str]:
    """The modules of the `_target_`s of a configuration."""
    if isinstance(config, Mapping):
        parts = str(config.get("_target_", "")).split(".")
        names = (
            ".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)
        )  # a target can be a method of a class
        yield from [name for name in names if name in sys.modules][:1]
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _modules(value)


def _files(entry: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of each source file, in the order of their names."""
    if entry.is_dir():
        for child in sorted(entry.iterdir(), key=lambda child: child.name):
            yield from _files(child, f"{name}/{child.name}")
    elif name.endswith(_SUFFIXES):
        yield name, entry.read_bytes()


# Columns before and after the metrics.
FIRST, LAST = (
    ("task", "model", "seed", "protocol", "train", "train_items", "test"),
    ("seconds", "digest", "finished", "host"),
)
COLUMNS = (*FIRST, *METRICS, *LAST)  # of classification


class ResultsFolder:
    """Stores predictions and summaries in a folder, with `provenance` (such as checkpoint and
    command) in each of them.

    Predictions of another `version`, the `code_version` that computes them, are not reused. Neither
    are those of the models `kept` whose weights are missing or damaged: the network is trained
    again.

    Attributes:
        networks: the weights of each model and seed whose network is kept.
    """

    def __init__(
        self,
        folder: Path,
        provenance: Mapping[str, object],
        version: Mapping[str, str],
        kept: Collection[str] = (),
    ) -> None:
        self.folder, self.provenance, self.version = (
            expand_user(folder),
            dict(provenance),
            dict(version),
        )
        self.kept, self.networks = frozenset(kept), dict[tuple[str, int], WeightsFile]()

    def get_or_compute(self, job: Job, compute: Compute) -> Prediction | None:
        """The stored prediction, or a new one; None while another process is computing it."""
        digest = compute_digest(
            job.data, {"model": job.model, "seed": job.seed, "version": self.version, **job.about}
        )
        path = self.folder / slug(job.data.name) / f"{slug(job.model)}-s{job.seed}-{digest}.npz"
        lock = path.with_suffix(".lock")
        if (stored := self._load(path, job, digest)) is not None:
            lock.unlink(
                missing_ok=True
            )  # of a killed process; with the prediction it protects nothing
            return stored
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait=0) as acquired:
            if acquired is False:
                return None
            try:
                if (
                    stored := self._load(path, job, digest)
                ) is not None:  # finished after the first check
                    return stored
                if path.is_file():
                    log.info(
                        f"{job.model}, seed {job.seed}: {path} has no intact network; it is "
                        "trained again"
                    )
                prediction, classifier = timed(compute)
                if job.model in self.kept and classifier is not None:
                    weights = write_weights(_weights_path(path), classifier)
                    prediction = prediction._replace(weights=weights.sha256)
                    self.networks[job.model, job.seed] = weights
                save_prediction(
                    path,
                    prediction,
                    job.labels,
                    {
                        **job.about,
                        **self.version,
                        **self.provenance,
                        "model": job.model,
                        "seed": job.seed,
                    },
                )
                self._add_row(job, prediction, digest)
            finally:
                if acquired:
                    lock.unlink(missing_ok=True)
        return prediction

    def _load(self, path: Path, job: Job, digest: str) -> Prediction | None:
        """A stored prediction; None if it is missing, or its network is to be kept and is missing
        or damaged.

        Its row is added if missing: a process may be killed between writing the two.
        """
        if not path.is_file():
            return None
        prediction, labels = load_prediction(path)
        if not np.array_equal(labels, job.labels, equal_nan=True):
            raise ValueError(
                f"{path} has different items from the task {job.data.name}; remove it, and it is "
                "computed again"
            )
        if job.model in self.kept:
            weights = WeightsFile(_weights_path(path), prediction.weights or "")
            if not weights.is_intact():
                return None
            self.networks[job.model, job.seed] = weights
        self._add_row(job, prediction, digest)
        return prediction

    def _add_row(self, job: Job, prediction: Prediction, digest: str) -> None:
        target = job.data.target
        metrics = metric_values(
            target.scored(prediction.predictions.numpy(), job.labels.numpy(), job.folds),
            target.metrics,
        )
        row = {
            "task": job.data.name,
            "model": job.model,
            "seed": job.seed,
            "protocol": job.about.get("protocol", ""),
            "train": len(job.data.train),
            "train_items": len(job.data.train) if job.train_items is None else job.train_items,
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
                append_row(
                    self.folder / "results.csv",
                    row,
                    (*FIRST, *metrics, *LAST, *self.version, *self.provenance),
                )

    def write_summary(self, task: str, result: Mapping[str, Json]) -> None:
        """Store the summary of a task, replacing an earlier one with as many training items."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".results.lock"):
            path = self.folder / "results.json"
            known = read_json(path) if path.is_file() else {}
            write_json(path, known | {summary_key(task, result): {**self.provenance, **result}})


def check_results(folder: Path) -> None:
    """ValueError if `results.csv` or `results.json` of a folder is damaged."""
    for name, read in (("results.csv", read_csv), ("results.json", read_json)):
        if (path := expand_user(folder) / name).is_file():
            read(path)


def summary_key(task: str, result: Mapping[str, Json]) -> str:
    """The name of a task in the summaries, with the number of training items if they are not
    all."""
    number = result.get("task", {}).get("train_items")
    return task if number is None else f"{task}, train_items {number}"


def timed(compute: Compute) -> tuple[Prediction, SequenceClassifier | None]:
    """A new prediction, and its network."""
    start = time.monotonic()
    computed = compute()
    prediction = Prediction(
        computed.predictions,
        time.monotonic() - start,
        computed.fit_info,
        valid_predictions=computed.valid_predictions,
    )
    return prediction, computed.classifier


def _weights_path(prediction: Path) -> Path:
    return prediction.with_suffix(".safetensors")


def listed_digests(path: Path) -> set[str]:
    """The digests in a table of results; an empty set if there is no table. ValueError if it is
    damaged."""
    header, rows = read_csv(path) if path.is_file() else ([], [])
    if header and "digest" not in header:
        raise ValueError(
            f"{path} has no column digest; it is not a table of results: remove it, or choose "
            "another folder"
        )
    return {row["digest"] for row in rows}


def append_row(path: Path, row: Mapping[str, object], columns: Sequence[str]) -> None:
    """Append a row to a CSV file that the caller has locked. If columns or the last line break are
    missing, the file is rewritten with them.

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


def save_prediction(
    path: Path, prediction: Prediction, labels: Tensor, about: Mapping[str, object]
) -> None:
    """Write a prediction atomically."""
    description = json.dumps(
        {**about, "found": prediction.fit_info, "weights_sha256": prediction.weights}, default=str
    )
    valid = prediction.valid_predictions
    of_valid: dict[str, Json] = {} if valid is None else {"valid_predictions": valid.numpy()}
    with atomic_write(path, overwrite=True) as file:
        np.savez_compressed(
            file,
            predictions=prediction.predictions.numpy(),
            labels=labels.numpy(),
            seconds=prediction.seconds,
            about=description,
            **of_valid,
        )


def load_prediction(path: Path) -> tuple[Prediction, Tensor]:
    """Read what `save_prediction` wrote: the prediction and the labels of its items; a ValueError
    if the file is damaged."""
    stored = read_npz(path, ("about", "predictions", "labels", "seconds"))
    predictions, labels, seconds = stored["predictions"], stored["labels"], stored["seconds"]
    about = json_object(str(stored["about"]), path)
    fit_info, weights = about.get("found", []), about.get("weights_sha256")
    fits = (
        predictions.ndim == 2
        and predictions.dtype.kind == "f"
        and labels.dtype.kind == "if"[labels.ndim == 2]
    )
    fits = fits and labels.shape == predictions.shape[: labels.ndim]
    valid = stored.get("valid_predictions")
    fits = fits and (
        valid is None
        or (valid.ndim == 2 and valid.dtype.kind == "f" and valid.shape[1] == predictions.shape[1])
    )
    if not fits or seconds.shape or seconds.dtype.kind != "f" or not isinstance(fit_info, list):
        raise ValueError(
            f"{path} is damaged: not the arrays of a prediction; remove it, and it is computed "
            "again"
        )
    sha256, of_valid = (
        None if weights is None else str(weights),
        None if valid is None else torch.from_numpy(valid),
    )
    return Prediction(
        torch.from_numpy(predictions), float(seconds), fit_info, sha256, of_valid
    ), torch.from_numpy(labels)


def compute_digest(data: TaskData, about: Mapping[str, object]) -> str:
    """12 hexadecimal digits that change with any item, label, division or entry of `about`."""
    digest = hashlib.sha256(
        json.dumps(
            [data.classes, data.stranded, about, *data.target.identity()],
            sort_keys=True,
            default=str,
        ).encode()
    )
    for items in (data.train, data.valid, data.test):
        for tensor in (items.ids, items.lengths, items.labels, items.groups):
            digest.update(
                b"none"
                if tensor is None
                else f"{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes()
            )
    return digest.hexdigest()[:12]


def weights_digest(network: torch.nn.Module) -> str:
    """12 hexadecimal digits that change with any weight of the network."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(
            name.encode()
            + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:12]


def slug(name: str) -> str:
    """The name as part of a file name: only letters, digits, dot, dash and underscore."""
    return re.sub(r"[^\w.-]+", "_", name)
