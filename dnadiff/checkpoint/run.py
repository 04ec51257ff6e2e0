"""Checkpoint files of training runs.

A checkpoint is a Lightning file read as a plain dict: weights (averaged, if training averaged
them), and under `hyper_parameters` the resolved configuration and the tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dnadiff.checkpoint import shards
from dnadiff.checkpoint.loaded import (
    Loaded,
    build_denoiser,
    built_tokenizer,
    check_weights,
    label_names,
    names_file,
)
from dnadiff.checkpoint.origin import Origin
from dnadiff.checks import expand_user
from dnadiff.config import Json
from dnadiff.published import tensors

PREFIX, LATEST = "denoiser.", "latest"


def find(checkpoint: str | os.PathLike[str], runs: str | os.PathLike[str] = "runs/train") -> Path:
    """The checkpoint file of a run folder, of a file name, or of `latest`, the newest run;
    FileNotFoundError if there is none.

    For a run folder that is `checkpoints/best.ckpt`, or `last.ckpt` if no validation has run.
    """
    path = expand_user(Path(checkpoint))
    if str(checkpoint) == LATEST:
        found = sorted(Path(runs).glob("*/checkpoints/last.ckpt"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise FileNotFoundError(
                f"checkpoint=latest found no run under {runs}; train one, or name a run folder"
            )
        path = found[-1].parent.parent
    if path.is_dir():
        candidates = candidates_in(path)
        if not candidates:
            raise FileNotFoundError(
                f"{path} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; name a run "
                "folder that python -m dnadiff.train made, or a "
                "folder of published weights with its config.json"
            )
        return candidates[0]
    if not path.is_file():
        raise FileNotFoundError(
            f"checkpoint {path} does not exist; give a run folder, a .ckpt file, or latest"
        )
    return path


def candidates_in(folder: Path) -> list[Path]:
    """The checkpoint files of a run folder, preferred first."""
    named = [
        part / name
        for part in (folder / "checkpoints", folder)
        for name in ("best.ckpt", "last.ckpt")
    ]
    return [path for path in named if path.is_file()]


def read(path: Path, provide: Callable[[str], None] | None = None) -> dict[str, Json]:
    """The contents of a checkpoint file; no code in it runs. `provide`: see `shards.read`.

    Raises:
        ValueError: if the file is truncated, holds pickled code, or is not a checkpoint of this
            package.
    """
    content = shards.read(path, provide)
    described = content.get("hyper_parameters") if isinstance(content, dict) else None
    described = described if isinstance(described, dict) else {}
    if not described or not all(
        isinstance(part, dict)
        for part in (content.get("state_dict"), *map(described.get, ("config", "tokenizer")))
    ):
        raise ValueError(
            f"{path} is not a dnadiff checkpoint: it lacks weights, configuration or tokenizer"
        )
    if missing := [
        key
        for key in ("noise", "backbone", "objective", "data")
        if not isinstance(described["config"].get(key), dict)
    ]:
        raise ValueError(
            f"{path} is not a dnadiff checkpoint: its configuration lacks {', '.join(missing)}"
        )
    if type(content.get("global_step", 0)) is not int:
        raise ValueError(
            f"{path} is not a dnadiff checkpoint: its step is "
            f"{str(content['global_step'])[:40]!r}, not an integer"
        )
    return content


def load_file(
    path: Path, trust: Sequence[str], provide: Callable[[str], None] | None = None
) -> Loaded:
    """The model of a checkpoint file. `provide`: see `shards.read`.

    Raises:
        ValueError: if it is damaged, names classes that are not trusted, or its weights do not
            match its configuration.
    """
    content = read(path, provide)
    with names_file(path):
        return _assemble(path, content, trust)


def _assemble(path: Path, content: dict[str, Json], allowed: Sequence[str]) -> Loaded:
    described = content["hyper_parameters"]
    tokenizer = built_tokenizer(described["tokenizer"], allowed, path)
    state = {
        name.removeprefix(PREFIX): t
        for name, t in content["state_dict"].items()
        if name.startswith(PREFIX)
    }
    with tensors.without_memory(
        len(state), path
    ):  # a network that the file cannot fill is refused before memory is allocated
        check_weights(build_denoiser(described["config"], tokenizer, allowed)[0], state, path)
    tensors.check_memory(state.values(), path)
    denoiser, process = build_denoiser(described["config"], tokenizer, allowed)
    denoiser.load_state_dict(state)
    labels = label_names(described, denoiser.backbone.num_labels)
    tokens, hashes = (
        content.get("tokens_seen"),
        [described.get(key) for key in ("split_hash", "digest")],
    )
    split_hash, digest = (value if isinstance(value, str) else None for value in hashes)
    origin = Origin("run", int(tokens) if isinstance(tokens, int) else None, split_hash, digest)
    return Loaded(
        denoiser.eval(),
        process,
        tokenizer,
        described["config"],
        path,
        int(content.get("global_step", 0)),
        labels,
        origin,
    )
