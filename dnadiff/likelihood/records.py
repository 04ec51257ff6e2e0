"""The likelihood of records of any length, window by window: memory does not depend on the number
of records or their lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from dnadiff.config import Json
from dnadiff.data.genome import pieces
from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.data.genome.pieces import Piece
from dnadiff.data.work import Result, Work
from dnadiff.denoiser import BaseDenoiser
from dnadiff.likelihood.estimators import WindowBatch, estimate, is_exact
from dnadiff.process import AbsorbingProcess

_WINDOWS, _BASES = 512, 1 << 22  # in memory together


@dataclass
class RecordScore:
    """The likelihood of one record, or of what was read of it.

    Attributes:
        nats: an upper bound on -log p, summed over its windows.
        variance: Monte Carlo variance of `nats`.
        counted: its bases A, C, G and T.
    """

    nats: float = 0.0
    variance: float = 0.0
    counted: float = 0.0

    def add(self, other: RecordScore) -> None:
        """Add the numbers of another part."""
        self.nats += other.nats
        self.variance += other.variance
        self.counted += other.counted


class WindowScores(Work):
    """The likelihoods of the windows of an input, in groups. Items are windows, and a `Result` has
    three float64 numbers for each.

    Args:
        window: records are cut into pieces of at most this many bases, as few as possible and of
            almost equal length.
        num_draws: network calls per window; where one is exact (`estimators.is_exact`), it is the
            only one.
        seed: the noise of a window depends on the seed and on its number among the windows with a
            countable base.
        known: number of an item, and how many windows before it have a countable base; saves
            counting them.
    """

    unit = "groups of 512 windows or 16 batches, and at most 4 million bases"

    def __init__(
        self,
        denoiser: BaseDenoiser,
        process: AbsorbingProcess,
        source: SequenceInput,
        window: int,
        batch_size: int,
        num_draws: int,
        seed: int,
        known: tuple[int, int] = (0, 0),
    ) -> None:
        self.denoiser, self.process, self.source, self.known = denoiser, process, source, known
        self.window, self.batch_size, self.num_draws, self.seed = (
            window,
            batch_size,
            num_draws,
            seed,
        )
        self.emitted = process.vocab.is_emitted()
        self.counts = self.emitted.numpy()
        self.tokens = window * (
            1 if is_exact(denoiser) else num_draws
        )  # read for a window, at most

    @property
    def num_windows(self) -> int:
        """All windows, also those without a countable base."""
        return sum(-(-length // self.window) for length in self.source.lengths)

    def _groups(self, first: int) -> Iterator[list[Piece]]:
        found = islice(pieces.iter_cut(self.source.lengths, self.window), first, None)
        return pieces.grouped(found, max(_WINDOWS, 16 * self.batch_size), max(_BASES, self.window))

    @override
    def starts(self) -> list[int]:
        return list(accumulate(map(len, self._groups(0)), initial=0))

    @override
    def prepare(self) -> Json:
        """The first window of each unit, and how many before it have a countable base."""
        windows = self.source.windows(pieces.iter_cut(self.source.lengths, self.window))
        counts = [
            sum(map(self._is_counted, islice(windows, len(group)))) for group in self._groups(0)
        ]
        return list(zip(self.starts(), accumulate(counts, initial=0)))

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        first = start + skip
        before, counted = max(
            (number, count)
            for number, count in ((0, 0), self.known, *(self.prepared or ()))
            if number <= first
        )
        windows = self.source.windows(
            islice(pieces.iter_cut(self.source.lengths, self.window), before, None)
        )
        counted += sum(map(self._is_counted, islice(windows, first - before)))
        for group in self._groups(first):
            scores, more = self._scores([next(windows) for _ in group], counted)
            counted += more
            yield Result(len(group), scores.astype("<f8").tobytes(), {"windows": more})

    def _is_counted(self, ids: NDArray[np.uint8]) -> bool:
        return bool(self.counts[ids].any())

    def _scores(
        self, windows: Sequence[NDArray[np.uint8]], before: int
    ) -> tuple[NDArray[np.float64], int]:
        """Nats, variance and counted bases of each window, (S, 3), and the number of windows with a
        countable base."""
        counted = [
            i for i, ids in enumerate(windows) if self._is_counted(ids)
        ]  # the others need no network call
        self.report(len(windows) - len(counted), 0)
        table = np.zeros((len(windows), 3))
        if counted:
            table[counted] = self._window_scores(
                [torch.from_numpy(windows[i]) for i in counted], before
            )
        return table, len(counted)

    def _window_scores(self, windows: Sequence[Tensor], before: int) -> NDArray[np.float64]:
        order: list[int] = []

        def batches() -> Iterator[WindowBatch]:
            for number, tokens, valid in pieces.batches(
                windows, self.batch_size, self.process.vocab.pad_id
            ):
                order.extend(number)
                yield WindowBatch(
                    tokens, {"all": self.emitted[tokens]}, valid, rows=torch.tensor(number) + before
                )

        def progress(done: int) -> None:
            self.report(done, done * self.tokens)

        result = estimate(
            self.denoiser, self.process, batches(), self.num_draws, self.seed, 1, progress
        )
        table = np.empty((len(windows), 3))
        table[order] = np.stack(
            [result.per_sequence(), result.variance_mc(), result.tokens["all"]], 1
        )
        return table


class RecordSums:
    """Adds the scores of windows, in their order, to those of the records that they are cut from.

    Args:
        state: of an earlier object, to continue after it.
    """

    def __init__(self, source: SequenceInput, window: int, state: Json = None) -> None:
        state = state or {"pieces": 0, "windows": 0, "open": asdict(RecordScore())}
        self.pieces, self.windows, self.open = (
            state["pieces"],
            state["windows"],
            RecordScore(**state["open"]),
        )
        self.lengths = source.lengths
        self._cut = islice(pieces.iter_cut(self.lengths, window), self.pieces, None)

    def state(self) -> Json:
        """What another object needs to continue."""
        return {"pieces": self.pieces, "windows": self.windows, "open": asdict(self.open)}

    def add(self, result: Result) -> list[RecordScore]:
        """Add the next result of `WindowScores`; the scores of the records that it completes, in
        order."""
        completed = []
        for row in np.frombuffer(result.content, "<f8").reshape(-1, 3).tolist():
            piece = next(self._cut)
            self.open.add(RecordScore(*row))
            if piece.end == self.lengths[piece.record]:
                completed.append(self.open)
                self.open = RecordScore()
        self.pieces, self.windows = (
            self.pieces + result.items,
            self.windows + result.about["windows"],
        )
        return completed
