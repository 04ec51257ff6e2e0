"""Opening text files, compressed or not, and replacing files in one step.

A path `bundled:NAME` is a file that ships with the package. What lies inside a file is the business of
`fasta`, `regions` and `text`.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from dnadiff.data import bundled

_BUNDLED = "bundled:"


def resolve(path: str | Path) -> Path:
    """The file behind `path`: `bundled:NAME` inside the package, `~` expanded.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is a folder.
    """
    text = str(path)
    if text.startswith(_BUNDLED):
        return bundled.path(text.removeprefix(_BUNDLED))
    found = Path(text).expanduser()
    if found.is_dir():
        raise ValueError(f"{path} is a folder; name the file in it")
    if not found.exists():
        raise FileNotFoundError(f"{path} does not exist; check the path (it is read from {Path.cwd()})")
    return found


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    r"""Open a plain, gzip or bgzip file of UTF-8 text for reading; CRLF arrives as `\n`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty, damaged or not text; also for errors met while the caller reads.
    """
    file = resolve(path)
    if file.stat().st_size == 0:
        raise ValueError(f"{path} is empty; give a file that holds sequence")
    with file.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
    opener = gzip.open if compressed else open
    try:
        with opener(file, "rt", encoding="utf-8-sig") as handle:
            yield handle
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); fetch or compress it again") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}); give a text file, plain or gzip-compressed") from error


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """Refuse an output file before the work that fills it begins.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is false.
        ValueError: if `path` is a folder.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; set overwrite=true to replace it, or choose another name")
    return target


@contextmanager
def replacing(path: str | Path, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Write `path` wholly or not at all: a temporary file beside it takes its place when the block ends without an error.

    A name that ends in `.gz` is compressed, with no time stamp inside: the same content gives the same bytes.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is false.
    """
    target = check_output(path, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as raw:
            if target.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    yield packed
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
