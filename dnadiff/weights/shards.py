"""Checkpoints in several files: `NAME.ckpt` with everything but the tensors that are sharded, and
`NAME.shards/` with one file of each process.

Sharded tensors are cut along their first axis, in the order of the processes. `read` puts them
together, so that a checkpoint loads in any number of processes, and in commands that know nothing
of processes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from dnadiff.fields import Config, Json
from dnadiff.store.disk import atomic_write
from dnadiff.weights import tensors

SHARDS, SHARDED = (
    "shards",
    "sharded",
)  # keys: the files of a checkpoint, and the name of a tensor in them


def folder_of(path: Path) -> Path:
    """The folder of the shards of a checkpoint."""
    return path.with_suffix(".shards")


def split(
    content: Json, local: Callable[[Json], Tensor | None], name: str = ""
) -> tuple[Json, dict[str, Tensor]]:
    """A nested checkpoint with each sharded tensor replaced by its name, and this process's part of
    each by its name.

    `local` returns this process's part of a sharded tensor, and None for any other value.
    """
    if (part := local(content)) is not None:
        return {SHARDED: name}, {
            name: part.detach().cpu().clone()
        }  # not a view, with which all it is part of would be saved
    if not isinstance(content, (Mapping, list, tuple)):
        return content, {}
    found: dict[str, Tensor] = {}
    kept: list[Json] = []
    items = content.items() if isinstance(content, Mapping) else enumerate(content)
    for key, value in items:
        plain, parts = split(value, local, f"{name}/{key}")
        kept.append(plain)
        found |= parts
    if not found:
        return content, found
    return dict(zip(content, kept, strict=True)) if isinstance(content, Mapping) else kept, found


def write(
    path: Path,
    content: Config,
    parts: Mapping[str, Tensor],
    rank: int,
    size: int,
    token: str,
    wait: Callable[[], None],
) -> None:
    """Write a checkpoint from all its processes; a run killed at any time leaves the old checkpoint
    or the new one.

    Args:
        path: of `NAME.ckpt`.
        content, parts: from `split`.
        rank, size: number of this process, and number of processes.
        token: the same new word in all processes; it is in the names of the files.
        wait: returns when all processes have called it.
    """
    folder = folder_of(path)
    names = [f"{token}-{number}-of-{size}.ckpt" for number in range(1, size + 1)]
    _save(folder / names[rank], {"token": token, "tensors": dict(parts)})
    wait()
    if rank == 0:
        _save(path, {**content, SHARDS: {"token": token, "files": names}})
        for old in folder.glob("*.ckpt"):
            if old.name not in names:
                old.unlink(missing_ok=True)
    wait()


def _save(path: Path, content: Config) -> None:
    with atomic_write(path, overwrite=True) as file:
        torch.save(content, file)


def remove(path: Path) -> None:
    """Remove the shards of a checkpoint that is complete without them."""
    shutil.rmtree(folder_of(path), ignore_errors=True)


def read(path: Path, provide: Callable[[str], None] | None = None) -> Json:
    """The content of a checkpoint in one file or in several, with whole tensors.

    Args:
        provide: called with the name of each shard, such as to fetch it; None: the shards are next
            to the file.

    Raises:
        ValueError: if a file is missing or damaged, belongs to another checkpoint, or holds pickled
            code.
    """
    content = tensors.read(path)
    if not isinstance(content, dict) or SHARDS not in content:
        return content
    listed = content.pop(SHARDS)
    if not isinstance(listed, dict) or not isinstance(listed.get("files"), list):
        raise ValueError(f"{path} is damaged: it does not list its shards; use another copy of it")
    names = [Path(str(name)).name for name in listed["files"]]
    if provide is not None:
        for name in names:
            provide(name)
    parts = [_part(folder_of(path) / name, listed.get("token"), path) for name in names]
    return _merged(content, parts, path)


def _part(file: Path, token: Json, path: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise ValueError(
            f"{path} needs {file}, which does not exist; copy the folder {file.parent.name} "
            f"together with {path.name}"
        )
    content = tensors.read(file)
    if (
        not isinstance(content, dict)
        or content.get("token") != token
        or not isinstance(content.get("tensors"), dict)
    ):
        raise ValueError(f"{file} does not belong to {path}; copy both from the same run")
    return content["tensors"]


def _merged(content: Json, parts: list[dict[str, Tensor]], path: Path) -> Json:
    if isinstance(content, dict):
        if content.keys() == {SHARDED}:
            name = content[SHARDED]
            if not all(isinstance(part.get(name), Tensor) for part in parts):
                raise ValueError(
                    f"{path} is damaged: its shards lack {str(name)[:80]}; use another copy of it"
                )
            return torch.cat([part.pop(name) for part in parts])
        return {key: _merged(value, parts, path) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(_merged(value, parts, path) for value in content)
    return content
