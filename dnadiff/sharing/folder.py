"""New folders that appear under their name only when they are complete."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dnadiff.checks import expand_user
from dnadiff.data.disk import names_file
from dnadiff.data.files import check_output, sync_folder


def check_folder(path: str | Path, overwrite: bool, own: Collection[str]) -> Path:
    """Refuse an output folder before the work that fills it begins; a folder is replaced only if it holds nothing but files of these names.

    Raises:
        FileExistsError: if it exists and `overwrite` is false.
        ValueError: if it is a file, is in a file, or holds other files.
        PermissionError: if the folder above cannot be written.
    """
    target = expand_user(path)
    if not target.name or target.name == "..":
        raise ValueError(f"output {str(path)!r} is not the name of a new folder; give one, such as output=my_model")
    if target.is_dir() and not target.is_symlink():
        if not overwrite:
            raise FileExistsError(f"{path} exists; set overwrite=true to replace it, or choose another name")
        if others := sorted(entry.name for entry in target.iterdir() if entry.name not in own):
            raise ValueError(f"output {path} holds other files ({', '.join(others[:4])}), which would be lost; choose another folder")
    elif target.exists() or target.is_symlink():
        raise ValueError(f"output {path} is a file or a link; name a folder")
    check_output(target.with_name(f".{target.name}.part"), overwrite=True)
    return target


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder next to `target`, which gets its name, and replaces a folder of that name, when the block ends without an error.

    What killed processes left next to it is removed.
    """
    with names_file(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(target)
        part, lock = _create_locked(target)
    try:
        yield part
        with names_file(target):
            sync_folder(part)
            if target.exists():
                aside = _unfinished(target)
                target.rename(aside)
                part.rename(target)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                part.rename(target)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(lock)


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")


def _create_locked(target: Path) -> tuple[Path, int]:
    """A new folder, locked while its descriptor is open, so that no other process takes it for one of a killed process."""
    while True:
        part = _unfinished(target)
        part.mkdir()
        lock = os.open(part, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if part.exists():
            return part, lock
        os.close(lock)  # removed before it was locked


def _remove_unfinished(target: Path) -> None:
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.part")
    for left in [path for path in target.parent.iterdir() if name.fullmatch(path.name) and path.is_dir()]:
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
            finally:
                os.close(lock)
