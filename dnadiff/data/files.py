"""Reading of text files, compressed or not, and atomic writing of files.

A path `bundled:NAME` is a file that ships with the package; an address such as `s3://BUCKET/FILE`
is fetched into the cache (`remote`). File formats are read in `genome` and `text`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import json
import math
import os
import re
import stat
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, TypeAlias

from dnadiff.checks import expand_user
from dnadiff.config import CACHED, is_remote
from dnadiff.data import bundled
from dnadiff.data.disk import Size, WatchedFile, existing_parent, names_file, write_all, write_error

ByteReader: TypeAlias = "BinaryIO | gzip.GzipFile"
_BUNDLED = "bundled:"
_GZIP = b"\x1f\x8b"
# The empty block that ends every bgzip file (SAM specification, section 4.1.2).
_BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def resolve(path: str | Path) -> Path:
    """The file behind `path`: `bundled:NAME` inside the package, the copy in the cache of an
    address, `~` expanded.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is a folder.
        OSError: if it is an address and cannot be fetched.
    """
    text = str(path)
    if is_remote(text) or is_remote(text.removeprefix(CACHED)):
        from dnadiff.data.remote.cached import local_copy

        return local_copy(text)
    if text.startswith(_BUNDLED):
        return bundled.path(text.removeprefix(_BUNDLED))
    found = expand_user(text)
    if found.is_dir():
        raise ValueError(f"{path} is a folder; name the file in it")
    if not found.exists():
        raise FileNotFoundError(
            f"{path} does not exist; check the path (it is read from {Path.cwd()})"
        )
    return found


def is_file(path: str | Path) -> bool:
    """Whether a text names a file, not a value: a file of this machine, a bundled one, or an
    address."""
    text = str(path)
    return text.startswith((_BUNDLED, CACHED)) or is_remote(text) or expand_user(text).is_file()


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    r"""Open a plain, gzip or bgzip file of UTF-8 text for reading; `\r\n` and `\r` arrive as `\n`.
    See `decompressed`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty, damaged or not text; also for errors met while the caller
            reads.
    """
    with open_binary(path) as content:
        text = io.TextIOWrapper(content, encoding="utf-8-sig")
        try:
            yield text
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 text ({error.reason}); give a text file, plain or "
                "gzip-compressed"
            ) from error
        finally:
            if not text.closed:  # a generator that is collected may find it closed
                text.detach()


def check_content(path: str | Path, file: Path) -> None:
    """ValueError if a file, called `path` in the message, is empty, or is a pipe, whose size is not
    known before it is read."""
    found = file.stat()
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode) or stat.S_ISSOCK(found.st_mode):
        raise ValueError(
            f"{path} is a pipe or a device, and inputs are read more than once; write it to a file "
            "first"
        )
    if found.st_size == 0:
        raise ValueError(f"{path} is empty; give a file that contains sequences")


@contextmanager
def open_binary(path: str | Path) -> Iterator[ByteReader]:
    """Open a plain, gzip or bgzip file for reading; see `decompressed`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty or damaged; also for errors met while the caller reads.
    """
    file = resolve(path)
    check_content(path, file)
    with file.open("rb") as raw, decompressed(path, raw) as content:
        yield content


@contextmanager
def decompressed(path: str | Path, raw: BinaryIO) -> Iterator[ByteReader]:
    """The content of an open file, decompressed if it is gzip or bgzip.

    A compressed file is read to its end, where its checksum is, even if the caller stops earlier.

    Raises:
        ValueError: if it is damaged; also for errors met while the caller reads.
    """
    if not is_gzip(path, raw):
        yield raw
        return
    content = gzip.GzipFile(fileobj=raw)
    try:
        yield content
        for _ in chunks(content):
            pass
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged or cut short ({error}); fetch or compress it again"
        ) from error


def chunks(content: ByteReader, size: int = 1 << 22) -> Iterator[bytes]:
    """The rest of an open file in pieces."""
    while chunk := content.read(size):
        yield chunk


def is_gzip(path: str | Path, raw: BinaryIO) -> bool:
    """Whether an open file is compressed with gzip or bgzip; it is left at its beginning.

    Raises:
        ValueError: if it is a bgzip file without its last block. A file cut between two blocks
            reads without an error.
    """
    start = raw.read(18)
    if start[:4] == _GZIP + b"\x08\x04" and start[12:16] == b"BC\x02\x00":
        raw.seek(-min(len(_BGZIP_END), raw.seek(0, os.SEEK_END)), os.SEEK_END)
        if raw.read() != _BGZIP_END:
            raise ValueError(
                f"{path} is damaged or cut short: it is bgzip and does not end with the empty "
                "block that bgzip writes last; "
                "fetch it again, or, if you know that it is complete, pack it again with gunzip "
                "and bgzip"
            )
    raw.seek(0)
    return start[:2] == _GZIP


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """Refuse an output file before the work that fills it begins.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is false.
        ValueError: if `path` is a folder, or in a file.
        PermissionError: if its folder cannot be written.
    """
    if is_remote(path):
        raise ValueError(
            f"{path} is an address, and this is written as a file; choose a file, and copy it there"
        )
    target = expand_user(path)
    if target.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    folder = existing_parent(target)
    if not folder.is_dir():
        raise ValueError(f"{path} could not be written: {folder} is a file; choose another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{path} could not be written: the folder {folder} is read-only; choose a folder that "
            "you may write to"
        )
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"{path} exists; set overwrite=true to replace it, or choose another name"
        )
    return target


@contextmanager
def atomic_write(
    path: str | Path, overwrite: bool = False, size: Size = None
) -> Iterator[BinaryIO]:
    """Write `path` atomically: a temporary file next to it replaces it when the block ends without
    an error.

    A name that ends in `.gz` is compressed, with no time stamp inside: the same content gives the
    same bytes. An address is uploaded.

    Args:
        size: bytes that will be written, or a function that counts them, for the message when the
            disk is full.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is false.
        OSError: naming the file and the space that is free, if it cannot be written; what was there
            before stays.
    """
    if is_remote(path):
        from dnadiff.data.remote.outputs import uploaded

        with (
            uploaded(path, overwrite) as local,
            atomic_write(local, overwrite=True, size=size) as file,
        ):
            yield file
        return
    target = check_output(path, overwrite)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    raw: WatchedFile | None = None
    try:
        with names_file(path, size):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_unfinished(target)
            while raw is None:
                raw = _open_locked(part)
        with io.BufferedWriter(raw) as buffered:
            if target.suffix.lower() == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=buffered, mtime=0) as packed:
                    yield packed  # type: ignore[misc]  # a GzipFile has what callers use of a BinaryIO
            else:
                yield buffered
            buffered.flush()
            if raw.error is not None:  # the caller ignored it
                raise raw.error
            with names_file(path, size):
                os.fsync(raw.fileno())
                os.replace(part, target)  # while the file is locked
                sync_folder(target.parent)
    except Exception as error:
        if raw is None or raw.error is None:
            raise
        part.unlink(missing_ok=True)  # before the space that is free is measured
        raise write_error(raw.error, path, size, raw.count) from error
    finally:  # also if Ctrl-C arrives while the file is being opened
        with suppress(OSError):  # its folder is a file, or cannot be changed: nothing was written
            part.unlink()


def _open_locked(part: Path) -> WatchedFile | None:
    """A new file, locked while it is open, so that no other process takes it for one of a killed
    process; None if one has just done so."""
    raw = WatchedFile(part)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(raw, fcntl.LOCK_EX)
    if os.fstat(raw.fileno()).st_nlink:
        return raw
    raw.close()  # removed before it was locked
    return None


def _remove_unfinished(target: Path) -> None:
    """Remove the temporary files of `target` that killed processes left: those that no process has
    locked."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.part")
    for left in [path for path in target.parent.iterdir() if name.fullmatch(path.name)]:
        with suppress(OSError), left.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, so that a new file is still there after a power
    failure; nothing where this is unsupported."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)


def append(path: str | Path, content: bytes) -> None:
    """Append to a file, or leave it as it was.

    Raises:
        OSError: naming the file and the space that is free, if it cannot be written.
    """
    with names_file(path, len(content)), open(path, "ab", buffering=0) as file:
        before = file.tell()
        try:
            write_all(file, content)
        except OSError:
            file.truncate(before)
            raise


def write_json(path: str | Path, content: object, indent: int = 2) -> None:
    """Write a JSON file atomically. NaN and infinities, which JSON does not have, become null."""
    text = (json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n").encode()
    with atomic_write(path, overwrite=True, size=len(text)) as file:
        file.write(text)


def _finite(content: object) -> object:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def remove_if_empty(folder: Path) -> None:
    """Remove an empty folder, and up to two parents that become empty."""
    with contextlib.suppress(OSError):
        for path in (folder, *folder.parents[:2]):
            path.rmdir()
