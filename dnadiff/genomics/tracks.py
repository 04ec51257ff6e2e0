"""The information content of each base as a track: bedGraph, as text, or bigWig, by pyBigWig (extra
`tracks`)."""

from __future__ import annotations

import importlib
import logging
import os
import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.genomics.information import Information, tiles
from dnadiff.genomics.scores import settings_of
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.store.disk import sync_folder
from dnadiff.weights.loaded import Loaded
from dnadiff.weights.tensors import earlier_identities

_HEAD = struct.Struct("<III")  # record, first position and number of values of a run
_LONGEST_RUN = 1 << 18  # values written together
log = logging.getLogger("dnadiff")


class TrackFormat(ABC):
    """How the values of consecutive bases are stored. `records` are the names and lengths of all
    sequences.

    Attributes:
        converts: whether the file is made of the collected bytes by `convert`.
    """

    converts: ClassVar[bool] = False

    def __init__(self, records: Sequence[tuple[str, int]]) -> None:
        self.records = list(records)

    @abstractmethod
    def encode(self, record: int, start: int, values: NDArray[np.float32]) -> bytes:
        """The bytes of values (n,) of the bases from `start` on; none is NaN."""

    def convert(self, collected: Path, output: Path) -> None:
        """Write the file of the collected bytes."""
        raise NotImplementedError

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


class BigWig(TrackFormat):
    """A bigWig file of float32 values, with zoom levels. Until it is complete, the values are in a
    file of 4 bytes per base next to it."""

    converts: ClassVar[bool] = True

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

    @override
    def convert(self, collected: Path, output: Path) -> None:
        # A name that `discard` removes if this process is killed.
        made = output.with_name(f".{output.name}.{uuid.uuid4().hex}.part")
        try:
            with collected.open("rb") as values:
                self._write(made, values)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(made, output)
            sync_folder(output.parent)
        finally:
            made.unlink(missing_ok=True)

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


class TrackJob(ResumableJob):
    """The information content of all bases of an input. Items are windows that predict their
    middle.

    Args:
        track: the format of the file.
        spacing, stranded: of `Information`; a network that reads both strands predicts the same for
            both.
    """

    stream = label = "per_base"
    items = "windows"

    def __init__(
        self,
        model: Loaded,
        source: SequenceInput,
        output: Path,
        track: type[TrackFormat],
        *,
        window: int,
        batch_size: int,
        spacing: int,
        stranded: bool,
    ) -> None:
        super().__init__()
        alone = stranded or model.denoiser.backbone.reads_both_strands
        self.information = Information(
            model.denoiser, model.process, window, spacing, alone, batch_size
        )
        self.output, self.totals = output, {"bases": 0}
        self.settings = settings_of(model, source) | {
            "window": window,
            "batch_size": batch_size,
            "spacing": spacing,
            "stranded": stranded,
        }
        self.earlier = earlier_identities(model.denoiser)
        self.source, self.sites = source.sites()
        self.track = track([(region.chrom, region.end) for region in self.source.regions])
        self.converts = self.track.converts

    @property
    @override
    def collected(self) -> Path:
        return (
            self.output.with_name(f".{self.output.name}.values") if self.converts else self.output
        )

    @property
    @override
    def total(self) -> int:
        return sum(1 for _ in tiles(self.sites, self.source.lengths, self.information.window))

    @override
    def starts(self) -> list[int]:
        return [*range(0, self.total, self.information.together), self.total]

    @override
    def begin(self) -> None:
        total = sum(piece.end - piece.start for piece in self.sites)
        strands = "" if self.information.stranded else " and strand"
        log.info(
            f"per_base: {total:,} bases, {self.information.spacing} network calls per "
            f"window{strands}"
        )

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        calls = self.information.spacing * (1 if self.information.stranded else 2)  # per window
        for group in self.information.along(self.source, self.sites, start + skip):
            content = b"".join(
                self.track.pieces(tile.window.record, tile.low, values) for tile, values in group
            )
            bases = sum(tile.high - tile.low for tile, _ in group)
            self.report(len(group), bases * 2 * calls)
            yield Result(len(group), content, {"bases": bases})

    @override
    def fold(self, result: Result) -> tuple[bytes, int]:
        self.totals["bases"] += result.about["bases"]
        return super().fold(result)

    @override
    def convert(self, collected: Path) -> None:
        self.track.convert(collected, self.output)

    @override
    def closing(self, seconds: float) -> str:
        return f"the track is in {self.output}"
