"""The network's features of all sequences of an input, as a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
from typing_extensions import override

from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.jobs.job import Job, Result
from dnadiff.progress import table
from dnadiff.supervised import embedding_files as files
from dnadiff.supervised.embedding_files import Vectors
from dnadiff.supervised.features import Embedder, pool_of
from dnadiff.weights.loaded import Loaded
from dnadiff.weights.tensors import earlier_identities, identity

log = logging.getLogger("dnadiff")


class EmbedJob(Job):
    """The embeddings of all sequences of an input. Items are sequences.

    Raises:
        ValueError: if the format of the file does not fit, or a sequence is too long.
    """

    stream, label = "vectors", "embed"

    def __init__(
        self,
        model: Loaded,
        source: SequenceInput,
        output: Path,
        *,
        batch_size: int,
        pool: str,
        layer: int | None,
        stranded: bool,
        dtype: str,
    ) -> None:
        self.path, self.source, self.output, self.batch_size = (
            model.path,
            source,
            output,
            batch_size,
        )
        self.embedder = Embedder(model.denoiser, pool_of(pool), layer, stranded, dtype)
        self.format = files.format_of(output, self.embedder.pool.per_position)
        self.embedder.check_lengths(source)
        self.about = {"pool": pool, "layer": layer, "stranded": stranded, "dtype": dtype}
        self.about |= {"model": identity(model.denoiser)}
        self.earlier = earlier_identities(model.denoiser)
        device = next(model.denoiser.parameters()).device.type
        inputs = {"input": source.digest, "batch_size": batch_size, "device": device}
        self.settings = self.about | inputs

    @property
    @override
    def total(self) -> int:
        return len(self.source.names)

    @override
    def starts(self) -> list[int]:
        groups = self.embedder.groups(self.source, self.batch_size)
        return list(accumulate(map(len, groups), initial=0))

    @override
    def begin(self) -> None:
        lengths = self.source.lengths
        log.info(
            f"model: {self.path}; {len(lengths):,} sequences of {min(lengths):,} to "
            f"{max(lengths):,} bases"
        )

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        lengths, done = self.source.lengths, start + skip
        for group in self.embedder.stream(self.source, self.batch_size, done):
            self.report(len(group), sum(lengths[done : done + len(group)]))
            done += len(group)
            yield Result(len(group), b"".join(vectors.tobytes() for vectors in group))

    @override
    def write(self, results: Iterator[Result]) -> None:
        about = files.EmbeddingTable(
            self.source.names,
            self.source.regions,
            self.embedder.width,
            self.embedder.dtype,
            self.embedder.pool.per_position,
            self.about,
            self.source.region_names,
        )
        files.write(self.output, self.format, about, self._vectors(results), overwrite=True)

    def _vectors(self, results: Iterator[Result]) -> Iterator[Vectors]:
        """The embeddings of each result: (D,), or (L_i, D) of a pool for each position."""
        done, lengths = 0, self.source.lengths
        for result in results:
            values = np.frombuffer(result.content, self.embedder.dtype)
            values = values.reshape(-1, self.embedder.width)
            if self.embedder.pool.per_position:
                cuts = np.cumsum(lengths[done : done + result.items])[:-1]
                yield np.split(values, cuts)
            else:
                yield list(values)
            done += result.items

    @override
    def closing(self, seconds: float) -> str:
        each = "base" if self.embedder.pool.per_position else "sequence"
        rows: list[tuple[str, ...]] = [
            ("sequences", f"{len(self.source.names):,}"),
            ("bases", f"{sum(self.source.lengths):,}"),
            ("numbers", f"{self.embedder.width} {self.embedder.dtype.name} per {each}"),
        ]
        return f"{table(rows)}\n{super().closing(seconds)}"


def check_format(output: Path, pool: str) -> None:
    """ValueError if no format has the name of the file, or a place for the vectors of the pool."""
    files.format_of(output, pool_of(pool).per_position)
