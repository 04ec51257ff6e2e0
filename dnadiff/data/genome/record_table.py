"""What is known of each record of a packed file. A million records are seven numbers each in one
array, not a million objects."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

COLUMNS = ("length", "unknown", "gc", "soft", "ambiguous", "first_ambiguous", "header_end")
_MAPPED = (
    1 << 20
)  # bytes; larger tables are mapped, and smaller ones read, so that thousands of files do not stay open
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
