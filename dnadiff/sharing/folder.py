"""Exported models: new folders that appear under their name only when they are complete, and
replace an existing folder atomically.

Next to a folder NAME, `.NAME.HEX.part` is garbage of a killed process, and `.NAME.HEX.old` a
complete folder that was being replaced.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from dnadiff.checks import expand_user
from dnadiff.config import Config
from dnadiff.sharing import record
from dnadiff.sharing.card import model_card
from dnadiff.store.disk import atomic_write, check_output, names_file, sync_folder, write_json
from dnadiff.weights import checkpoint, exported
from dnadiff.weights.layouts import published_layout
from dnadiff.weights.published import export_published
from dnadiff.weights.tensors import fingerprint, round_weights

FILES = ("config.json", "model.safetensors", "dnadiff.json", "evaluate.json", "README.md")
_FROM_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def check_folder(path: str | Path, overwrite: bool, own: Collection[str]) -> Path:
    """Refuse an output folder before the work that fills it begins; a folder is replaced only if it
    holds nothing but files of these names.

    A folder that a killed process was replacing is restored first.

    Raises:
        FileExistsError: if it exists and `overwrite` is false.
        ValueError: if it is a file, is in a file, or holds other files.
        PermissionError: if the folder above cannot be written.
    """
    target = expand_user(path)
    if not target.name or target.name == "..":
        raise ValueError(
            f"output {str(path)!r} is not the name of a new folder; give one, such as "
            "output=my_model"
        )
    if target.parent.is_dir():
        _restore(target)
    if target.is_dir() and not target.is_symlink():
        if not overwrite:
            raise FileExistsError(
                f"{path} exists; set overwrite=true to replace it, or choose another name"
            )
        if others := sorted(
            entry.name for entry in target.iterdir() if entry.name not in {*own, ".DS_Store"}
        ):  # of macOS
            raise ValueError(
                f"output {path} holds other files ({', '.join(others[:4])}), which would be lost; "
                "choose another folder"
            )
    elif target.exists() or target.is_symlink():
        raise ValueError(f"output {path} is a file or a link; name a folder")
    check_output(target.with_name(f".{target.name}.part"), overwrite=True)
    return target


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder next to `target`, which gets its name, and replaces a folder of that name,
    when the block ends without an error.

    If the process is killed, `target` is the old folder or the new one, or, where the file system
    cannot exchange two folders, the next call restores the old one. What killed processes left next
    to it is removed.
    """
    with names_file(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _restore(target)
        _remove_unfinished(target)
        part, lock = _create_locked(target)
    try:
        yield part
        with names_file(target):
            sync_folder(part)
            if not target.exists():
                part.rename(target)
            elif not _exchange(part, target):
                _replace(part, target)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # after an exchange, the old folder
        os.close(lock)


def _exchange(part: Path, target: Path) -> bool:
    """Exchange the names of two folders in one step; False where the system or the file system
    cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # of Linux alone
        return False
    return bool(
        renameat2(_FROM_HERE, os.fsencode(part), _FROM_HERE, os.fsencode(target), _EXCHANGE) == 0
    )


def _replace(part: Path, target: Path) -> None:
    """Rename the old folder away, then the new one to its name; `_restore` undoes the first step
    after a kill."""
    aside = _unfinished(target).with_suffix(".old")
    lock = _locked(target)  # no other process restores it meanwhile
    try:
        target.rename(aside)
        try:
            part.rename(target)
        except OSError:
            aside.rename(target)
            raise
        part = _unfinished(target)
        aside.rename(part)  # no longer complete when its removal begins
        shutil.rmtree(part, ignore_errors=True)
    finally:
        os.close(lock)


def _restore(target: Path) -> None:
    """Give the folder that a killed process had renamed away its name again, unless the new one has
    it already."""
    for left, lock in _left(target, "old"):
        try:
            left.rename(_unfinished(target) if target.exists() else target)
        finally:
            os.close(lock)


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")


def _create_locked(target: Path) -> tuple[Path, int]:
    """A new folder, locked while its descriptor is open, so that no other process takes it for one
    of a killed process."""
    while True:
        part = _unfinished(target)
        part.mkdir()
        lock = _locked(part)
        if part.exists():
            return part, lock
        os.close(lock)  # removed before it was locked


def _locked(folder: Path) -> int:
    """The descriptor of a folder, locked while it is open."""
    lock = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _remove_unfinished(target: Path) -> None:
    for left, lock in _left(target, "part"):
        try:
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)


def _left(target: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """The folders of one kind that killed processes left, each locked; the caller closes the
    descriptors."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.{kind}")
    found: list[Path] = []
    with suppress(OSError):  # a folder that may be written and not listed
        found = [
            path for path in target.parent.iterdir() if name.fullmatch(path.name) and path.is_dir()
        ]
    for left in found:
        try:
            lock = os.open(left, os.O_RDONLY)
        except OSError:  # removed meanwhile
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # of a living process
            os.close(lock)
            continue
        yield left, lock


def export_model(
    source: str,
    output: Path,
    *,
    name: str | None = None,
    license: str | None = None,
    data_license: str | None = None,
    note: str | None = None,
    duplicate_tied: bool = True,
    dtype: str | None = None,
    trust: Sequence[str] = (),
    overwrite: bool = False,
) -> tuple[Path, Config]:
    """Write a model as a folder to share; returns the folder and what its card says.

    Args:
        name: title of the card; None is the name of the folder.
        license, data_license, note: None is what the source records.
        duplicate_tied: write tied projections under both of their published names.
        dtype: that the weights are rounded to: float32, float16 or bfloat16.
    """
    target = check_folder(output, overwrite, FILES)
    loaded = checkpoint.load(source, trust)
    published_layout(loaded.denoiser.backbone)  # refuses networks without one
    before, kind = fingerprint(loaded.denoiser), None if dtype is None else getattr(torch, dtype)
    if kind is not None:  # before the hash of the weights is compared with that of the evaluation
        round_weights(loaded.denoiser, kind)
    evaluation = record.stored_evaluation(loaded)
    if evaluation is None and fingerprint(loaded.denoiser) != before:
        # What the source records is of other weights.
        loaded = replace(loaded, origin=replace(loaded.origin, likelihood=None, curve=None))
    origin = record.origin_of(loaded, evaluation, trust, reads_data=True)
    origin = replace(
        origin,
        data=record.without_paths(origin.data),
        license=license or origin.license,
        data_license=data_license or origin.data_license,
        note=note or origin.note,
    )
    about = record.summary(loaded, origin) | {"duplicate_tied": duplicate_tied, "dtype": dtype}
    title = name or target.name
    with new_folder(target) as folder:
        export_published(
            loaded.denoiser,
            folder,
            needs_description=True,
            duplicate_tied=duplicate_tied,
            dtype=kind,
        )
        write_json(folder / exported.DESCRIPTION, exported.description(loaded, origin))
        if evaluation is not None:  # sampling chooses its groups from it
            write_json(folder / "evaluate.json", record.shared_evaluation(evaluation, title))
        with atomic_write(folder / "README.md") as file:
            file.write(model_card(title, about).encode())
    return target, about
