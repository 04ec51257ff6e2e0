"""Sequence files packed into the cache: one byte per base, mapped into memory, with a small index.

A byte is the token id, plus 128 where the letter was lower case. The name of the folder is a hash
of the file's content. Folders are written atomically (`dnadiff.store.atomic_folder`).
"""

from __future__ import annotations

import functools
import io
import os
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.config import Json
from dnadiff.data.genome.packer import Packer
from dnadiff.data.genome.record_table import RecordTable
from dnadiff.data.genome.sources import read_codes
from dnadiff.store.address import is_remote
from dnadiff.store.atomic_folder import Checksum, ensure_folder, is_sound, read_index, verify
from dnadiff.store.cache import cache_dir, content_hash, known_hash, megabytes
from dnadiff.store.files import check_content, resolve

FORMAT = 1
MAX_LISTED = 4096  # records that the index lists; more are in a table of their own
MAX_MAPPED = 128  # files that are open at a time


class PackedBases(NamedTuple):
    """The bases of a packed file, mapped when they are needed. Few files are open at a time,
    however many there are."""

    path: str
    size: int
    version: tuple[int, int]  # inode and time stamp: another file may take its place

    @property
    def mapped(self) -> NDArray[np.uint8]:
        """One byte per base `(size,)`, read-only."""
        return _mapped(*self) if self.size else np.empty(0, np.uint8)


@functools.lru_cache(maxsize=MAX_MAPPED)
def _mapped(path: str, size: int, version: tuple[int, int]) -> NDArray[np.uint8]:
    return np.memmap(path, dtype=np.uint8, mode="r").view(
        np.ndarray
    )  # slicing a memmap takes five times as long


@functools.lru_cache(maxsize=MAX_MAPPED)
def _opened(bases: PackedBases, index_version: tuple[int, int]) -> tuple[str, RecordTable]:
    """The hash of the sequence file, and the records."""
    folder = Path(bases.path).parent
    index = read_index(folder, FORMAT)
    rows = index["records"]
    return index["source"]["sha256"], RecordTable.read(
        folder, bases.size
    ) if rows is None else RecordTable.from_rows(rows)


class PackedFile:
    """An opened packed file: its records, one after the other, in `bases (total,)` uint8, mapped
    and read-only.

    It is pickled as its path. `digest` is the SHA-256 of the sequence file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        bases = (self.folder / "bases").stat()
        self.stored = PackedBases(
            str(self.folder / "bases"), bases.st_size, (bases.st_ino, bases.st_mtime_ns)
        )
        index = (self.folder / "index.json").stat()
        self._index = index.st_ino, index.st_mtime_ns
        self.digest, _ = _opened(self.stored, self._index)

    @property
    def records(self) -> RecordTable:
        """What is known of each record. Few tables are in memory at a time."""
        return _opened(self.stored, self._index)[1]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each record begins in `bases`, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.records.length)])

    @property
    def bases(self) -> NDArray[np.uint8]:
        """All records, one after the other, `(total,)`."""
        return self.stored.mapped

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """Runs of N in `bases`: (start, end) `(K, 2)`; no run crosses the border of a record."""
        return np.load(self.folder / "runs.npy")

    def verify(self) -> int:
        """Read every byte of the packed form and return their number; ValueError, naming the place,
        if one was changed."""
        return verify(self.folder, FORMAT)

    def __reduce__(self) -> tuple[type[PackedFile], tuple[Path]]:
        return PackedFile, (self.folder,)


def pack(path: str | Path, sample: bool = True) -> PackedFile:
    """The packed form of a file, which is made if it is not in the cache.

    Args:
        sample: read a sample of a packed form that is there; False compares sizes and time stamps
            only.

    Raises:
        FileNotFoundError, ValueError: if the file is missing or malformed, naming file, line and
            remedy.
        OSError: if the disk is full; nothing is left in the cache.
    """
    source = resolve(path)
    check_content(path, source)
    before = _state_of(
        source
    )  # a file that is replaced while it is hashed has another one at the end
    digest = content_hash(source)
    need, fill = (
        f"{path} needs about a byte a base",
        partial(_fill, str(path), source, before, digest),
    )
    ensure_folder(_folder(digest), FORMAT, fill, source.name, need, sample=sample)
    return PackedFile(_folder(digest))


def find_packed(path: str, sample: bool = True) -> Path | None:
    """The folder of the packed form, if the cache has it and nothing of the file needs to be read;
    arguments and errors as of `pack`."""
    if is_remote(path):
        return None
    source = resolve(path)
    digest = known_hash(source) if source.stat().st_size else None
    return (
        _folder(digest)
        if digest is not None and is_sound(_folder(digest), FORMAT, sample)
        else None
    )


def _folder(digest: str) -> Path:
    return cache_dir("genomes") / digest[:32]


class _FileState(NamedTuple):
    """What shows that a file has changed."""

    inode: int
    size: int
    mtime: int


def _state_of(source: Path) -> _FileState:
    about = source.stat()
    return _FileState(about.st_ino, about.st_size, about.st_mtime_ns)


def _fill(
    path: str, source: Path, before: _FileState, digest: str, part: Path
) -> tuple[dict[str, Json], dict[str, Checksum]]:
    """Write the packed form of a file into the folder `part`; returns the content of the index, and
    the checksums of the files.

    Args:
        before: the state of the file before `digest` was computed.
    """
    with source.open("rb") as raw, (part / "bases").open("wb") as bases:
        with megabytes(before.size, f"packing {source.name}") as progress:
            packer, position = Packer(path, bases), 0
            for event in read_codes(path, raw):
                packer.take(event)
                here = raw.tell()
                progress(
                    max(0, here - position), bases=f"{bases.tell():,}"
                )  # a small file may expand to many
                position = max(position, here)
        packer.finish()
        bases.flush()
        os.fsync(bases.fileno())
    if _state_of(source) != before:
        raise ValueError(f"{path} changed while it was read; start again when it is complete")
    content = io.BytesIO()
    np.lib.format.write_array(content, packer.runs(), allow_pickle=False)
    table = packer.records()
    few = len(table) <= MAX_LISTED
    files = {"runs.npy": content.getvalue(), **({} if few else table.files())}
    checksums = {name: _write(part / name, data) for name, data in files.items()}
    index = {
        "source": {"name": source.name, "sha256": digest},
        "records": list(table) if few else None,
    }
    return index, {"bases": packer.checksum, **checksums}


def _write(path: Path, content: bytes) -> Checksum:
    # numpy.save ignores an error in writing what is left in the buffer of the C library, and the
    # file would be cut short without a message.
    checksum = Checksum()
    checksum.update(content)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return checksum
