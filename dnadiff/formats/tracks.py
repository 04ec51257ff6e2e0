"""Tracks for genome browsers: bedGraph, as text, and bigWig, by pyBigWig (extra `tracks`)."""

from __future__ import annotations

import math
import os
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dnadiff.store.disk import atomic_write, sync_folder
from dnadiff.store.objects import optional_package

# Records, each with its intervals: start, end (0-based, half-open) and value.
Along: TypeAlias = Iterable[tuple[str, Iterable[tuple[int, int, float]]]]
_BED_GRAPH = (".bedgraph", ".bedgraph.gz", ".bdg", ".bdg.gz")
_BIG_WIG = (".bw", ".bigwig")
_HEAD = struct.Struct("<III")  # record, first position and number of values of a run
_LONGEST_RUN = 1 << 18  # values written together
LONGEST_NAME = 255  # bytes


def is_big_wig(path: str | Path, key: str = "per_base") -> bool:
    """Whether a file of this name, the value of `key`, is a bigWig file; otherwise it is bedGraph.

    Raises:
        ValueError: if it has neither's extension, or `pyBigWig` is not installed.
    """
    name = Path(path).name.lower()
    if name.endswith(_BIG_WIG):
        library(key)
    elif not name.endswith(_BED_GRAPH):
        known = ", ".join((*_BED_GRAPH, *_BIG_WIG))
        raise ValueError(f"{key} {path} has an unknown extension; known are {known}")
    return name.endswith(_BIG_WIG)


def library(key: str = "per_base") -> ModuleType:
    """The package `pyBigWig`; raises ValueError if it is not installed."""
    return optional_package("pyBigWig", f"{key}: bigWig", "tracks", "; or write a .bedgraph")


def bed_graph(name: str, start: int, values: NDArray[np.float32]) -> bytes:
    """A line for each base from `start` on that has a value: name, start, end (0-based, half-open)
    and the value with four decimals."""
    lines = enumerate(values.tolist(), start)
    return "".join(
        f"{name}\t{i}\t{i + 1}\t{value:.4f}\n" for i, value in lines if not math.isnan(value)
    ).encode()


def big_wig_runs(record: int, start: int, values: NDArray[np.float32]) -> bytes:
    """Values of consecutive bases of a record as `write_big_wig` reads them; NaN is no value."""
    edges = np.flatnonzero(np.diff(~np.isnan(values), prepend=False, append=False))
    return b"".join(
        _HEAD.pack(record, start + low, high - low) + values[low:high].astype("<f4").tobytes()
        for low, high in edges.reshape(-1, 2).tolist()
    )


@contextmanager
def _big_wig(records: Iterable[tuple[str, int]], path: Path) -> Iterator[Any]:
    """A bigWig file to add entries to, with zoom levels, which replaces a file of this name."""
    # A name that `discard` removes if this process is killed.
    made = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        target = library().open(str(made), "w")
        if target is None:
            raise OSError(
                f"{made} could not be written by pyBigWig; choose a folder that you may write to"
            )
        with closing(target):
            target.addHeader(list(records))
            yield target
        with made.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(made, path)
        sync_folder(path.parent)
    finally:
        made.unlink(missing_ok=True)


def write_big_wig(records: Sequence[tuple[str, int]], values: BinaryIO, path: Path) -> None:
    """Write a bigWig file with zoom levels of `big_wig_runs`, which replaces a file of this name;
    `records` are the names and lengths of all sequences.

    Runs that continue each other are joined: pyBigWig writes a block for each.
    """
    with _big_wig(records, path) as target:
        run: list[float] = []
        record = start = 0
        while head := values.read(_HEAD.size):
            of_record, first, count = _HEAD.unpack(head)
            follows = (of_record, first) == (record, start + len(run))
            if run and (not follows or len(run) >= _LONGEST_RUN):
                target.addEntries(records[record][0], start, values=run, span=1, step=1)
                run = []
            if not run:
                record = of_record
                start = first
            run += np.frombuffer(values.read(4 * count), "<f4").tolist()
        if run:
            target.addEntries(records[record][0], start, values=run, span=1, step=1)


def write_track(path: Path, lengths: Mapping[str, int], along: Along) -> None:
    """Write intervals with values as bigWig or bedGraph, by the name of the file, which they
    replace.

    Args:
        lengths: of all records.
        along: records in the order of `lengths`, with ascending intervals.
    """
    if is_big_wig(path):
        with _big_wig(lengths.items(), path) as target:
            for name, found in along:
                every = iter(found)
                while part := list(islice(every, _LONGEST_RUN)):
                    starts, ends, values = map(list, zip(*part))
                    target.addEntries([name] * len(part), starts, ends=ends, values=values)
        return
    with atomic_write(path, overwrite=True) as file:
        for name, found in along:
            for start, end, value in found:
                file.write(f"{name}\t{start}\t{end}\t{value:.6g}\n".encode())


def mean_coverage(start: NDArray, end: NDArray, value: NDArray) -> Iterator[tuple[int, int, float]]:
    """Disjoint intervals, ascending, each with the mean value (W,) of the intervals `start` to
    `end` (W,) that cover it."""
    edges = np.unique(np.concatenate([start, end]))
    first = np.searchsorted(edges, start)
    last = np.searchsorted(edges, end)
    total, count = np.zeros((2, len(edges)))
    # Sums of the values themselves: differences of running sums would leave rounding errors that
    # exceed small probabilities.
    for low, high, one in zip(first, last, value):
        total[low:high] += one
        count[low:high] += 1
    for i in np.flatnonzero(count):
        yield int(edges[i]), int(edges[i + 1]), float(total[i] / count[i])
