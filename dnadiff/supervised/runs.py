"""Where the classifiers of fine-tuned runs are: `models/seed_1` and so on in a run folder.

This module is imported by every command, and imports no torch.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dnadiff.fields import Json
from dnadiff.progress import pasted
from dnadiff.store.address import expand_user

FOLDER = "models"
WEIGHTS = "model.safetensors"
DESCRIPTION = "model.json"
RUN = "finetune.yaml"
MODELS = ("checkpoint", "init_from", "judge", "a", "b")  # keys that name a model

_CLASSIFYING = ("predict", "variants", "explain")  # commands that take classifiers


def remove_all(folder: Path) -> None:
    """Remove the classifiers that an earlier run left in its folder `models`: they must not be
    taken for those of the next one."""
    for path in sorted(folder.rglob(f"seed_*/{DESCRIPTION}")) if folder.is_dir() else ():
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
    for key in MODELS if command not in _CLASSIFYING else ():
        given = config.get(key)
        if (command, key) != ("sample", "judge") and is_fine_tuned(given):
            raise ValueError(
                f"{given} is a fine-tuned run, whose networks are classifiers, and {command} needs "
                "a pretrained one; name that run, or use predict: python -m dnadiff.predict "
                f"{pasted('checkpoint', given)} input=x.fa"
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
        newest = max(saved, key=lambda p: (p / RUN).stat().st_mtime, default=None)
        if newest is None:
            raise FileNotFoundError(
                f"checkpoint=latest found no classifier under {runs}; fine-tune a model, or name "
                "the run folder"
            )
        path = newest
    if seeds := _seeds_in(path):
        return seeds
    if tasks := _tasks_in(path):
        raise ValueError(
            f"{path} has classifiers of several tasks; name one of {', '.join(map(str, tasks))}"
        )
    if (path / RUN).is_file():
        raise ValueError(
            f"{path} is a fine-tuned run without saved networks; run finetune again with "
            "fine_tune=true and save_models=[fine-tuned], without task.folds"
        )
    kind = ValueError if path.exists() else FileNotFoundError  # or a model without a path
    raise kind(
        f"{path} is not a fine-tuned run: such a folder has no classes, or does not exist; "
        f"fine-tune it first (python -m dnadiff.finetune {pasted('checkpoint', path)} task=csv "
        "task.path=table.csv) and give the run folder, or use score or embed, which need none"
    )


def _seeds_in(path: Path) -> list[Path]:
    """The folders of saved seeds at a path, ascending; the path itself if it is one."""
    for place in (path / FOLDER, path):
        if (place / DESCRIPTION).is_file():
            return [place]
        named = (p for p in place.glob("seed_*") if p.name[5:].isdigit())
        if seeds := [p for p in named if (p / DESCRIPTION).is_file()]:
            return sorted(seeds, key=lambda p: int(p.name[5:]))
    return []


def _tasks_in(path: Path) -> list[Path]:
    """The folders of several tasks or models, each with saved seeds."""
    places = (p for place in (path / FOLDER, path) if place.name == FOLDER for p in place.glob("*"))
    return sorted(p for p in places if p.is_dir() and _seeds_in(p))
