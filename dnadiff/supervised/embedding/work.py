"""Embeddings as bytes, in units that do not depend on each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from typing_extensions import override

from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.data.work import Result, Work
from dnadiff.supervised.embedding.features import Embedder
from dnadiff.supervised.embedding.files import Vectors


@dataclass
class EmbeddingWork(Work):
    """The embeddings of all sequences of an input. Items are sequences."""

    embedder: Embedder
    source: SequenceInput
    batch_size: int

    unit = "lists of 16 batches and at most 4 million bases"

    @override
    def starts(self) -> list[int]:
        return list(
            accumulate(map(len, self.embedder.groups(self.source, self.batch_size)), initial=0)
        )

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        lengths, done = self.source.lengths, start + skip
        for group in self.embedder.stream(self.source, self.batch_size, done):
            self.report(len(group), sum(lengths[done : done + len(group)]))
            done += len(group)
            yield Result(len(group), b"".join(vectors.tobytes() for vectors in group))

    def vectors(self, result: Result, first: int) -> Vectors:
        """The embeddings in a result whose first sequence has this number: (D,), or (L_i, D) of a
        pool for each position."""
        values = np.frombuffer(result.content, self.embedder.dtype).reshape(-1, self.embedder.width)
        if not self.embedder.pool.per_position:
            return list(values)
        lengths = self.source.lengths[first : first + result.items]
        return np.split(values, np.cumsum(lengths)[:-1])
