"""Packing of codes into one byte per base, with the counts of each record. Many small records are
counted together."""

from __future__ import annotations

from array import array
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.genome.fasta_parser import Header
from dnadiff.data.genome.record_table import COLUMNS, RecordTable, header_bytes
from dnadiff.data.genome.sources import AMBIGUOUS
from dnadiff.store.atomic_folder import Checksum

SOFT_MASKED = 0x80
TOKEN = np.uint8(0x7F)
UNKNOWN = 11
_PIECE = 1 << 22  # bytes processed together
_COUNTED = len(COLUMNS) - 1  # columns that come from the bases


class Packer:
    """Writes codes to a file and counts them; `path` is the sequence file, for messages."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path, self.file, self.checksum = path, file, Checksum()
        self._names: set[str] = set()
        self._headers, self._header_ends = bytearray(), array("q")
        self._name, self._line, self._length = "", 0, 0  # of the last record
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
        """Begin a record (a header) or append to it (codes)."""
        if isinstance(event, bytes):
            for start in range(0, len(event), _PIECE):
                self._append(event[start : start + _PIECE])
            return
        self._end_of_record()
        if event.name in self._names:
            raise ValueError(
                f"{self._where(event.line)} record {event.name} has the name of an earlier record; "
                "rename one, names must be unique"
            )
        self._names.add(event.name)
        self._name, self._line, self._length = event.name, event.line, 0
        self._headers += header_bytes(event.name, event.description)
        self._header_ends.append(len(self._headers))
        self._starts.append(self._size)

    def finish(self) -> None:
        """End the last record."""
        self._end_of_record()
        if not self._names:
            raise ValueError(f"{self.path} is empty; give a file with at least one record")
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
        self._length += len(codes)
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
        unknown = low == UNKNOWN
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

    def _end_of_record(self) -> None:
        if self._names and not self._length:
            raise ValueError(
                f"{self._where(self._line)} record {self._name} has no sequence; remove it or "
                "complete the file"
            )

    def _where(self, line: int) -> str:
        return f"{self.path}: line {line}:" if line else f"{self.path}:"


def _without_ambiguous(
    values: NDArray[np.uint8], borders: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Codes with N for ambiguity codes, and of each record their number and the position of the
    first one."""
    values, places = values.copy(), np.flatnonzero((values & TOKEN) == AMBIGUOUS)
    values[places] -= AMBIGUOUS - UNKNOWN
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
