"""The sequence files that a user's path names: a file, an address, a folder, a pattern, a manifest,
several of them, or a pyfaidx.Fasta."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

from dnadiff.checks import expand_user
from dnadiff.data.genome.manifest import is_manifest, read_manifest
from dnadiff.data.patterns import matches
from dnadiff.store.address import CACHED, is_remote
from dnadiff.store.files import resolve

if TYPE_CHECKING:
    from pyfaidx import Fasta

SequencePath: TypeAlias = "str | Path | Fasta | Mapping[str, SequencePath] | Iterable[SequencePath]"
SUFFIXES = (
    ".fa",
    ".fasta",
    ".fna",
    ".fas",
    ".ffn",
    ".fsa",
    ".2bit",
    ".gb",
    ".gbk",
    ".gbff",
    ".genbank",
)
_PATHS = "expected the name of a file or of a folder, a list of them, or {label: name}"


class Source(NamedTuple):
    """One file of sequences."""

    path: str  # as the user wrote it
    label: str | None = None  # the species or class of all its records
    names: tuple[str, ...] | None = (
        None  # names to use instead of those in the file, in the order of the file
    )
    weight: float = (
        1.0  # how often its bases are drawn in training, relative to those of other files
    )
    is_one_of_many: bool = (
        False  # of a pattern or a manifest, whose files may have records of the same name
    )


def expand(path: SequencePath | None) -> list[Source]:
    """The files of a path, a folder, a pattern, a manifest, several of them, `{label: path}`, or an
    open pyfaidx.Fasta.

    Raises:
        FileNotFoundError, ValueError: if a file does not exist, a folder contains no sequence
            files, or a manifest is malformed.
    """
    if isinstance(path, Mapping):
        return [
            source._replace(label=str(label))
            for label, one in path.items()
            for source in expand(one)
        ]
    if _is_pyfaidx(path):
        return [Source(str(path.filename), names=tuple(path.keys()))]
    if not isinstance(path, (str, Path)):
        return [source for one in _several(path) for source in expand(one)]
    text = str(path)
    if not text.strip():
        raise ValueError(f"data.path is {path!r}; {_PATHS}")
    if is_manifest(text):
        return [
            Source(row.path, row.label, weight=row.weight, is_one_of_many=True)
            for row in read_manifest(text)
        ]
    if (files := matches(text)) is not None:
        return [Source(file, is_one_of_many=True) for file in files]
    if is_remote(text) or text.startswith(CACHED):
        return [Source(text)]  # fetched when it is packed
    folder = expand_user(path)
    if not folder.is_dir():
        resolve(path)
        return [Source(text)]
    found = sorted(p for p in folder.iterdir() if p.is_file() and _is_sequence_file(p))
    if not found:
        raise ValueError(
            f"{path} is a folder without sequence files ({', '.join(SUFFIXES)}, also with .gz); "
            "name a file in it"
        )
    return [Source(str(p)) for p in found]


def paths_of(path: SequencePath | None) -> list[str]:
    """The paths that the user wrote, as strings, for reports.

    Raises:
        ValueError: if it is not a path.
    """
    if isinstance(path, Mapping):
        return [f"{label}={one}" for label, many in path.items() for one in paths_of(many)]
    if _is_pyfaidx(path):
        return [str(path.filename)]
    return (
        [str(path).removeprefix(CACHED)]
        if isinstance(path, (str, Path))
        else [one for each in _several(path) for one in paths_of(each)]
    )


def _several(path: SequencePath | None) -> Iterable[SequencePath]:
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise ValueError(f"data.path is or contains {path!r}; {_PATHS}")
    return path


def _is_pyfaidx(path: SequencePath | None) -> TypeGuard[Fasta]:
    module = sys.modules.get(
        "pyfaidx"
    )  # optional; an open file cannot exist unless the module is imported
    return module is not None and isinstance(path, module.Fasta)


def _is_sequence_file(path: Path) -> bool:
    name = path.name.lower().removesuffix(".gz").removesuffix(".bgz")
    return name.endswith(SUFFIXES) and not name.startswith(".")
