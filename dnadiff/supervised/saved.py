"""What a study saves: predictions and tables in its folder of results, and the classifiers that
`python -m dnadiff.finetune` keeps in its run folder, `models/seed_1/model.safetensors` with
`model.json`.

Each seed has a folder of its own that says everything needed to use it. The description is written
after the weights and names their SHA-256, because safetensors has no checksums of its own: a killed
process leaves no folder that looks complete.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import hashlib
import importlib.metadata
import inspect
import io
import json
import platform
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff.fields import JsonDict, JsonMap
from dnadiff.formats.table import read_csv
from dnadiff.progress import log
from dnadiff.renamed import VERSION
from dnadiff.store.address import expand_user
from dnadiff.store.disk import (
    atomic_write,
    hash_file,
    json_object,
    locked,
    read_json,
    read_npz,
    write_bytes,
    write_json,
)
from dnadiff.store.objects import leaves
from dnadiff.supervised.items import Job, Prediction, TaskData
from dnadiff.supervised.metrics import metric_values
from dnadiff.supervised.runs import DESCRIPTION, WEIGHTS
from dnadiff.weights import tensors

# Given items, division and weights, which have digests of their own, predictions depend on nothing
# else in the package.
SOURCES = (
    "networks/backbone",
    "networks/adapter.py",
    "networks/columns.py",
    "data/alignment.py",
    "data/genome/inputs.py",
    "supervised",
    "networks/kernels",
    "training/optim.py",
    "data/records.py",
    "data/tokenizer.py",
    "formats/nucleotides.py",
    "diffusion/draws.py",
    "data/kmers.py",
    "diffusion/vocab.py",
)
# Columns of the table of results before and after the metrics.
FIRST = ("task", "model", "seed", "protocol", "train", "train_items", "test")
LAST = ("seconds", "digest", "finished", "host")
FORMAT = 1  # of the description of a classifier
SHARED = (
    "name",
    "classes",
    "stranded",
    "layer",
    "network",
    "tokenizer",
    "task",
    "pretrained",
    "settings",
    "seeds",
)  # by all of a run
_KEYS = ("format", *SHARED, "seed", "batch_size", "sha256", "check")
REMEDY = "use another copy of it, or fine-tune again"


def code_version(
    network: type | None = None, config: JsonMap = MappingProxyType({}), package: Path | None = None
) -> dict[str, str]:
    """What the code that computes predictions is identified by: a digest of its sources, and the
    versions of the libraries.

    The digest covers `SOURCES` of the package, and your own modules of `network` and of each
    `_target_` in `config`, such as a head. Other modules that yours import are not covered.
    """
    digest = hashlib.sha256()
    root = package or Path(__file__).parents[1]
    for name in SOURCES:
        for path in sorted([root / name, *(root / name).rglob("*")]):
            if path.suffix in (".py", ".cpp", ".h"):
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root)}:{len(content)}:".encode() + content)
    own = {network.__module__} if network is not None else set()
    for module in sorted(own | set(_modules(config))):
        if not module.startswith("dnadiff."):
            with contextlib.suppress(OSError, TypeError):  # of a compiled module
                digest.update(inspect.getsource(sys.modules[module]).encode())
    libraries = ("lightning", "scikit-learn", "numpy", "scipy")
    return {
        "dnadiff": VERSION,
        "code": digest.hexdigest()[:12],
        "torch": torch.__version__,
        **{name: importlib.metadata.version(name) for name in libraries},
    }


def _modules(config: JsonMap) -> Iterator[str]:
    """The modules of the `_target_`s of a configuration."""
    for key, target in leaves(config):
        name = str(target) if key.endswith("_target_") else ""
        while name := name.rpartition(".")[0]:  # a target can be a method of a class
            if name in sys.modules:
                yield name
                break


@dataclass(eq=False)
class ResultsFolder:
    """Stores predictions and summaries in a folder, with `provenance` (such as checkpoint and
    command) in each of them.

    Predictions of another `version`, the `code_version` that computes them, are not reused. Neither
    are those of the models `kept` whose weights are missing or damaged: the network is trained
    again.

    Attributes:
        networks: the weights of each model and seed whose network is kept.
    """

    folder: Path
    provenance: Mapping[str, object]
    version: Mapping[str, str]
    kept: Collection[str] = ()

    def __post_init__(self) -> None:
        self.folder = expand_user(self.folder)
        self.networks = dict[tuple[str, int], WeightsFile]()

    def get_or_compute(
        self, job: Job, compute: Callable[[], dict[str, Prediction]]
    ) -> dict[str, Prediction] | None:
        """The stored predictions of the model and its members, or new ones; None while another
        process is computing them."""
        key = {"model": job.model, "seed": job.seed}
        digest = compute_digest(job.data, {**key, "version": self.version, **job.about})
        folder = self.folder / slug(job.data.name)
        paths = {
            row: folder / f"{slug(row)}-s{job.seed}-{digest}.npz"
            for row in (job.model, *job.members)
        }
        lock = paths[job.model].with_suffix(".lock")
        if (stored := self._load(paths, job, digest)) is not None:
            # Of a killed process; with the prediction it protects nothing.
            lock.unlink(missing_ok=True)
            return stored
        folder.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait=0) as acquired:
            if acquired is False:
                return None
            try:
                # Finished after the first check?
                if (stored := self._load(paths, job, digest)) is not None:
                    return stored
                if all(path.is_file() for path in paths.values()):
                    log.info(
                        f"{job.model}, seed {job.seed}: {paths[job.model]} has no intact network; "
                        "it is trained again"
                    )
                computed = compute()
                for row, prediction in computed.items():
                    path = paths[row]
                    if row in self.kept and prediction.classifier is not None:
                        place = path.with_suffix(".safetensors")
                        weights = write_weights(place, prediction.classifier)
                        prediction = prediction._replace(weights=weights.sha256)
                        self.networks[row, job.seed] = weights
                    about = {**job.about, **self.version, **self.provenance, **key, "model": row}
                    save_prediction(path, prediction, job.labels, about)
                    self._add_row(job._replace(model=row), prediction, digest)
            finally:
                if acquired:
                    lock.unlink(missing_ok=True)
        return computed

    def _load(
        self, paths: Mapping[str, Path], job: Job, digest: str
    ) -> dict[str, Prediction] | None:
        """The stored predictions of all rows; None if one is missing, or if its network is to be
        kept and is missing or damaged.

        Their rows are added if missing: a process may be killed between writing the two.
        """
        if not all(path.is_file() for path in paths.values()):
            return None
        found = {}
        for row, path in paths.items():
            found[row], labels = load_prediction(path)
            if not np.array_equal(labels, job.labels, equal_nan=True):
                raise ValueError(
                    f"{path} has different items from the task {job.data.name}; remove it, and it "
                    "is computed again"
                )
            if row in self.kept:
                weights = WeightsFile(path.with_suffix(".safetensors"), found[row].weights or "")
                if not weights.is_intact():
                    return None
                self.networks[row, job.seed] = weights
            self._add_row(job._replace(model=row), found[row], digest)
        return found

    def _add_row(self, job: Job, prediction: Prediction, digest: str) -> None:
        target = job.data.target
        train = len(job.data.train)
        scored = target.scored(prediction.predictions.numpy(), job.labels.numpy(), job.folds)
        metrics = metric_values(scored, target.metrics)
        row = {
            "task": job.data.name,
            "model": job.model,
            "seed": job.seed,
            "protocol": job.about.get("protocol", ""),
            "train": train,
            "train_items": train if job.train_items is None else job.train_items,
            "test": len(job.labels),
            **{name: f"{value:.6g}" for name, value in metrics.items()},
            "seconds": f"{prediction.seconds:.1f}",
            "digest": digest,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            **self.version,
            **self.provenance,
        }
        path = self.folder / "results.csv"
        with locked(self.folder / ".results.lock"):
            add_row(path, row, (*FIRST, *metrics, *LAST, *self.version, *self.provenance))


def check_results(folder: Path) -> None:
    """ValueError if the `results.csv` of a folder is damaged."""
    if (path := expand_user(folder) / "results.csv").is_file():
        read_csv(path)


def add_row(path: Path, row: Mapping[str, object], columns: Sequence[str]) -> None:
    """Add a row, with columns that are missing, to a CSV file that the caller has locked, unless
    there is one with its `digest` and `model`.

    Raises:
        ValueError: if the file is damaged, or is no table of results.
    """
    header, known = read_csv(path) if path.is_file() else ([], [])
    if header and "digest" not in header:
        raise ValueError(
            f"{path} has no column digest; it is not a table of results: remove it, or choose "
            "another folder"
        )
    key = ("digest", "model")
    if any([each.get(name) for name in key] == [row.get(name) for name in key] for each in known):
        return
    text = io.StringIO()
    names = dict.fromkeys([*header, *columns])
    writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*known, row])
    write_bytes(path, text.getvalue().encode())


def save_prediction(
    path: Path, prediction: Prediction, labels: Tensor, about: Mapping[str, object]
) -> None:
    """Write a prediction atomically."""
    own = {"found": prediction.fit_info, "weights_sha256": prediction.weights}
    valid = prediction.valid_predictions
    of_valid: JsonDict = {} if valid is None else {"valid_predictions": valid.numpy()}
    with atomic_write(path, overwrite=True) as file:
        np.savez_compressed(
            file,
            predictions=prediction.predictions.numpy(),
            labels=labels.numpy(),
            seconds=prediction.seconds,
            about=json.dumps({**about, **own}, default=str),
            **of_valid,
        )


def load_prediction(path: Path) -> tuple[Prediction, Tensor]:
    """Read what `save_prediction` wrote: the prediction and the labels of its items; a ValueError
    if the file is damaged."""
    stored = read_npz(
        path, {"about": "U0", "predictions": "f2", "labels": "i1 f2", "seconds": "f0"}
    )
    about = json_object(str(stored["about"]), path)
    sha256 = about.get("weights_sha256")
    valid = stored.get("valid_predictions")
    labels = stored["labels"]
    if len(labels) != len(stored["predictions"]) or (valid is not None and valid.dtype.kind != "f"):
        raise ValueError(f"{path} is damaged; remove it, and it is computed again")
    prediction = Prediction(
        torch.from_numpy(stored["predictions"]),
        float(stored["seconds"]),
        about.get("found", []),
        None if sha256 is None else str(sha256),
        None if valid is None else torch.from_numpy(valid),
    )
    return prediction, torch.from_numpy(labels)


def compute_digest(data: TaskData, about: Mapping[str, object]) -> str:
    """12 hexadecimal digits that change with any item, label, division or entry of `about`."""
    settings = [data.classes, data.stranded, about, data.target.settings()]
    if data.train.source is not None:
        settings.append(data.train.source.identity)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for items in data.parts.values():
        for tensor in items.tensors:
            digest.update(
                b"none"
                if tensor is None
                else f"{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes()
            )
    return digest.hexdigest()[:12]


def slug(name: str) -> str:
    """The name as part of a file name: only letters, digits, dot, dash and underscore."""
    return re.sub(r"[^\w.-]+", "_", name)


class WeightsFile(NamedTuple):
    """A file of weights and the SHA-256 of its bytes."""

    path: Path
    sha256: str

    def is_intact(self) -> bool:
        """Whether the file exists with these bytes."""
        return self.path.is_file() and hash_file(self.path) == self.sha256

    def read(self) -> dict[str, Tensor]:
        """The tensors by name.

        Raises:
            FileNotFoundError: if the file is missing.
            ValueError: if its bytes differ.
        """
        if not self.path.is_file():
            raise FileNotFoundError(
                f"{self.path} is missing; copy the complete folder, or fine-tune again"
            )
        if not self.is_intact():
            raise ValueError(
                f"{self.path} is damaged (its SHA-256 differs); use another copy of it, or "
                "fine-tune again"
            )
        return tensors.read(self.path)


def write_weights(path: Path, network: nn.Module) -> WeightsFile:
    """Write every parameter and buffer of a network atomically; a tied parameter is written under
    each of its names."""
    from safetensors.torch import save

    state = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in network.state_dict().items()
    }
    content = save(state, metadata={"format": "pt"})
    write_bytes(path, content)
    return WeightsFile(path, hashlib.sha256(content).hexdigest())


def save(folder: Path, seed: int, weights: WeightsFile, about: JsonMap) -> None:
    """Save the classifier of a seed in `folder/seed_N`, replacing an earlier one; a copy that is
    the same already is not written again."""
    target = folder / f"seed_{seed}"
    description = target / DESCRIPTION
    content: JsonDict = {"format": FORMAT, "seed": seed, **about, "sha256": weights.sha256}
    text = json.dumps(content, default=str)
    content = json.loads(text, parse_constant=lambda _: None)  # NaN is not JSON
    content["check"] = _check_of(content)
    if description.is_file():
        known = None
        with contextlib.suppress(ValueError):
            known = read_description(description)["sha256"]
        if known != weights.sha256:  # until the new ones are complete, there is no model
            description.unlink()
    if not weights._replace(path=target / WEIGHTS).is_intact():
        write_bytes(target / WEIGHTS, weights.path.read_bytes())
    write_json(description, content)


def read_description(path: Path) -> JsonDict:
    """The description of a saved classifier; ValueError if it is damaged or of another version."""
    about = read_json(path, _KEYS, REMEDY)
    if about.pop("check") != _check_of(about):
        raise ValueError(f"{path} is damaged (its checksum differs); {REMEDY}")
    if about["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {about['format']!r}, and this version reads {FORMAT}; update "
            "dnadiff"
        )
    return about


def _check_of(content: JsonMap) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
