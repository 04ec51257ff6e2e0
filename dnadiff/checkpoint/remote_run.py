"""Training runs on other machines: a folder in the cache with the layout of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dnadiff.checkpoint import run, shards
from dnadiff.checkpoint.loaded import Loaded
from dnadiff.store.address import Address, parse
from dnadiff.store.disk import atomic_write
from dnadiff.store.remote import fetch, fetch_some, target_of

CHECKPOINTS = "checkpoints"


def load(checkpoint: Address, beside: Sequence[str], trust: Sequence[str]) -> Loaded:
    """The model of a checkpoint file; those of the files `beside` that exist are fetched into the
    local folder of its run.

    The cache has a folder for each remote folder. In that of the run `checkpoints/` has links to
    the checkpoint and its shards, so that whatever reads a run folder finds all of its files.
    Without links, the checkpoint is read where it is, without the files beside it.

    Raises:
        FileNotFoundError: if it does not exist, or lacks a shard.
    """
    copy, folder = fetch(checkpoint), checkpoint._replace(text=checkpoint.folder)
    is_run = folder.name == CHECKPOINTS
    home = folder._replace(text=folder.folder) if is_run else folder
    with suppress(
        OSError, ValueError
    ):  # no connection and no copies, or a file is damaged: the model is loaded without them
        fetch_some(home, beside)
    path = target_of(home.inside(CHECKPOINTS)).parent / CHECKPOINTS / copy.name if is_run else copy
    if is_run and not _is_linked(path, copy):
        path = copy

    def provide(name: str) -> None:
        shard = folder.inside(f"{shards.folder_of(path).name}/{name}")
        _place(
            shards.folder_of(path) / name, fetch(parse(shard.text))
        )  # the file names its shards: check the name

    return run.load_file(path, trust, provide)


def _is_linked(path: Path, target: Path) -> bool:
    """Make `path` a link to `target`; False if the file system or the user's rights have no such
    links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.symlink_to(os.path.relpath(target, path.parent))
    except FileExistsError:  # the folder of a copy depends on its address alone
        return True
    except (OSError, NotImplementedError):
        return False
    return True


def _place(path: Path, target: Path) -> None:
    """Make `path` a link to `target`, or a copy. No two shards have the same name: one that exists
    is the same."""
    if _is_linked(path, target):
        return
    try:
        os.link(target, path)
    except OSError:
        with target.open("rb") as source, atomic_write(path, overwrite=True) as file:
            shutil.copyfileobj(source, file)
