"""Manifests: a table of sequence files, one a row, with a label and a weight for each."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dnadiff.checks import expand_user
from dnadiff.store.address import CACHED, file_name, is_remote, parse
from dnadiff.store.files import open_text, resolve

COLUMNS = ("path", "label", "weight")


class ManifestRow(NamedTuple):
    """One file of a manifest."""

    path: str
    label: str | None = None
    weight: float = 1.0


def is_manifest(path: str) -> bool:
    """Whether a path is the name of a manifest: .tsv or .tsv.gz."""
    return file_name(path).lower().removesuffix(".gz").endswith(".tsv")


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
