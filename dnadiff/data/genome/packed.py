"""Sequence files packed into the cache: one byte per base, mapped into memory, with a small index.

A byte is the token id, plus 128 where the letter was lower case. The name of the folder is a hash
of the file's content. Folders are written atomically (`dnadiff.store.cache`). Many files are
packed in several processes, each file as a whole, so that a killed call loses only the files in
progress.
"""

from __future__ import annotations

import functools
import io
import json
import os
import queue
import subprocess
import sys
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.records import MAX_MAPPED, SOFT_MASKED, TOKEN
from dnadiff.fields import Json
from dnadiff.formats.nucleotides import ID_OF_LETTER, IUPAC, N_ID
from dnadiff.formats.sequences import Header, SequenceFormat, events_of
from dnadiff.progress import Progress
from dnadiff.store.address import is_remote
from dnadiff.store.cache import (
    Checksum,
    cache_dir,
    content_hash,
    ensure_folder,
    is_sound,
    known_hash,
    megabytes,
    read_index,
    verify,
)
from dnadiff.store.files import check_content, resolve

COLUMNS = ("length", "unknown", "gc", "soft", "ambiguous", "first_ambiguous", "header_end")
# Bytes; larger tables are mapped, and smaller ones read, so that thousands of files do not stay
# open.
_MAPPED = 1 << 20
_BETWEEN = b"\xff"  # name and description; no byte of UTF-8
NUMBERS, HEADERS = "records.npy", "headers"  # names of the two files of a table


class RecordInfo(TypedDict):
    """What a table contains about a record."""

    name: str
    description: str
    length: int
    unknown: int  # number of N
    gc: int  # number of G and C
    soft: int  # number of soft-masked bases
    ambiguous: list[
        int
    ]  # number of ambiguity codes other than N, and the position of the first one
    label: NotRequired[str | None]  # added by `Genome`, as `file`
    file: NotRequired[str]


class RecordRows(Sequence[RecordInfo]):
    """Rows that are created on access."""

    @abstractmethod
    def row(self, number: int) -> RecordInfo:
        """One row."""

    @overload
    def __getitem__(self, number: int) -> RecordInfo: ...
    @overload
    def __getitem__(self, number: slice) -> list[RecordInfo]: ...
    @override
    def __getitem__(self, number: int | slice) -> RecordInfo | list[RecordInfo]:
        chosen = range(len(self))[number]
        return self.row(chosen) if isinstance(chosen, int) else [self.row(each) for each in chosen]

    @override
    def __iter__(self) -> Iterator[RecordInfo]:
        return map(self.row, range(len(self)))


class RecordTable(RecordRows):
    """The records of one file.

    Args:
        numbers: a row for each of `COLUMNS`, `(7, number of records)` int64. The last is where the
            header ends in `headers`.
        headers: the `header_bytes` of all records, one after the other.
    """

    def __init__(self, numbers: NDArray[np.int64], headers: NDArray[np.uint8]) -> None:
        self.numbers, self.headers = numbers, headers
        self.length, self.unknown, self.gc, self.soft, self.ambiguous, self._first, self._end = (
            numbers
        )

    @classmethod
    def from_rows(cls, rows: Iterable[RecordInfo]) -> RecordTable:
        """From the rows themselves."""
        rows = list(rows)
        headers = [header_bytes(row["name"], row["description"]) for row in rows]
        ends = np.cumsum([len(header) for header in headers])
        numbers = [
            [row["length"], row["unknown"], row["gc"], row["soft"], *row["ambiguous"], end]
            for row, end in zip(rows, ends.tolist())
        ]
        return cls(
            np.array(numbers, np.int64).reshape(-1, len(COLUMNS)).T,
            np.frombuffer(b"".join(headers), np.uint8),
        )

    @classmethod
    def read(cls, folder: Path, total: int) -> RecordTable:
        """From the two files in a folder, for records of `total` bases.

        Raises:
            ValueError: if they contradict each other.
        """
        numbers = np.load(folder / NUMBERS, mmap_mode=_mode(folder / NUMBERS), allow_pickle=False)
        headers = (
            np.memmap(folder / HEADERS, np.uint8, "r")
            if _mode(folder / HEADERS)
            else np.fromfile(folder / HEADERS, np.uint8)
        )
        table = cls(np.asarray(numbers), np.asarray(headers))
        if (
            table.length.sum() != total
            or (table.length <= 0).any()
            or (np.diff(table._end) <= 0).any()
            or table._end[-1] != len(headers)
        ):
            raise ValueError(
                f"{folder} is damaged: its table of records does not fit its bases; remove this "
                "folder, it will be recreated"
            )
        return table

    def files(self) -> dict[str, bytes]:
        """The content of the two files."""
        content = io.BytesIO()
        np.lib.format.write_array(content, np.ascontiguousarray(self.numbers), allow_pickle=False)
        return {NUMBERS: content.getvalue(), HEADERS: self.headers.tobytes()}

    def names(self) -> list[str]:
        """The names of all records."""
        text = self.headers.tobytes()
        ends = self._end.tolist()
        return [
            text[start:end].partition(_BETWEEN)[0].decode() for start, end in zip([0, *ends], ends)
        ]

    @override
    def row(self, number: int) -> RecordInfo:
        header = self.headers[self._end[number - 1] if number else 0 : self._end[number]].tobytes()
        name, description = (part.decode() for part in header.partition(_BETWEEN)[::2])
        length, unknown, gc, soft, *ambiguous, _ = self.numbers[:, number].tolist()
        return RecordInfo(
            name=name,
            description=description,
            length=length,
            unknown=unknown,
            gc=gc,
            soft=soft,
            ambiguous=ambiguous,
        )

    @override
    def __len__(self) -> int:
        return len(self.length)


def header_bytes(name: str, description: str) -> bytes:
    """A header as a table has it."""
    return name.encode() + _BETWEEN + description.encode() if description else name.encode()


def _mode(path: Path) -> Literal["r"] | None:
    return "r" if path.stat().st_size > _MAPPED else None


_PIECE = 1 << 22  # bytes processed together
AMBIGUOUS = 12  # in place of ambiguity codes other than N, until they are counted


def _code_table() -> bytes:
    """What the packer makes of each letter: the token id, or `AMBIGUOUS`, with the bit of case."""
    codes = ID_OF_LETTER.copy()
    codes[list(b"RYKMSWBDHVrykmswbdhv")] = AMBIGUOUS
    codes[list(IUPAC.lower().encode())] |= SOFT_MASKED
    return codes.tobytes()


_CODES = _code_table()
_COUNTED = len(COLUMNS) - 1  # columns that come from the bases


class Packer:
    """Writes the letters of records to a file, one byte each, and counts them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.checksum = file, Checksum()
        self._headers, self._header_ends = bytearray(), array("q")
        self._pending: list[bytes] = []  # bases that are not counted yet
        self._size = self._written = 0  # of the bases that are pending, and of those that are not
        self._starts: list[int] = []  # where records begin in the pending bases
        self._counts: list[NDArray[np.int64]] = []  # (6, records) of records that are complete
        self._open: NDArray[np.int64] | None = (
            None  # of the last record, as far as it is counted, (6, 1)
        )
        self._edges: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] = (
            [],
            [],
        )  # starts and ends of the runs of N
        self._in_run = False

    def take(self, event: Header | bytes) -> None:
        """Begin a record (a header) or append to it (letters)."""
        if isinstance(event, bytes):
            for start in range(0, len(event), _PIECE):
                self._append(event[start : start + _PIECE].translate(_CODES))
            return
        self._headers += header_bytes(event.name, event.description)
        self._header_ends.append(len(self._headers))
        self._starts.append(self._size)

    def finish(self) -> None:
        """End the last record."""
        self._count()
        if self._in_run:
            self._edges[1].append(np.array([self._written], dtype=np.int64))

    def records(self) -> RecordTable:
        """What is known of all records."""
        last = [] if self._open is None else [self._open]
        numbers = [
            np.concatenate([*self._counts, *last], axis=1),
            np.array([self._header_ends], np.int64),
        ]
        return RecordTable(np.concatenate(numbers), np.frombuffer(bytes(self._headers), np.uint8))

    def runs(self) -> NDArray[np.int64]:
        """All runs of N, `(K, 2)`."""
        starts, ends = (np.concatenate([np.empty(0, np.int64), *edges]) for edges in self._edges)
        return np.stack([starts, ends], axis=1)

    def _append(self, codes: bytes) -> None:
        self._pending.append(codes)
        self._size += len(codes)
        if self._size >= _PIECE:
            self._count()

    def _count(self) -> None:
        """Count the pending bases and write them."""
        codes, size = b"".join(self._pending), self._size
        begins = [start for start in self._starts if start < size]
        left, self._starts = (
            len(self._starts) > len(begins),
            [],
        )  # the last record may have no base yet
        self._pending, self._size = [], 0
        if left:
            self._starts.append(0)
        if not size:
            return
        values = np.frombuffer(codes, np.uint8)
        borders = np.array(begins if begins[:1] == [0] else [0, *begins], dtype=np.int64)
        counts = np.zeros((_COUNTED, len(borders)), np.int64)
        if AMBIGUOUS in codes or AMBIGUOUS | SOFT_MASKED in codes:
            values, counts[4], counts[5] = _without_ambiguous(values, borders)
        low = values & TOKEN
        unknown = low == N_ID
        counts[0] = np.diff(borders, append=size)
        counts[1], counts[2], counts[3] = (
            _sums(each, borders)
            for each in (unknown, (low - np.uint8(8)) < 2, values >= SOFT_MASKED)
        )  # C is 8 and G is 9
        if self._in_run or counts[1].any():
            self._find_runs(unknown, np.array(begins, dtype=np.int64))
        self._add(counts, continues=begins[:1] != [0])
        self.checksum.update(values.data)
        self.file.write(values.data)
        self._written += size

    def _add(self, counts: NDArray[np.int64], continues: bool) -> None:
        """Counts of consecutive records, of which the first may continue the last one so far."""
        if self._open is not None and continues:
            first, before = counts[:, :1], self._open
            first[5] = (
                before[5] if before[4, 0] else np.where(first[4] > 0, first[5] + before[0], 0)
            )
            first[:5] += before[:5]
        elif self._open is not None:
            self._counts.append(self._open)
        if counts.shape[1] > 1:
            self._counts.append(counts[:, :-1])
        self._open = counts[:, -1:].copy()

    def _find_runs(self, unknown: NDArray[np.bool_], begins: NDArray[np.int64]) -> None:
        """Starts and ends of the runs of N; a run ends where a record ends."""
        before = np.concatenate([[self._in_run], unknown[:-1]])
        border = np.zeros(len(unknown), bool)
        border[begins] = True
        for edges, here in zip(
            self._edges, (unknown & (~before | border), before & (~unknown | border))
        ):
            edges.append(np.flatnonzero(here) + self._written)
        self._in_run = bool(unknown[-1])


def _without_ambiguous(
    values: NDArray[np.uint8], borders: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Codes with N for ambiguity codes, and of each record their number and the position of the
    first one."""
    values, places = values.copy(), np.flatnonzero((values & TOKEN) == AMBIGUOUS)
    values[places] -= AMBIGUOUS - N_ID
    record, first, count = np.unique(
        np.searchsorted(borders, places, "right") - 1, return_index=True, return_counts=True
    )
    number, position = np.zeros((2, len(borders)), np.int64)
    number[record], position[record] = count, places[first] - borders[record]
    return values, number, position


def _sums(flags: NDArray[np.bool_], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the flags are set in each record."""
    if len(borders) == 1:
        return np.array([np.count_nonzero(flags)])
    return np.add.reduceat(flags, borders, dtype=np.int64)


FORMAT = 1
MAX_LISTED = 4096  # records that the index lists; more are in a table of their own


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
            packer, position = Packer(bases), 0
            for event in events_of(path, raw):
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


Worker: TypeAlias = "subprocess.Popen[str]"
_ERRORS = (FileNotFoundError, PermissionError, OSError)  # what a file raises, besides ValueError
# files of which a sample is read whenever they are opened; of more, sizes and time stamps are
# compared
FEW = 32


def pack_all(paths: Sequence[str], num_workers: int = 0) -> Iterator[PackedFile]:
    """The packed form of each file, in order. Files that the cache does not have are packed first,
    by up to `num_workers` processes.

    Raises:
        FileNotFoundError, ValueError, OSError: as of `pack`, for the first file in the list that
            cannot be packed.
    """
    sample = len(paths) <= FEW
    folders = [find_packed(path, sample) for path in paths]
    missing = [path for path, folder in zip(paths, folders) if folder is None]
    workers = min(num_workers, len(missing), _num_cores())
    made = _in_order(missing) if workers < 2 else iter(_in_processes(missing, workers))
    yield from (PackedFile(next(made) if folder is None else folder) for folder in folders)


def _in_order(paths: Sequence[str]) -> Iterator[Path]:
    progress = Progress(len(paths), "packing, files") if len(paths) > FEW else None
    for path in paths:
        yield pack(path).folder
        if progress is not None:
            progress.update()
    if progress is not None:
        progress.close()


def _in_processes(paths: Sequence[str], num_workers: int) -> list[Path]:
    progress = Progress(len(paths), f"packing in {num_workers} processes, files")
    workers = [_start() for _ in range(num_workers)]
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def packed(path: str) -> Path:
        worker = free.get()
        try:
            return _ask(worker, path)
        finally:
            free.put(worker)
            progress.update()

    pool = ThreadPoolExecutor(num_workers)
    try:
        return list(pool.map(packed, paths))
    finally:
        pool.shutdown(cancel_futures=True)  # files in progress are completed
        for worker in workers:
            worker.communicate()
        progress.close()


def _start() -> Worker:
    """A process that packs the files that are named on its standard input, one a line. It ends when
    this process does, after the file in progress."""
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    formats = {kind.__module__ for kind in SequenceFormat.__subclasses__()} - {"__main__"}
    code = f"import {', '.join(sorted(formats))}; from {__name__} import serve; serve()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C reaches the parent alone
    )


def _ask(worker: Worker, path: str) -> Path:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(path) + "\n")
        worker.stdin.flush()
        reply = worker.stdout.readline()
    except OSError:
        reply = ""
    if not reply:
        raise ValueError(
            f"{path}: the process that packs it was killed; often because memory ran out: set "
            "data.num_workers lower and start again, what is packed is "
            "kept"
        )
    found = json.loads(reply)
    if "error" in found:
        raise next((kind for kind in _ERRORS if kind.__name__ == found["error"]), ValueError)(
            found["message"]
        )
    return Path(found["folder"])


def serve() -> None:
    """What a process that packs files does: reads a path, packs the file, writes the folder or the
    error."""
    for line in sys.stdin:
        try:
            reply = {"folder": str(pack(json.loads(line)).folder)}
        except (OSError, ValueError) as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(reply), flush=True)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
