"""Sequence files packed into the cache: one byte per base, mapped into memory, with a small index.

A byte is the token id, plus 128 where the letter was lower case. The name of the folder is a hash
of the file's content. Folders are written atomically (`dnadiff.store.disk`). Many files are
packed in several processes, each file as a whole, so that a killed call loses only the files in
progress.
"""

from __future__ import annotations

import functools
import io
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.records import MAX_MAPPED, SOFT_MASKED, TOKEN, Integers, Mask, StoredArray, merged
from dnadiff.data.tokenizer import TokenIds
from dnadiff.fields import Json
from dnadiff.formats.nucleotides import ID_OF_LETTER, IUPAC, N_ID
from dnadiff.formats.sequences import Header, events_of
from dnadiff.progress import Progress
from dnadiff.store.address import is_remote
from dnadiff.store.disk import (
    cache_dir,
    content_hash,
    ensure_folder,
    is_sound,
    known_hash,
    megabytes,
    read_index,
    verify,
)
from dnadiff.store.files import resolve

FORMAT = 2
COLUMNS = ("length", "unknown", "gc", "soft", "ambiguous", "first_ambiguous", "header_end")
# Bytes; larger tables are mapped, and smaller ones read, so that thousands of files do not stay
# open.
_MAPPED = 1 << 20
_BETWEEN = b"\xff"  # name and description; no byte of UTF-8
# names of the two files of a table
NUMBERS = "records.npy"
HEADERS = "headers"


class RecordInfo(TypedDict):
    """What a table contains about a record."""

    name: str
    description: str
    length: int
    unknown: int  # number of N
    gc: int  # number of G and C
    soft: int  # number of soft-masked bases
    ambiguous: list[int]  # number of ambiguity codes other than N, and position of the first one
    label: NotRequired[str | None]  # added by `Genome`, as `file`
    file: NotRequired[str]


class RecordTable:
    """The records of one file, as rows that are created on access.

    Args:
        numbers: a row for each of `COLUMNS`, `(7, number of records)` int64. The last is where the
            header ends in `headers`.
        headers: the `header_bytes` of all records, one after the other.
    """

    def __init__(self, numbers: Integers, headers: TokenIds) -> None:
        self.numbers = numbers
        self.headers = headers
        self.length, self.unknown, _, self.soft, self.ambiguous, _, self._end = numbers

    @classmethod
    def read(cls, folder: Path, total: int) -> RecordTable:
        """From the two files in a folder, for records of `total` bases.

        Raises:
            ValueError: if they contradict each other.
        """
        is_large = (folder / NUMBERS).stat().st_size > _MAPPED
        numbers = np.load(folder / NUMBERS, mmap_mode="r" if is_large else None)
        read = np.memmap if is_large else np.fromfile
        table = cls(numbers, read(folder / HEADERS, np.uint8))
        if (
            table.length.sum() != total
            or (table.length <= 0).any()
            or (np.diff(table._end) <= 0).any()
            or table._end[-1] != len(table.headers)
        ):
            raise ValueError(
                f"{folder} is damaged: its table of records does not fit its bases; remove this "
                "folder, it will be recreated"
            )
        return table

    def files(self) -> dict[str, bytes]:
        """The content of the two files."""
        return {NUMBERS: _npy(self.numbers), HEADERS: self.headers.tobytes()}

    def names(self) -> list[str]:
        """The names of all records."""
        text = self.headers.tobytes()
        ends = self._end.tolist()
        return [
            text[start:end].partition(_BETWEEN)[0].decode() for start, end in zip([0, *ends], ends)
        ]

    def __getitem__(self, number: int) -> RecordInfo:
        length, unknown, gc, soft, *ambiguous, end = self.numbers[:, number].tolist()
        header = self.headers[self._end[number - 1] if number else 0 : end].tobytes()
        name, description = (part.decode() for part in header.partition(_BETWEEN)[::2])
        return RecordInfo(
            name=name,
            description=description,
            length=length,
            unknown=unknown,
            gc=gc,
            soft=soft,
            ambiguous=ambiguous,
        )

    def __len__(self) -> int:
        return len(self.length)


def header_bytes(name: str, description: str) -> bytes:
    """A header as a table has it."""
    return name.encode() + _BETWEEN + description.encode() if description else name.encode()


_PIECE = 1 << 22  # bytes processed together
AMBIGUOUS = 12  # in place of ambiguity codes other than N, until they are counted
_codes = ID_OF_LETTER.copy()  # the token id of each letter, or `AMBIGUOUS`, with the bit of case
_codes[list(b"RYKMSWBDHVrykmswbdhv")] = AMBIGUOUS
_codes[list(IUPAC.lower().encode())] |= SOFT_MASKED
_CODES = _codes.tobytes()


class Packer:
    """Writes the letters of records to a file, one byte each, and counts them, `piece` bases at a
    time, of many records."""

    def __init__(self, file: BinaryIO, piece: int = _PIECE) -> None:
        self.file = file
        self.piece = piece
        self._headers = bytearray()
        self._header_ends = array("q")
        self._starts = array("q")  # of the records
        self._size = self._written = 0  # bases that were taken, and those that were counted
        self._pending: list[bytes] = []
        # Of each piece: the numbers of its records, and the counts of the bases that are in it
        self._counts: list[tuple[Integers, Integers]] = []
        self._runs = [np.empty((0, 2), np.int64)]  # of N, of each piece

    def take(self, event: Header | bytes) -> None:
        """Begin a record (a header) or append to it (letters)."""
        if isinstance(event, Header):
            self._headers += header_bytes(event.name, event.description)
            self._header_ends.append(len(self._headers))
            self._starts.append(self._size)
            return
        for start in range(0, len(event), self.piece):
            codes = event[start : start + self.piece].translate(_CODES)
            self._pending.append(codes)
            self._size += len(codes)
            if self._size - self._written >= self.piece:
                self.finish()

    def finish(self) -> None:
        """Count the pending bases and write them."""
        codes = b"".join(self._pending)
        if not codes:
            return
        values = np.frombuffer(codes, np.uint8)
        first = bisect_right(self._starts, self._written) - 1
        last = bisect_left(self._starts, self._size)  # the last header may have no base yet
        # where records begin in these bases
        borders = np.maximum(np.array(self._starts[first:last]) - self._written, 0)
        counts = np.zeros((len(COLUMNS) - 1, len(borders)), np.int64)
        counts[5] = np.iinfo(np.int64).max
        if AMBIGUOUS in codes or AMBIGUOUS | SOFT_MASKED in codes:
            ambiguous = values & TOKEN == AMBIGUOUS
            values = values - ambiguous * np.uint8(AMBIGUOUS - N_ID)
            places = np.flatnonzero(ambiguous)
            record = np.searchsorted(borders, places, "right") - 1
            np.minimum.at(counts[5], record, places + self._written)
            counts[4] = _sums(ambiguous, borders)
        low = values & TOKEN
        unknown = low == N_ID
        counts[0] = np.diff(borders, append=len(values))
        for row, flags in enumerate((unknown, (low - np.uint8(8)) < 2, values >= SOFT_MASKED), 1):
            counts[row] = _sums(flags, borders)  # C is 8 and G is 9
        self._counts.append((np.arange(first, last), counts))
        if counts[1].any():
            border = np.zeros(len(values) + 1, bool)  # a run ends where a record ends
            border[borders] = True
            here = np.append(unknown, False)
            before = np.append(False, unknown)
            edges = [here & (~before | border), before & (~here | border)]
            runs = np.stack([np.flatnonzero(each) for each in edges], axis=1)
            self._runs.append(runs + self._written)
        self.file.write(values.data)
        self._written = self._size
        self._pending = []

    def records(self) -> RecordTable:
        """What is known of all records."""
        number = np.concatenate([number for number, _ in self._counts])
        counts = np.concatenate([counts for _, counts in self._counts], axis=1)
        firsts = np.flatnonzero(np.diff(number, prepend=-1))  # a record may be in several pieces
        sums = np.add.reduceat(counts[:5], firsts, axis=1)
        position = np.minimum.reduceat(counts[5], firsts) - np.array(self._starts)
        return RecordTable(
            np.stack([*sums, np.where(sums[4] > 0, position, 0), np.array(self._header_ends)]),
            np.frombuffer(bytes(self._headers), np.uint8),
        )

    def runs(self) -> Integers:
        """All runs of N, `(K, 2)`."""
        starts, ends = np.concatenate(self._runs).T
        # A run in two pieces of the same record is one.
        return merged(starts, ends, (starts[1:] == ends[:-1]) & ~np.isin(starts[1:], self._starts))


def _sums(flags: Mask, borders: Integers) -> Integers:
    """How many of the flags are set in each record."""
    if len(borders) == 1:
        return np.array([np.count_nonzero(flags)])
    return np.add.reduceat(flags, borders, dtype=np.int64)


@functools.lru_cache(maxsize=MAX_MAPPED)
def _opened(bases: StoredArray, index_version: tuple[int, int]) -> tuple[str, RecordTable]:
    """The hash of the sequence file, and the records."""
    folder = Path(bases.path).parent
    digest = read_index(folder, FORMAT)["source"]["sha256"]
    return digest, RecordTable.read(folder, bases.size)


class PackedFile:
    """An opened packed file: its records, one after the other, in `stored.mapped (total,)` uint8,
    read-only.

    It is pickled as its path. `digest` is the SHA-256 of the sequence file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.stored = StoredArray.at(self.folder / "bases")
        self._index = StoredArray.at(self.folder / "index.json").version
        self.digest, _ = _opened(self.stored, self._index)

    @property
    def records(self) -> RecordTable:
        """What is known of each record. Few tables are in memory at a time."""
        return _opened(self.stored, self._index)[1]

    @property
    def offsets(self) -> Integers:
        """Where each record begins in `bases`, and where the last one ends."""
        return np.append(0, np.cumsum(self.records.length))

    @cached_property
    def runs(self) -> Integers:
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
    # a file that is replaced while it is hashed has another state at the end
    before = _state_of(source)
    digest = content_hash(source)
    fill = partial(_fill, str(path), source, before, digest)
    need = f"{path} needs about a byte a base"
    ensure_folder(_folder(digest), FORMAT, fill, source.name, need, sample=sample)
    return PackedFile(_folder(digest))


def find_packed(path: str, sample: bool = True) -> PackedFile | None:
    """The packed form, if the cache has it and nothing of the file needs to be read; arguments and
    errors as of `pack`."""
    if is_remote(path):
        return None
    source = resolve(path)
    digest = known_hash(source) if source.stat().st_size else None
    if digest is None or not is_sound(_folder(digest), FORMAT, sample):
        return None
    return PackedFile(_folder(digest))


def _folder(digest: str) -> Path:
    return cache_dir("genomes") / digest[:32]


def _state_of(source: Path) -> tuple[int, int, int]:
    """What shows that a file has changed."""
    about = source.stat()
    return about.st_size, about.st_ino, about.st_mtime_ns


def _fill(
    path: str, source: Path, before: tuple[int, int, int], digest: str, part: Path
) -> dict[str, Json]:
    """Write the packed form of a file into the folder `part`; returns the content of the index.

    Args:
        before: the state of the file before `digest` was computed.
    """
    with source.open("rb") as raw, (part / "bases").open("wb") as bases:
        with megabytes(before[0], f"packing {source.name}") as progress:
            packer = Packer(bases)
            position = 0
            for event in events_of(path, raw):
                packer.take(event)
                here = raw.tell()
                # a small file may expand to many bases
                progress(max(0, here - position), bases=f"{bases.tell():,}")
                position = max(position, here)
        packer.finish()
    if _state_of(source) != before:
        raise ValueError(f"{path} changed while it was read; start again when it is complete")
    files = {"runs.npy": _npy(packer.runs()), **packer.records().files()}
    for name, data in files.items():
        (part / name).write_bytes(data)
    return {"source": {"name": source.name, "sha256": digest}}


def _npy(values: NDArray) -> bytes:
    """An array as `numpy.save` writes it, which ignores an error in writing what is left in the
    buffer of the C library."""
    content = io.BytesIO()
    np.lib.format.write_array(content, np.ascontiguousarray(values), allow_pickle=False)
    return content.getvalue()


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
    found = [find_packed(path, sample) for path in paths]
    missing = [path for path, file in zip(paths, found) if file is None]
    made = iter(_packed(missing, num_workers))
    yield from (next(made) if file is None else file for file in found)


def _packed(paths: Sequence[str], num_workers: int) -> Iterable[PackedFile]:
    """Files that are packed in the order of their names, by several processes all of them before
    the first is returned."""
    workers = min(num_workers, len(paths))
    label = f"packing in {workers} processes, files" if workers > 1 else "packing, files"
    progress = Progress(len(paths), label) if workers > 1 or len(paths) > FEW else None
    files: Iterator[PackedFile] = map(pack, paths)
    if workers > 1:
        from dnadiff.store.processes import map_in_order

        files = map_in_order(pack, paths, workers, ahead=len(paths))
    done: list[PackedFile] = []
    try:
        for file in files:
            done.append(file)
            if progress is not None:
                progress.update()
    except BrokenProcessPool:
        raise ValueError(
            f"{paths[len(done)]}: the process that packs it was killed; often because memory ran "
            "out: set data.num_workers lower and start again, what is packed is kept"
        ) from None
    finally:
        if progress is not None:
            progress.close()
    return done
