"""Sequence files packed into the cache: one byte per base, mapped into memory, with a small index.

A byte is the token id, plus 128 where the letter was lower case. The name of the folder is a hash of the file's content.
Folders are written atomically (`dnadiff.data.atomic_folder`).
"""

from __future__ import annotations

import io
import os
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from dnadiff.config import Json
from dnadiff.data.atomic_folder import ensure_folder, read_index, verify
from dnadiff.data.cache import cache_dir, content_hash, megabytes
from dnadiff.data.checksums import Checksum
from dnadiff.data.files import resolve
from dnadiff.data.genome.sources import AMBIGUOUS, Header, read_codes

FORMAT = 1
SOFT_MASKED = 0x80
TOKEN = np.uint8(0x7F)
UNKNOWN = 11
_PIECE = 1 << 22  # bytes processed together


class RecordInfo(TypedDict):
    """What the index contains about a record."""

    name: str
    description: str
    length: int
    unknown: int  # number of N
    gc: int  # number of G and C
    soft: int  # number of soft-masked bases
    ambiguous: list[int]  # number of ambiguity codes other than N, and the position of the first one
    label: NotRequired[str | None]  # added by `Genome.open`, as `file`
    file: NotRequired[str]


class PackedFile:
    """An opened packed file: its records, one after the other, in `bases (total,)` uint8, mapped and read-only.

    It is pickled as its path. `digest` is the SHA-256 of the sequence file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        index = read_index(self.folder, FORMAT)
        self.digest: str = index["source"]["sha256"]
        self.records: list[RecordInfo] = index["records"]
        self.offsets = np.concatenate([[0], np.cumsum([r["length"] for r in self.records], dtype=np.int64)])
        mapped = np.memmap(self.folder / "bases", dtype=np.uint8, mode="r") if self.offsets[-1] else np.empty(0, np.uint8)
        self.bases: NDArray[np.uint8] = mapped.view(np.ndarray)  # slicing a memmap takes five times as long

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """Runs of N in `bases`: (start, end) `(K, 2)`; no run crosses the border of a record."""
        return np.load(self.folder / "runs.npy")

    def record(self, number: int) -> NDArray[np.uint8]:
        """The bytes of one record `(length,)`, a view."""
        return self.bases[self.offsets[number] : self.offsets[number + 1]]

    def verify(self) -> int:
        """Read every byte of the packed form and return their number; ValueError, naming the place, if one was changed."""
        return verify(self.folder, FORMAT)

    def __reduce__(self) -> tuple[type[PackedFile], tuple[Path]]:
        return PackedFile, (self.folder,)


def pack(path: str | Path) -> PackedFile:
    """The packed form of a file, which is made if it is not in the cache.

    Raises:
        FileNotFoundError, ValueError: if the file is missing or malformed, naming file, line and remedy.
        OSError: if the disk is full; nothing is left in the cache.
    """
    source = resolve(path)
    if source.stat().st_size == 0:
        raise ValueError(f"{path} is empty; give a file that holds sequence")
    digest = content_hash(source)
    folder = cache_dir("genomes") / digest[:32]
    ensure_folder(folder, FORMAT, partial(_fill, str(path), source, digest), source.name, f"{path} needs about a byte a base")
    return PackedFile(folder)


def _fill(path: str, source: Path, digest: str, part: Path) -> tuple[dict[str, Json], dict[str, Checksum]]:
    """Write the packed form of a file into the folder `part`; returns the content of the index, and the checksums of the files."""
    before = source.stat()
    with source.open("rb") as raw, (part / "bases").open("wb") as bases:
        with megabytes(before.st_size, f"packing {source.name}") as progress:
            packer, position = Packer(path, bases), 0
            for event in read_codes(path, raw):
                packer.take(event)
                here = raw.tell()
                progress(max(0, here - position), bases=f"{bases.tell():,}")  # a small file may expand to many
                position = max(position, here)
        packer.finish()
        bases.flush()
        os.fsync(bases.fileno())
    if (source.stat().st_size, source.stat().st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise ValueError(f"{path} changed while it was read; start again when it is complete")
    # numpy.save ignores an error in writing what is left in the buffer of the C library, and the file would be cut short without a message.
    content = io.BytesIO()
    np.lib.format.write_array(content, packer.runs(), allow_pickle=False)
    checksum = Checksum()
    checksum.update(content.getvalue())
    with (part / "runs.npy").open("wb") as runs:
        runs.write(content.getvalue())
        runs.flush()
        os.fsync(runs.fileno())
    index = {"source": {"name": source.name, "sha256": digest}, "records": packer.records}
    return index, {"bases": packer.checksum, "runs.npy": checksum}


class Packer:
    """Writes codes to a file and counts them; `path` is the sequence file, for messages."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path, self.file, self.checksum = path, file, Checksum()
        self.records: list[RecordInfo] = []
        self._names: set[str] = set()
        self._line = self._written = 0
        self._edges: list[NDArray[np.int64]] = []  # starts and ends of the runs of N, alternating
        self._in_run = False

    def take(self, event: Header | bytes) -> None:
        """Begin a record (a header) or append to it (codes)."""
        if isinstance(event, bytes):
            for start in range(0, len(event), _PIECE):
                self._codes(event[start : start + _PIECE])
            return
        self._end_of_record()
        if event.name in self._names:
            raise ValueError(
                f"{self._where(event.line)} record {event.name} has the name of an earlier record; rename one, names must be unique"
            )
        self._names.add(event.name)
        self._line = event.line
        about = RecordInfo(name=event.name, description=event.description, length=0, unknown=0, gc=0, soft=0, ambiguous=[0, 0])
        self.records.append(about)

    def finish(self) -> None:
        """End the last record."""
        self._end_of_record()
        if not self.records:
            raise ValueError(f"{self.path} is empty; give a file with at least one record")

    def runs(self) -> NDArray[np.int64]:
        """All runs of N, `(K, 2)`."""
        return np.concatenate([np.empty(0, np.int64), *self._edges]).reshape(-1, 2)

    def _codes(self, codes: bytes) -> None:
        record = self.records[-1]
        values = np.frombuffer(codes, np.uint8)
        if AMBIGUOUS in codes or AMBIGUOUS | SOFT_MASKED in codes:
            values = values.copy()
            places = np.flatnonzero((values & TOKEN) == AMBIGUOUS)
            values[places] -= AMBIGUOUS - UNKNOWN
            if not record["ambiguous"][0]:
                record["ambiguous"][1] = record["length"] + int(places[0])
            record["ambiguous"][0] += len(places)
        low = values & TOKEN
        unknown = low == UNKNOWN
        count = int(np.count_nonzero(unknown))
        if count or self._in_run:
            edges = np.flatnonzero(unknown[1:] != unknown[:-1]) + 1
            if bool(unknown[0]) != self._in_run:
                edges = np.concatenate([[0], edges])
            self._edges.append(edges.astype(np.int64) + self._written)
            self._in_run = bool(unknown[-1])
        record["length"] += len(values)
        record["unknown"] += count
        record["gc"] += int(np.count_nonzero((low - np.uint8(8)) < 2))  # C 8 and G 9
        record["soft"] += int(np.count_nonzero(values >= SOFT_MASKED))
        self.checksum.update(values.data)
        self.file.write(values.data)
        self._written += len(values)

    def _end_of_record(self) -> None:
        if self._in_run:
            self._edges.append(np.array([self._written], dtype=np.int64))
            self._in_run = False
        if self.records and not self.records[-1]["length"]:
            raise ValueError(f"{self._where(self._line)} record {self.records[-1]['name']} has no sequence; remove it or complete the file")

    def _where(self, line: int) -> str:
        return f"{self.path}: line {line}:" if line else f"{self.path}:"
