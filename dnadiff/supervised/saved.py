"""The classifiers that `python -m dnadiff.finetune` saves in its run folder:
`models/seed_1/model.safetensors` with `model.json`.

Each seed has a folder of its own that says everything needed to use it. The description is written
after the weights and names their SHA-256, so that a killed process leaves no folder that looks
complete. Loading builds only classes of this package (`dnadiff.config.build`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.checks import expand_user
from dnadiff.config import PACKAGE, Json, build
from dnadiff.renamed import current_name
from dnadiff.store.disk import read_json, write_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dnadiff.supervised.classifier import Classifier
    from dnadiff.supervised.ensemble import ClassifierEnsemble, SeedClassifier
    from dnadiff.supervised.targets.base import TaskTarget
    from dnadiff.supervised.weights import WeightsFile

FOLDER, WEIGHTS, DESCRIPTION, RUN = "models", "model.safetensors", "model.json", "finetune.yaml"
FORMAT = 1
_MODELS = ("checkpoint", "init_from", "judge", "a", "b")  # keys that name a model
_CLASSIFYING = ("predict", "variants")  # commands that take classifiers
_SEED = re.compile(r"seed_(\d+)")
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


def remove_all(folder: Path) -> None:
    """Remove the classifiers that an earlier run left in its folder `models`: they must not be
    taken for those of the next one."""
    for path in sorted(folder.rglob(DESCRIPTION)) if folder.is_dir() else ():
        path.unlink()  # first: without it, the folder is not a classifier
        shutil.rmtree(path.parent, ignore_errors=True)


def is_fine_tuned(checkpoint: object) -> bool:
    """Whether `checkpoint=` names a run of `python -m dnadiff.finetune`, or a folder of saved
    classifiers in it."""
    if not isinstance(checkpoint, (str, os.PathLike)):
        return False
    path = Path(os.path.expanduser(checkpoint))
    if not path.is_dir() or (path / "checkpoints").is_dir():
        return False
    return (path / RUN).is_file() or bool(_seeds_in(path) or _tasks_in(path))


def refuse_classifier(config: Mapping[str, Json], command: str) -> None:
    """ValueError for a configuration that names a fine-tuned run, if the command needs a language
    model."""
    for given in map(config.get, _MODELS) if command not in _CLASSIFYING else ():
        if is_fine_tuned(given):
            raise ValueError(
                f"{given} is a fine-tuned run, whose networks are classifiers, and {command} needs "
                "a pretrained one; name that run, "
                f"or use predict: python -m dnadiff.predict checkpoint={given} input=x.fa"
            )


def find(
    checkpoint: str | os.PathLike[str], runs: str | os.PathLike[str] = "runs/finetune"
) -> list[Path]:
    """The folders of the saved seeds of a run folder, of a folder `models`, of one seed, or of
    `latest`, the newest run with classifiers.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it is a pretrained model, has no saved classifier, or those of several tasks.
    """
    path = expand_user(checkpoint)  # type: ignore[arg-type]
    if str(checkpoint) == "latest":
        saved = [
            p
            for p in Path(runs).glob("*")
            if (p / RUN).is_file() and (_seeds_in(p) or _tasks_in(p))
        ]
        found = sorted(saved, key=lambda p: (p / RUN).stat().st_mtime)
        if not found:
            raise FileNotFoundError(
                f"checkpoint=latest found no classifier under {runs}; fine-tune a model, or name "
                "the run folder"
            )
        path = found[-1]
    if seeds := _seeds_in(path):
        return seeds
    if tasks := _tasks_in(path):
        raise ValueError(
            f"{path} has classifiers of several tasks; name one of {', '.join(map(str, tasks))}"
        )
    if (path / RUN).is_file():
        raise ValueError(
            f"{path} is a fine-tuned run without saved networks; run finetune again with "
            "task.protocol=fixed or paper, fine_tune=true "
            "and save_models=[fine-tuned]"
        )
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give the run folder of python -m dnadiff.finetune, or latest"
        )
    raise ValueError(
        f"{path} is not a fine-tuned run: it has no classes; fine-tune it first (python -m "
        f"dnadiff.finetune checkpoint={path} task=csv "
        "task.path=table.csv), or use score or embed, which need none"
    )


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
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.supervised.ensemble import ClassifierEnsemble

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
        if expand_user(checkpoint) != folders[0] and present != first["seeds"]:  # type: ignore[arg-type]
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
        task, batch_size = first["task"], int(first["batch_size"])
        name, longest = str(task["name"]), int(task["longest"])
        return ClassifierEnsemble(
            _target(first, (PACKAGE, *trust)),
            members,
            tokenizer,
            folders[0].parent,
            name,
            longest,
            batch_size,
            device,
        )
    except (
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
        OverflowError,
    ) as error:  # values that `finetune` does not write
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{folders[0] / DESCRIPTION} does not describe a classifier that can be built "
            f"({reason}); {_REMEDY}"
        ) from error


def _check_device(device: torch.device | str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(
            f"device {device} cannot be used on this machine, or with this build of torch "
            f"({reason}); use cpu"
        ) from error


def _seeds_in(path: Path) -> list[Path]:
    """The folders of saved seeds at a path, ascending; the path itself if it is one."""
    for place in (path / FOLDER, path):
        if (place / DESCRIPTION).is_file():
            return [place]
        numbered = [
            (int(found[1]), p)
            for p in place.glob("seed_*")
            if (found := _SEED.fullmatch(p.name)) and (p / DESCRIPTION).is_file()
        ]
        if numbered:
            return [p for _, p in sorted(numbered)]
    return []


def _tasks_in(path: Path) -> list[Path]:
    """The folders of several tasks or models, each with saved seeds."""
    places = (p for place in (path / FOLDER, path) if place.name == FOLDER for p in place.glob("*"))
    return sorted(p for p in places if p.is_dir() and _seeds_in(p))


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
    from dnadiff.supervised.ensemble import SeedClassifier
    from dnadiff.supervised.weights import WeightsFile
    from dnadiff.weights import tensors

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
    is_conv = current_name(head.get("_target_", "")) == "dnadiff.supervised.head.conv.ConvHead"
    if (
        not is_conv
        or "global_pooling" in head
        or any(name.endswith("linear.weight") and name.startswith("head.") for name in state)
    ):
        return about
    return {**about, "head": head | {"global_pooling": False}}


def _build(about: Mapping[str, Json], tokenizer: Json, trust: Sequence[str]) -> Classifier:
    from dnadiff.backbone.base import Backbone
    from dnadiff.supervised.classifier import MEAN_HEAD, build_classifier, keep_first_layers
    from dnadiff.supervised.head_inputs import HeadInputs

    backbone = build(about["network"], vocab=tokenizer.vocab, trust=trust)
    if not isinstance(backbone, Backbone):
        raise ValueError(
            f"its network is {type(backbone).__name__}, which is not a network of this package; "
            f"{_REMEDY}"
        )
    backbone = keep_first_layers(backbone, about["layer"])
    head = about.get("head", {})
    # Runs of earlier versions have the published head, and describe it in words.
    inputs = HeadInputs.of(**about.get("inputs", {}))
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
    from dnadiff.supervised.targets.base import TaskTarget
    from dnadiff.supervised.targets.classes import ClassTarget

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
    from dnadiff.supervised.head_inputs import LENGTH_WIDTH

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
