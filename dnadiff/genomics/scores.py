"""The likelihood of records of any length, window by window: memory does not depend on the number
of records or their lengths."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from dnadiff.data.genome import pieces
from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.data.genome.pieces import Piece
from dnadiff.diffusion.likelihood.estimators import WindowBatch, check_num_draws, estimate, is_exact
from dnadiff.fields import Json
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.progress import table
from dnadiff.weights.loaded import Loaded
from dnadiff.weights.tensors import earlier_identities, identity

_WINDOWS, _BASES = 512, 1 << 22  # in memory together
COLUMNS = ("name", "length", "counted", "nats_per_base", "bits_per_base", "se_mc", "total_bits")
REGION_NAME = "region_name"  # last column, if the regions have names in their file
log = logging.getLogger("dnadiff")


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

    def add(self, nats: float, variance: float, counted: float) -> None:
        """Add the numbers of another part."""
        self.nats += nats
        self.variance += variance
        self.counted += counted

    @property
    def per_base(self) -> tuple[float, float]:
        """Nats and their standard error for each counted base; NaN without one."""
        bases = self.counted or math.nan
        return self.nats / bases, math.sqrt(self.variance) / bases


class ScoreJob(ResumableJob):
    """A table of the likelihood of each record of an input. Items are windows, and a `Result` has
    three float64 numbers for each.

    Args:
        window: records are cut into pieces of at most this many bases, as few as possible and of
            almost equal length.
        num_draws: network calls per window; where one is exact (`monte_carlo.is_exact`), it is the
            only one.
        seed: the noise of a window depends on the seed and on its number among the windows with a
            countable base.

    Attributes:
        total_score: of all records.
    """

    stream, label = "table", "score"

    def __init__(
        self,
        model: Loaded,
        source: SequenceInput,
        output: Path,
        *,
        window: int,
        batch_size: int,
        num_draws: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.denoiser, self.process, self.source = model.denoiser, model.process, source
        self.path, self.output, self.window, self.batch_size = (
            model.path,
            output,
            window,
            batch_size,
        )
        if not is_exact(model.denoiser):
            check_num_draws(num_draws)
        self.num_draws, self.seed = num_draws, seed
        self.settings = settings_of(model, source) | {
            "window": window,
            "batch_size": batch_size,
            "num_draws": num_draws,
            "seed": seed,
        }
        self.region_names = source.region_names
        if self.region_names is not None:
            self.settings |= {"columns": [*COLUMNS, REGION_NAME]}
        self.earlier = earlier_identities(model.denoiser)
        self.emitted = model.process.vocab.is_emitted()
        self.counts = self.emitted.numpy()
        # Read for a window, at most.
        self.tokens = window * (1 if is_exact(model.denoiser) else num_draws)
        self.lengths, self.windows = source.lengths, 0
        self.open, self.total_score = RecordScore(), RecordScore()
        self._cut = pieces.iter_cut(self.lengths, window)

    @property
    @override
    def total(self) -> int:
        return sum(-(-length // self.window) for length in self.lengths)

    def _groups(self, first: int) -> Iterator[list[Piece]]:
        found = islice(pieces.iter_cut(self.lengths, self.window), first, None)
        return pieces.grouped(found, max(_WINDOWS, 16 * self.batch_size), max(_BASES, self.window))

    @override
    def starts(self) -> list[int]:
        return list(accumulate(map(len, self._groups(0)), initial=0))

    @override
    def prepare(self) -> Json:
        """The first window of each unit, and how many before it have a countable base."""
        windows = self.source.windows(pieces.iter_cut(self.lengths, self.window))
        counts = [
            sum(map(self._is_counted, islice(windows, len(group)))) for group in self._groups(0)
        ]
        return list(zip(self.starts(), accumulate(counts, initial=0)))

    @override
    def begin(self) -> None:
        log.info(
            f"model: {self.path}; {len(self.lengths):,} records in {self.total:,} windows of at "
            f"most {self.window} bases"
        )

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        first = start + skip
        known = ((0, 0), (self.position, self.windows), *(self.prepared or ()))
        before, counted = max((number, count) for number, count in known if number <= first)
        windows = self.source.windows(
            islice(pieces.iter_cut(self.lengths, self.window), before, None)
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

    @override
    def resume(self, done: int, notes: Mapping[str, Json]) -> None:
        if notes:
            state = notes["state"]
            self.position, self.windows = state["pieces"], state["windows"]
            self.open, self.total_score = (
                RecordScore(**state["open"]),
                RecordScore(**notes["totals"]),
            )
            self._cut = islice(self._cut, self.position, None)

    @override
    def header(self) -> bytes:
        names = COLUMNS if self.region_names is None else (*COLUMNS, REGION_NAME)
        return ("\t".join(names) + "\n").encode()

    @override
    def fold(self, result: Result) -> tuple[bytes, int]:
        completed = self.completed(result)
        self.position += result.items
        self.windows += result.about["windows"]
        for _, score in completed:
            self.total_score.add(**asdict(score))
        self.totals = {
            "state": {"pieces": self.position, "windows": self.windows, "open": asdict(self.open)},
            "totals": asdict(self.total_score),
        }
        return "".join(self.row(record, score) for record, score in completed).encode(), len(
            completed
        )

    def completed(self, result: Result) -> list[tuple[int, RecordScore]]:
        """Add the next result to the scores of the records that its windows are cut from; the
        records that it completes, with their numbers."""
        found = []
        for row in np.frombuffer(result.content, "<f8").reshape(-1, 3).tolist():
            piece = next(self._cut)
            self.open.add(*row)
            if piece.end == self.lengths[piece.record]:
                found.append((piece.record, self.open))
                self.open = RecordScore()
        return found

    def row(self, record: int, score: RecordScore) -> str:
        """A line of the table; nan for a record without a countable base."""
        nats, se = score.per_base
        numbers = (nats, nats / math.log(2), se, score.nats / math.log(2))
        cells = [self.source.names[record], str(self.lengths[record]), f"{score.counted:.0f}"]
        last = [] if self.region_names is None else [self.region_names[record]]
        return "\t".join([*cells, *(f"{x:.6f}" for x in numbers), *last]) + "\n"

    @override
    def finish(self, collected: Path) -> dict[str, Json]:
        nats, se = self.total_score.per_base
        return {
            "records": len(self.lengths),
            "counted": int(self.total_score.counted),
            "bits_per_base": nats / math.log(2),
            "se_mc_bits": se / math.log(2),
        }

    @override
    def closing(self, seconds: float) -> str:
        nats, se = self.total_score.per_base
        rows: list[tuple[str, ...]] = [
            ("records", f"{len(self.lengths):,}"),
            ("bases counted", f"{self.total_score.counted:,.0f} of {sum(self.lengths):,}"),
            ("bits per base", f"{nats / math.log(2):.4f}"),
            ("se_mc (bits)", f"{se / math.log(2):.4f}"),
        ]
        return f"{table(rows)}\n{super().closing(seconds)}"


def settings_of(model: Loaded, source: SequenceInput) -> dict[str, Json]:
    """What all numbers of an input depend on."""
    device = next(model.denoiser.parameters()).device.type
    return {"model": identity(model.denoiser), "input": source.digest, "device": device}
