"""The sequence files that a user's path names: a file, an address, a folder, a pattern, a manifest,
several of them, or a pyfaidx.Fasta.

A manifest is a table of sequence files, one a row, with a label and a weight for each.
"""

from __future__ import annotations

import difflib
import glob
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

from dnadiff.checks import expand_user
from dnadiff.formats.sequences import endings
from dnadiff.store.address import CACHED, is_remote, parse
from dnadiff.store.files import bare_name, open_text, resolve
from dnadiff.store.remote import expand as expand_remote

if TYPE_CHECKING:
    from pyfaidx import Fasta


def matches(text: str) -> list[str] | None:
    """The files that a pattern with `*`, `?`, `[...]` or `**` describes, sorted; None if the text
    is no pattern.

    Raises:
        FileNotFoundError: if there are none.
    """
    if is_remote(text):
        pattern = (
            text.partition("?")[0] if text.lower().startswith("http") else text
        )  # what follows is a query
        return expand_remote(text) if glob.has_magic(pattern) else None
    if text.startswith(CACHED) or not glob.has_magic(text) or expand_user(text).exists():
        return None
    found = sorted(
        name
        for name in glob.glob(str(expand_user(text)), recursive=True)
        if not Path(name).is_dir()
    )
    if not found:
        raise FileNotFoundError(
            f"{text} matches no file; check the pattern (it is read from {Path.cwd()})"
        )
    return found


COLUMNS = ("path", "label", "weight")


class ManifestRow(NamedTuple):
    """One file of a manifest."""

    path: str
    label: str | None = None
    weight: float = 1.0


def is_manifest(path: str) -> bool:
    """Whether a path is the name of a manifest: .tsv, possibly compressed."""
    return bare_name(path).endswith(".tsv")


def read_manifest(path: str) -> list[ManifestRow]:
    """The rows of a table with tabs and a header: `path`, and possibly `label` and `weight`.

    A path is relative to the folder of the manifest. With the prefix `cached:` before the name of
    the manifest, its addresses are not fetched; only copies in the cache are read.

    Raises:
        FileNotFoundError, ValueError: naming the line, what it has, and what is expected.
    """
    name = path.removeprefix(CACHED)
    file = path if is_remote(name) else name
    rows: list[ManifestRow] = []
    seen: dict[str, int] = {}
    with open_text(file) as handle:
        lines = ((number, line.rstrip("\n")) for number, line in enumerate(handle, 1))
        columns = _columns(name, next(lines, (1, ""))[1])
        for number, row in _rows(name, columns, lines):
            row = row._replace(
                path=_located(name, number, row.path, is_stored=path.startswith(CACHED))
            )
            where = (
                row.path if is_remote(row.path.removeprefix(CACHED)) else os.path.realpath(row.path)
            )
            if where in seen:
                raise ValueError(
                    f"{name}: line {number}: {row.path} is also in line {seen[where]}; name each "
                    "file once"
                )
            seen[where] = number
            rows.append(row)
    if not rows:
        raise ValueError(f"{name} has no rows; give a file in each")
    if not any(row.weight for row in rows):
        raise ValueError(f"{name}: every weight is 0; give at least one file a weight above 0")
    return rows


def _columns(name: str, header: str) -> list[str]:
    columns = header.removeprefix("#").split("\t")
    for column in columns:
        if column not in COLUMNS:
            close = "".join(
                f"; did you mean {match}?"
                for match in difflib.get_close_matches(column, COLUMNS, n=1, cutoff=0.5)
            )
            raise ValueError(
                f"{name}: line 1: column {column!r} is not known{close}; known: "
                f"{', '.join(COLUMNS)}, separated by tabs"
            )
        if columns.count(column) > 1:
            raise ValueError(f"{name}: line 1: column {column} occurs twice; remove one")
    if "path" not in columns:
        raise ValueError(
            f"{name}: line 1: the column path is missing; the header has {', '.join(columns)}"
        )
    return columns


def _rows(
    name: str, columns: list[str], lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, ManifestRow]]:
    for number, line in lines:
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise ValueError(
                f"{name}: line {number} has {len(cells)} fields, the header {len(columns)}; "
                "correct the line or remove it"
            )
        found = dict(zip(columns, cells))
        if not found["path"].strip():
            raise ValueError(f"{name}: line {number}: path is empty; name a file")
        yield (
            number,
            ManifestRow(
                found["path"],
                found.get("label") or None,
                _weight(name, number, found.get("weight", "1")),
            ),
        )


def _weight(name: str, number: int, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(
            f"{name}: line {number}: weight is {text[:40]!r}; expected a number of at least 0"
        )
    return weight


def _located(name: str, number: int, path: str, is_stored: bool) -> str:
    """A path of a manifest as it is read from anywhere.

    Raises:
        FileNotFoundError, ValueError: if it is no file.
    """
    if is_remote(path):
        return f"{CACHED}{parse(path).text}" if is_stored else parse(path).text
    if is_remote(name):
        if path.startswith(("/", "~", "bundled:")) or ".." in Path(path).parts:
            raise ValueError(
                f"{name}: line {number}: {path} is not in the folder of the manifest; a manifest "
                "on another machine names no file here"
            )
        address = parse(name)
        inside = address._replace(text=address.folder).inside(path).text
        return f"{CACHED}{inside}" if is_stored else inside
    local = (
        path
        if path.startswith("bundled:")
        else os.fspath(expand_user(name).parent / expand_user(path))
    )
    try:
        resolve(local)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{name}: line {number}: {error}") from None
    return local


SequencePath: TypeAlias = "str | Path | Fasta | Mapping[str, SequencePath] | Iterable[SequencePath]"
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
            f"{path} is a folder without sequence files ({', '.join(endings())}, also with .gz); "
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
    return bare_name(path).endswith(endings()) and not path.name.startswith(".")
