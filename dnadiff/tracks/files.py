"""Track files: bedGraph, as text, and bigWig, by pyBigWig (extra `tracks`). Both are written in
pieces and can be resumed."""

from __future__ import annotations

import importlib
import os
import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.design.output import ResumableOutput, discard
from dnadiff.design.provenance import write_settings
from dnadiff.store.disk import sync_folder

_HEAD = struct.Struct("<III")  # record, first position and number of values of a run
_LONGEST_RUN = 1 << 18  # values written together


class TrackFormat(ABC):
    """How the values of consecutive bases are stored. `records` are the names and lengths of all
    sequences."""

    def __init__(self, records: Sequence[tuple[str, int]]) -> None:
        self.records = list(records)

    @abstractmethod
    def encode(self, record: int, start: int, values: NDArray[np.float32]) -> bytes:
        """The bytes of values (n,) of the bases from `start` on; none is NaN."""

    @staticmethod
    @abstractmethod
    def collected_in(output: Path) -> Path:
        """The file of a `ResumableOutput` that collects the bytes of `encode`."""

    def finish(self, stream: ResumableOutput, output: Path) -> None:
        """Complete the file `output`, write the JSON file next to it, and remove what resuming it
        would need."""
        stream.finish()
        write_settings(output, stream.settings)
        discard(stream.output)

    def pieces(self, record: int, start: int, values: NDArray[np.float32]) -> bytes:
        """The bytes of values (n,) of the bases from `start` on; bases with NaN are left out."""
        known = np.concatenate([[False], ~np.isnan(values), [False]])
        edges = np.flatnonzero(known[1:] != known[:-1]).reshape(-1, 2)
        return b"".join(
            self.encode(record, start + low, values[low:high]) for low, high in edges.tolist()
        )


class BedGraph(TrackFormat):
    """A line for each base: name, start, end (0-based, half-open) and the value with four
    decimals."""

    @override
    def encode(self, record: int, start: int, values: NDArray[np.float32]) -> bytes:
        name = self.records[record][0]
        return "".join(
            f"{name}\t{i}\t{i + 1}\t{value:.4f}\n" for i, value in enumerate(values.tolist(), start)
        ).encode()

    @staticmethod
    @override
    def collected_in(output: Path) -> Path:
        return output


class BigWig(TrackFormat):
    """A bigWig file of float32 values, with zoom levels. Until it is complete, the values are in a
    file of 4 bytes per base next to it."""

    def __init__(self, records: Sequence[tuple[str, int]]) -> None:
        super().__init__(records)
        self.library = library()
        if wrong := next((name for name, _ in records if len(name.encode()) > 255), None):
            raise ValueError(
                f"per_base: a name of {len(wrong):,} characters ({wrong[:40]}...) does not fit "
                "bigWig; write a .bedgraph"
            )

    @override
    def encode(self, record: int, start: int, values: NDArray[np.float32]) -> bytes:
        return _HEAD.pack(record, start, len(values)) + values.astype("<f4").tobytes()

    @staticmethod
    @override
    def collected_in(output: Path) -> Path:
        return output.with_name(f".{output.name}.values")

    @override
    def finish(self, stream: ResumableOutput, output: Path) -> None:
        stream.finish()
        made = output.with_name(
            f".{output.name}.{uuid.uuid4().hex}.part"
        )  # a name that `discard` removes if this process is killed
        try:
            with stream.output.open("rb") as values:
                self._write(made, values)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(made, output)
            sync_folder(output.parent)
        finally:
            made.unlink(missing_ok=True)
        write_settings(output, stream.settings)
        discard(output)
        discard(stream.output)  # before the values: a journal without its file could not be resumed
        stream.output.unlink()

    def _write(self, path: Path, values: BinaryIO) -> None:
        target = self.library.open(str(path), "w")
        if target is None:
            raise OSError(
                f"{path} could not be written by pyBigWig; choose a folder that you may write to"
            )
        try:
            target.addHeader(self.records)
            for record, start, run in _runs(values):
                target.addEntries(
                    self.records[record][0], start, values=run.tolist(), span=1, step=1
                )
        finally:
            target.close()


def _runs(file: BinaryIO) -> Iterator[tuple[int, int, NDArray[np.float32]]]:
    """The runs of a file, with those that continue each other joined: pyBigWig writes a block for
    each."""
    parts: list[NDArray[np.float32]] = []
    record = start = end = 0
    while head := file.read(_HEAD.size):
        of_record, first, count = _HEAD.unpack(head)
        if parts and ((of_record, first) != (record, end) or end - start >= _LONGEST_RUN):
            yield record, start, np.concatenate(parts)
            parts = []
        if not parts:
            record, start = of_record, first
        parts.append(np.frombuffer(file.read(4 * count), "<f4"))
        end = first + count
    if parts:
        yield record, start, np.concatenate(parts)


def library() -> ModuleType:
    """The package `pyBigWig`; raises ValueError if it is not installed."""
    try:
        return importlib.import_module("pyBigWig")
    except ImportError as error:
        raise ValueError(
            "per_base: bigWig needs the package pyBigWig: pip install -e '.[tracks]' in the "
            "checkout; or write a .bedgraph"
        ) from error


FORMATS: dict[str, type[TrackFormat]] = {
    ".bedgraph": BedGraph,
    ".bedgraph.gz": BedGraph,
    ".bdg": BedGraph,
    ".bdg.gz": BedGraph,
    ".bw": BigWig,
    ".bigwig": BigWig,
}


def format_of(path: str | Path) -> type[TrackFormat]:
    """The class for a file of this name.

    Raises:
        ValueError: if no format has its extension, or the format's package is not installed.
    """
    name = Path(path).name.lower()
    found = next((kind for end, kind in FORMATS.items() if name.endswith(end)), None)
    if found is None:
        raise ValueError(
            f"per_base {path} has an unknown extension; known are {', '.join(FORMATS)}"
        )
    if found is BigWig:
        library()
    return found
