"""The likelihood of records of any length, window by window: memory does not depend on the number of records or their lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from dnadiff.config import Json
from dnadiff.data.genome import pieces
from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.denoiser import BaseDenoiser
from dnadiff.likelihood.monte_carlo import ProgressCallback, WindowBatch, estimate
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


class RecordScores:
    """The likelihoods of the records of an input, in groups of windows.

    Args:
        window: records are cut into pieces of at most this many bases, as few as possible and of almost equal length.
        num_draws: network calls per window; where one is exact (`monte_carlo.is_exact`), it is the only one.
        seed: the noise of a window depends on the seed and on its number among the windows with a countable base.
        progress: called with the number of windows that are finished.
    """

    def __init__(
        self,
        denoiser: BaseDenoiser,
        process: AbsorbingProcess,
        source: SequenceInput,
        window: int,
        batch_size: int,
        num_draws: int,
        seed: int,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.denoiser, self.process, self.source, self.progress = denoiser, process, source, progress
        self.window, self.batch_size, self.num_draws, self.seed = window, batch_size, num_draws, seed
        self.pieces_done, self.windows_done, self.open = 0, 0, RecordScore()

    @property
    def num_windows(self) -> int:
        """All windows, also those without a countable base."""
        return sum(-(-length // self.window) for length in self.source.lengths)

    def state(self) -> Json:
        """What `restore` needs to continue after the last group."""
        return {"pieces": self.pieces_done, "windows": self.windows_done, "open": asdict(self.open)}

    def restore(self, state: Json) -> None:
        """Continue where `state` was taken."""
        self.pieces_done, self.windows_done, self.open = state["pieces"], state["windows"], RecordScore(**state["open"])

    def __iter__(self) -> Iterator[list[RecordScore]]:
        """The scores of the records that each group of windows completes, in order; a group may complete none."""
        lengths = self.source.lengths
        first, second = (islice(pieces.iter_cut(lengths, self.window), self.pieces_done, None) for _ in range(2))
        windows = self.source.windows(second)
        for group in pieces.grouped(first, max(_WINDOWS, 16 * self.batch_size), max(_BASES, self.window)):
            completed = []
            for piece, score in zip(group, self._scores([torch.from_numpy(next(windows)) for _ in group])):
                self.open.add(score)
                if piece.end == lengths[piece.record]:
                    completed.append(self.open)
                    self.open = RecordScore()
            self.pieces_done += len(group)
            yield completed

    def _scores(self, windows: Sequence[Tensor]) -> list[RecordScore]:
        emitted = self.process.vocab.is_emitted()
        counted = [i for i, ids in enumerate(windows) if emitted[ids.long()].any()]  # the others need no network call
        if self.progress is not None:
            self.progress(len(windows) - len(counted))
        found = self._window_scores([windows[i] for i in counted])
        self.windows_done += len(counted)
        scores = [RecordScore() for _ in windows]
        for i, score in zip(counted, found):
            scores[i] = score
        return scores

    def _window_scores(self, windows: Sequence[Tensor]) -> list[RecordScore]:
        if not windows:
            return []
        order: list[int] = []
        vocab = self.process.vocab
        emitted = vocab.is_emitted()

        def batches() -> Iterator[WindowBatch]:
            for number, tokens, valid in pieces.batches(windows, self.batch_size, vocab.pad_id):
                order.extend(number)
                yield WindowBatch(tokens, {"all": emitted[tokens]}, valid, rows=torch.tensor(number) + self.windows_done)

        result = estimate(self.denoiser, self.process, batches(), self.num_draws, self.seed, 1, self.progress)
        table = np.empty((len(windows), 3))
        table[order] = np.stack([result.per_sequence(), result.variance_mc(), result.tokens["all"]], 1)
        return [RecordScore(*row) for row in table.tolist()]
