"""The classifiers that `python -m dnadiff.finetune` saves in its run folder:
`models/seed_1/model.safetensors` with `model.json`.

Each seed has a folder of its own that says everything needed to use it. The description is written
after the weights and names their SHA-256, so that a killed process leaves no folder that looks
complete. Loading builds only classes of this package (`dnadiff.store.objects.build`).
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import Json
from dnadiff.networks.backbone.base import Backbone
from dnadiff.renamed import current_name
from dnadiff.store.address import expand_user
from dnadiff.store.disk import atomic_write, read_json, write_json
from dnadiff.store.objects import PACKAGE, build
from dnadiff.supervised.classifier import (
    LENGTH_WIDTH,
    MEAN_HEAD,
    Classifier,
    HeadInputs,
    build_classifier,
    keep_first_layers,
)
from dnadiff.supervised.ensemble import ClassifierEnsemble, SeedClassifier
from dnadiff.supervised.items import EVALUATION, TaskData
from dnadiff.supervised.protocol import FixedSplit
from dnadiff.supervised.runs import DESCRIPTION, WEIGHTS, find
from dnadiff.supervised.targets.base import TaskTarget
from dnadiff.supervised.targets.classes import ClassTarget
from dnadiff.weights import tensors

FORMAT = 1
_SHARED = (
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
_OF_SEED = ("items", "mean", "std")  # of the task and of the target
_KEYS = ("format", *_SHARED, "seed", "batch_size", "sha256", "check")
_REMEDY = "use another copy of it, or fine-tune again"


def save(folder: Path, seed: int, weights: WeightsFile, about: Mapping[str, Json]) -> None:
    """Save the classifier of a seed in `folder/seed_N`, replacing an earlier one; a copy that is
    the same already is not written again."""
    target = folder / f"seed_{seed}"
    description = target / DESCRIPTION
    content: dict[str, Json] = {"format": FORMAT, "seed": seed, **about, "sha256": weights.sha256}
    content = json.loads(
        json.dumps(content, default=str), parse_constant=lambda _: None
    )  # NaN is not JSON
    content["check"] = _check_of(content)
    if description.is_file() and not _describes(description, weights.sha256):
        description.unlink()  # of other weights: until the new ones are complete, there is no model
    weights.copy_to(target / WEIGHTS)
    write_json(description, content)


def load(
    checkpoint: str | os.PathLike[str],
    trust: Sequence[str] = (),
    device: torch.device | str = "cpu",
) -> ClassifierEnsemble:
    """The classifiers of a fine-tuned run.

    Args:
        checkpoint: see `find`.
        trust: packages besides dnadiff whose classes a description may name.
        device: of the networks.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, names classes that are not trusted, the seeds are of
            different runs, or there is no such device.
    """
    _check_device(device)
    folders = find(checkpoint)
    described = [_read(folder / DESCRIPTION) for folder in folders]
    first = described[0]
    try:
        for folder, about in zip(folders, described):
            if different := [
                key for key, value in _of_run(about).items() if value != _of_run(first)[key]
            ]:
                raise ValueError(
                    f"{folder} is of a different run from {folders[0]} (different {different[0]}); "
                    "remove one of them"
                )
        present = [about["seed"] for about in described]
        several = expand_user(checkpoint) != folders[0]  # type: ignore[arg-type]
        if several and present != first["seeds"]:
            raise ValueError(
                f"{folders[0].parent} holds the seeds {present} of a run with the seeds "
                f"{first['seeds']}: the run was interrupted; "
                "start it again"
            )
        tokenizer = build(first["tokenizer"], trust=(PACKAGE, *trust))
        if not isinstance(tokenizer, DNATokenizer):
            raise ValueError(f"its tokenizer is {type(tokenizer).__name__}, not one of DNA")
        members = [
            _member(folder, about, tokenizer, (PACKAGE, *trust))
            for folder, about in zip(folders, described)
        ]
        return ClassifierEnsemble(
            _target(first, (PACKAGE, *trust)),
            members,
            tokenizer,
            folders[0].parent,
            str(first["task"]["name"]),
            int(first["task"]["longest"]),
            int(first["batch_size"]),
            device,
        )
    # Values that `finetune` does not write.
    except (TypeError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{folders[0] / DESCRIPTION} does not describe a classifier that can be built "
            f"({reason}); {_REMEDY}"
        ) from error


def _check_device(device: torch.device | str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(
            f"device {device} cannot be used on this machine, or with this build of torch "
            f"({reason}); use cpu"
        ) from error


def _read(path: Path) -> dict[str, Json]:
    about = read_json(path, _KEYS, _REMEDY)
    if about.pop("check") != _check_of(about):
        raise ValueError(f"{path} is damaged (its checksum differs); {_REMEDY}")
    if about["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {about['format']!r}, and this version reads {FORMAT}; update "
            "dnadiff"
        )
    return about


def _of_run(about: Mapping[str, Json]) -> dict[str, Json]:
    """What the seeds of a run have in common: not the items of each, nor the mean and standard
    deviation of their values."""
    task, target = (
        {key: value for key, value in (about.get(name) or {}).items() if key not in _OF_SEED}
        for name in ("task", "target")
    )
    return {**{key: about[key] for key in _SHARED}, "task": task, "target": target}


def _member(
    folder: Path, about: Mapping[str, Json], tokenizer: Json, trust: Sequence[str]
) -> SeedClassifier:
    path = folder / WEIGHTS
    state = WeightsFile(path, str(about["sha256"])).read()
    about = _with_earlier_head(about, state)
    with tensors.without_memory(
        len(state), path
    ):  # a network that the file cannot fill is refused before memory is allocated
        _check_shapes(_build(about, tokenizer, trust), state, path)
    tensors.check_memory(state.values(), path)
    classifier = _build(about, tokenizer, trust)
    classifier.load_state_dict(state)
    classifier.target = _target(about, trust)
    return SeedClassifier(int(about["seed"]), classifier.eval(), str(about["sha256"]), folder)


def _with_earlier_head(
    about: Mapping[str, Json], state: Mapping[str, Tensor]
) -> Mapping[str, Json]:
    """The description, with the convolutional head of earlier versions if these are its weights: it
    was pooled in parts alone."""
    head = about.get("head", {})
    is_conv = current_name(head.get("_target_", "")) == "dnadiff.supervised.heads.ConvHead"
    if (
        not is_conv
        or "global_pooling" in head
        or any(name.endswith("linear.weight") and name.startswith("head.") for name in state)
    ):
        return about
    return {**about, "head": head | {"global_pooling": False}}


def _build(about: Mapping[str, Json], tokenizer: Json, trust: Sequence[str]) -> Classifier:
    backbone = build(about["network"], vocab=tokenizer.vocab, trust=trust)
    if not isinstance(backbone, Backbone):
        raise ValueError(
            f"its network is {type(backbone).__name__}, which is not a network of this package; "
            f"{_REMEDY}"
        )
    backbone = keep_first_layers(backbone, about["layer"])
    head = about.get("head", {})
    # Runs of earlier versions have the published head, and describe it in words.
    inputs = HeadInputs(**about.get("inputs", {}))
    longest, outputs = int(about["task"]["longest"]), len(about["classes"])
    return build_classifier(
        backbone,
        head if "_target_" in head else MEAN_HEAD,
        inputs,
        outputs,
        longest,
        bool(about["stranded"]),
        trust,
    )


def _target(about: Mapping[str, Json], trust: Sequence[str]) -> TaskTarget:
    if "target" not in about:
        return ClassTarget(about["classes"])  # of a version that had only these
    target = build(about["target"], trust=trust)
    if not isinstance(target, TaskTarget) or list(target.names) != about["classes"]:
        raise ValueError(
            f"its target is {target!r}, which does not predict "
            f"{', '.join(map(str, about['classes']))}; {_REMEDY}"
        )
    return target


def _check_shapes(classifier: Classifier, state: Mapping[str, Tensor], path: Path) -> None:
    own = classifier.state_dict()
    wrong = sorted({*own} ^ {*state}) or [
        name for name in own if own[name].shape != state[name].shape
    ]
    narrower = own.keys() == state.keys() and {
        own[name].shape[1] - state[name].shape[1] for name in wrong if state[name].ndim > 1
    }
    if wrong and classifier.inputs.length and narrower == {LENGTH_WIDTH - 1}:
        raise ValueError(
            f"the weights in {path} read the length as the one number of an earlier version "
            "(inputs.length=true), which this version "
            "replaced by several; train again with finetune"
        )
    if wrong:
        raise ValueError(
            f"the weights in {path} do not fit the network of {DESCRIPTION} "
            f"({', '.join(wrong[:3])}); {_REMEDY}"
        )


def _describes(path: Path, sha256: str) -> bool:
    try:
        return _read(path)["sha256"] == sha256
    except ValueError:
        return False


def _check_of(content: Mapping[str, Json]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


class WeightsFile(NamedTuple):
    """A file of weights and the SHA-256 of its bytes."""

    path: Path
    sha256: str

    def is_intact(self) -> bool:
        """Whether the file exists with these bytes."""
        return self.path.is_file() and _sha256(self.path) == self.sha256

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

    def copy_to(self, target: Path) -> WeightsFile:
        """Copy the file atomically; nothing is written if `target` is the same already.

        Raises:
            FileNotFoundError: if the file is missing.
            ValueError: if its bytes differ.
        """
        copy = WeightsFile(target, self.sha256)
        if not copy.is_intact():
            content = self.path.read_bytes()
            if (
                hashlib.sha256(content).hexdigest() != self.sha256
            ):  # of the bytes that are written, not of those of a second reading
                raise ValueError(
                    f"{self.path} is damaged (its SHA-256 differs); fine-tune again: it is then "
                    "trained again"
                )
            with atomic_write(target, overwrite=True, size=len(content)) as file:
                file.write(content)
        return copy


def write_weights(path: Path, network: nn.Module) -> WeightsFile:
    """Write every parameter and buffer of a network atomically; a tied parameter is written under
    each of its names."""
    from safetensors.torch import save

    state = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in network.state_dict().items()
    }
    content = save(state, metadata={"format": "pt"})
    with atomic_write(path, overwrite=True, size=len(content)) as file:
        file.write(content)
    return WeightsFile(path, hashlib.sha256(content).hexdigest())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_networks(
    folder: Path,
    model: Mapping[str, Json],
    task: Mapping[str, Json],
    about: Mapping[str, Json],
    data: TaskData,
    protocol: FixedSplit,
    study_seeds: Sequence[int],
    report: Mapping[str, Json],
    settings: Mapping[str, Json],
    networks: Mapping[int, WeightsFile],
) -> None:
    """Save the network of every seed of a model of a study with its description.

    Args:
        model: its name and the inputs of its head.
        task: the settings of its reader.
        about: layer, network, tokenizer and pretrained weights.
        protocol: which items each seed was trained on: the target and the counts that are saved are
            of these.
        report: what `dnadiff.supervised.study.run_study` returns of the model.
        settings: what the model describes itself by.
        networks: the weights by the seed.
    """
    for seed, weights in networks.items():
        number = study_seeds.index(seed)
        trained = protocol.rounds(data, seed)[-1].data  # the network is that of the last round
        found = report["found"][number][0]
        own = {
            "name": model["name"],
            "target": trained.target.fit(trained.train.labels).settings(),
            "task": {
                "name": data.name,
                "longest": data.max_length,
                "items": trained.counts(),
                "settings": task,
            },
            "seeds": sorted(networks),
            "settings": settings,
            "found": found,
            "head": found["head"],
            "inputs": model["inputs"],
            # That predicted the test items.
            "batch_size": EVALUATION * found.get("chosen", settings)["batch_size"],
            "metrics": {
                metric: each["per_seed"][number] for metric, each in report["metrics"].items()
            },
        }
        shared = {"classes": list(data.target.names), "stranded": data.stranded, **about}
        save(folder, seed, weights, {**shared, **own})
