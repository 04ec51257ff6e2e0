"""The information content of each base as a track: bedGraph, as text, or bigWig, by pyBigWig (extra
`tracks`)."""

from __future__ import annotations

import importlib
import logging
import math
import os
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

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

_BED_GRAPH, _BIG_WIG = (".bedgraph", ".bedgraph.gz", ".bdg", ".bdg.gz"), (".bw", ".bigwig")
_HEAD = struct.Struct("<III")  # record, first position and number of values of a run
_LONGEST_RUN = 1 << 18  # values written together
_LONGEST_NAME = 255  # bytes
log = logging.getLogger("dnadiff")


def is_big_wig(path: str | Path) -> bool:
    """Whether a file of this name is a bigWig file; otherwise it is bedGraph.

    Raises:
        ValueError: if it has neither's extension, or `pyBigWig` is not installed.
    """
    name = Path(path).name.lower()
    if name.endswith(_BIG_WIG):
        library()
    elif not name.endswith(_BED_GRAPH):
        known = ", ".join((*_BED_GRAPH, *_BIG_WIG))
        raise ValueError(f"per_base {path} has an unknown extension; known are {known}")
    return name.endswith(_BIG_WIG)


def library() -> ModuleType:
    """The package `pyBigWig`; raises ValueError if it is not installed."""
    try:
        return importlib.import_module("pyBigWig")
    except ImportError as error:
        raise ValueError(
            "per_base: bigWig needs the package pyBigWig: pip install -e '.[tracks]' in the "
            "checkout; or write a .bedgraph"
        ) from error


def bed_graph(name: str, start: int, values: NDArray[np.float32]) -> bytes:
    """A line for each base from `start` on that has a value: name, start, end (0-based, half-open)
    and the value with four decimals."""
    lines = enumerate(values.tolist(), start)
    return "".join(
        f"{name}\t{i}\t{i + 1}\t{value:.4f}\n" for i, value in lines if not math.isnan(value)
    ).encode()


def write_big_wig(records: Sequence[tuple[str, int]], values: BinaryIO, path: Path) -> None:
    """Write a bigWig file with zoom levels of runs of values, each after its `_HEAD`; `records` are
    the names and lengths of all sequences. Runs that continue each other are joined: pyBigWig
    writes a block for each."""
    target = library().open(str(path), "w")
    if target is None:
        raise OSError(
            f"{path} could not be written by pyBigWig; choose a folder that you may write to"
        )
    try:
        target.addHeader(list(records))
        run: list[float] = []
        record = start = 0
        while head := values.read(_HEAD.size):
            of_record, first, count = _HEAD.unpack(head)
            follows = (of_record, first) == (record, start + len(run))
            if run and (not follows or len(run) >= _LONGEST_RUN):
                target.addEntries(records[record][0], start, values=run, span=1, step=1)
                run = []
            if not run:
                record, start = of_record, first
            run += np.frombuffer(values.read(4 * count), "<f4").tolist()
        if run:
            target.addEntries(records[record][0], start, values=run, span=1, step=1)
    finally:
        target.close()


@dataclass(eq=False)
class TrackJob(ResumableJob):
    """The information content of all bases of an input. Items are windows that predict their
    middle. Until a bigWig file is complete, the values are in a file of 4 bytes per base next to
    it.

    Args:
        window, spacing, stranded: of `Information`; a network that reads both strands predicts the
            same for both.
    """

    stream = label = "per_base"
    items = "windows"

    model: Loaded
    source: SequenceInput
    output: Path
    window: int
    batch_size: int
    spacing: int
    stranded: bool

    def __post_init__(self) -> None:
        super().__init__()
        denoiser, self.totals = self.model.denoiser, {"bases": 0}
        alone = self.stranded or denoiser.backbone.reads_both_strands
        self.information = Information(
            denoiser, self.model.process, self.window, self.spacing, alone, self.batch_size
        )
        self.settings = settings_of(self.model, self.source) | {
            key: getattr(self, key) for key in ("window", "batch_size", "spacing", "stranded")
        }
        self.earlier = earlier_identities(denoiser)
        self.source, self.sites = self.source.sites()
        self.records = [(region.chrom, region.end) for region in self.source.regions]
        self.converts = is_big_wig(self.output)
        too_long = (name for name, _ in self.records if len(name.encode()) > _LONGEST_NAME)
        if self.converts and (wrong := next(too_long, None)):
            raise ValueError(
                f"per_base: a name of {len(wrong):,} characters ({wrong[:40]}...) does not fit "
                "bigWig; write a .bedgraph"
            )

    @property
    @override
    def collected(self) -> Path:
        values = self.output.with_name(f".{self.output.name}.values")
        return values if self.converts else self.output

    @property
    @override
    def total(self) -> int:
        return sum(1 for _ in tiles(self.sites, self.source.lengths, self.window))

    @override
    def starts(self) -> list[int]:
        total = self.total
        return [*range(0, total, self.information.together), total]

    @override
    def begin(self) -> None:
        total = sum(end - start for _, start, end in self.sites)
        strands = "" if self.information.stranded else " and strand"
        log.info(f"per_base: {total:,} bases, {self.spacing} network calls per window{strands}")

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        calls = self.spacing * (1 if self.information.stranded else 2)  # per window
        for group in self.information.along(self.source, self.sites, start + skip):
            content = b"".join(
                self._encoded(tile.window.record, tile.low, values) for tile, values in group
            )
            bases = sum(tile.high - tile.low for tile, _ in group)
            self.report(len(group), bases * 2 * calls)
            yield Result(len(group), content, {"bases": bases})

    def _encoded(self, record: int, start: int, values: NDArray[np.float32]) -> bytes:
        if not self.converts:
            return bed_graph(self.records[record][0], start, values)
        edges = np.flatnonzero(np.diff(~np.isnan(values), prepend=False, append=False))
        return b"".join(
            _HEAD.pack(record, start + low, high - low) + values[low:high].astype("<f4").tobytes()
            for low, high in edges.reshape(-1, 2).tolist()
        )

    @override
    def fold(self, result: Result) -> tuple[bytes, int]:
        self.totals["bases"] += result.about["bases"]
        return super().fold(result)

    @override
    def convert(self, collected: Path) -> None:
        # A name that `discard` removes if this process is killed.
        made = self.output.with_name(f".{self.output.name}.{uuid.uuid4().hex}.part")
        try:
            with collected.open("rb") as values:
                write_big_wig(self.records, values, made)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(made, self.output)
            sync_folder(self.output.parent)
        finally:
            made.unlink(missing_ok=True)

    @override
    def closing(self, seconds: float) -> str:
        return f"the track is in {self.output}"
