"""The likelihood of records of any length, window by window, and the information content of each of
their bases as a track: bedGraph, as text, or bigWig, by pyBigWig (extra `tracks`). Memory does not
depend on the number of records or their lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.data.records import Interval, grouped, padded_batches, pieces
from dnadiff.diffusion.likelihood.estimators import WindowBatch, check_num_draws, estimate, is_exact
from dnadiff.fields import Json, JsonDict
from dnadiff.formats.tracks import LONGEST_NAME, bed_graph, big_wig_runs, is_big_wig, write_big_wig
from dnadiff.genomics.information import Information, tiles
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.progress import log, table
from dnadiff.weights.loaded import Loaded
from dnadiff.weights.tensors import earlier_identities, identity

# in memory together
_WINDOWS = 512
_BASES = 1 << 22
COLUMNS = {  # what they mean
    "name": "of the record, or chrom:first-last(strand)",
    "length": "bases",
    "counted": "bases that are A, C, G or T",
    "nats_per_base": "upper bound on -log p of a counted base, in nats",
    "bits_per_base": "the same in bits",
    "se_mc": "Monte Carlo standard error of nats_per_base, in nats",
    "total_bits": "the bound on -log p of the record, in bits",
}


def settings_of(job: ScoreJob | TrackJob, *keys: str) -> JsonDict:
    """What all numbers of an input depend on."""
    denoiser = job.model.denoiser
    return {
        "model": identity(denoiser),
        **job.source.identity,
        "device": denoiser.device.type,
        **{key: getattr(job, key) for key in keys},
    }


_NUMBERS = ("nats", "variance", "counted")  # of a window, or of all windows of a record


def per_base(score: NDArray[np.float64]) -> tuple[float, float]:
    """Nats, an upper bound on -log p, and their Monte Carlo standard error for each counted base,
    given nats, variance and counted bases (A, C, G and T), (3,); NaN without such a base."""
    nats, variance, counted = score.tolist()
    return nats / (counted or math.nan), math.sqrt(variance) / (counted or math.nan)


def in_both(nats: float) -> str:
    """A value in bits and in nats."""
    return f"{nats / math.log(2):.4f} bits, {nats:.4f} nats"


@dataclass(eq=False)
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
        total_score: `_NUMBERS` of all records.
    """

    stream = "table"
    label = "score"

    model: Loaded
    source: SequenceInput
    output: Path
    window: int
    batch_size: int
    num_draws: int
    seed: int

    def __post_init__(self) -> None:
        super().__init__()
        denoiser = self.model.denoiser
        self.calls = 1 if is_exact(denoiser) else check_num_draws(self.num_draws)  # per window
        self.settings = settings_of(self, "window", "batch_size", "num_draws", "seed")
        self.columns, self.names = tuple(COLUMNS), self.source.region_names
        if self.names is not None:
            self.columns = (*COLUMNS, "region_name")
            self.settings |= {"columns": list(self.columns)}
        self.earlier = earlier_identities(denoiser)
        self.emitted = self.model.process.vocab.is_emitted()
        self.lengths = self.source.lengths
        self.windows = 0
        self.open, self.total_score = np.zeros((2, 3))
        self._cut = self._pieces(0)

    @property
    def total(self) -> int:
        return sum(-(-length // self.window) for length in self.lengths)

    def _pieces(self, first: int) -> Iterator[Interval]:
        return islice(pieces(self.lengths, self.window), first, None)

    def _groups(self, first: int) -> Iterator[list[Interval]]:
        most = max(_WINDOWS, 16 * self.batch_size)
        return grouped(self._pieces(first), most, max(_BASES, self.window))

    def starts(self) -> list[int]:
        return self.starts_of(self._groups(0))

    def prepare(self) -> Json:
        """The first window of each unit, and how many before it have a countable base."""
        windows = self.source.windows(self._pieces(0))
        counts = [
            sum(map(self._is_counted, islice(windows, len(group)))) for group in self._groups(0)
        ]
        return list(zip(self.starts(), accumulate(counts, initial=0)))

    def begin(self) -> None:
        log.info(
            f"model: {self.model.path}; {len(self.lengths):,} records in {self.total:,} windows of "
            f"at most {self.window} bases"
        )

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        first = start + skip
        known = ((0, 0), (self.position, self.windows), *(self.prepared or ()))
        before, counted = max((number, count) for number, count in known if number <= first)
        windows = self.source.windows(self._pieces(before))
        counted += sum(map(self._is_counted, islice(windows, first - before)))
        for group in self._groups(first):
            scores, more = self._scores(group, list(islice(windows, len(group))), counted)
            counted += more
            yield Result(len(group), scores.astype("<f8").tobytes(), {"windows": more})

    def _is_counted(self, ids: NDArray[np.integer]) -> bool:
        return bool(self.emitted.numpy()[ids].any())

    def _scores(
        self, places: Sequence[Interval], windows: Sequence[NDArray[np.integer]], before: int
    ) -> tuple[NDArray[np.float64], int]:
        """Nats, variance and counted bases of each window, (S, 3), and the number of windows with a
        countable base."""
        counted = [i for i, ids in enumerate(windows) if self._is_counted(ids)]
        self.report(len(windows) - len(counted), 0)  # these need no network call
        scores = np.zeros((len(windows), 3))
        order = list[int]()
        if not counted:
            return scores, 0
        process = self.model.process

        def batches() -> Iterator[WindowBatch]:
            chosen = [torch.from_numpy(windows[i]) for i in counted]
            for number, ids, valid in padded_batches(chosen, self.batch_size, process.vocab.pad_id):
                order.extend(counted[i] for i in number)
                rows = torch.tensor(number) + before
                cond = self.source.columns(places[counted[i]] for i in number)
                yield WindowBatch(ids, {"all": self.emitted[ids]}, valid, cond, rows)

        def progress(done: int) -> None:
            self.report(done, done * self.window * self.calls)

        result = estimate(
            self.model.denoiser, process, batches(), self.num_draws, self.seed, 1, progress
        )
        numbers = (result.per_sequence(), result.variance_mc(), result.tokens["all"])
        scores[order] = np.stack(numbers, 1)
        return scores, len(counted)

    def resume(self, done: int, notes: Mapping[str, Json]) -> None:
        if notes:
            state = notes["state"]
            self.position = state["pieces"]
            self.windows = state["windows"]
            self.open, self.total_score = (
                np.array([of[key] for key in _NUMBERS]) for of in (state["open"], notes["totals"])
            )
            self._cut = self._pieces(self.position)

    def header(self) -> bytes:
        return ("\t".join(self.columns) + "\n").encode()

    def fold(self, result: Result) -> tuple[bytes, int]:
        rows = []  # of the records that the result completes; NaN without a countable base
        for numbers in np.frombuffer(result.content, "<f8").reshape(-1, 3):
            record, _, end = next(self._cut)
            self.open = self.open + numbers
            if end == self.lengths[record]:
                score = self.open
                self.open = np.zeros(3)
                self.total_score = self.total_score + score
                nats, se = per_base(score)
                values = (nats, nats / math.log(2), se, score[0] / math.log(2))
                cells = [self.source.names[record], f"{end}", f"{score[2]:.0f}"]
                cells += [f"{x:.6f}" for x in values]
                cells += [] if self.names is None else [self.names[record]]
                rows.append("\t".join(cells) + "\n")
        self.position += result.items
        self.windows += result.about["windows"]
        self.totals = {
            "state": {
                "pieces": self.position,
                "windows": self.windows,
                "open": dict(zip(_NUMBERS, self.open.tolist())),
            },
            "totals": dict(zip(_NUMBERS, self.total_score.tolist())),
        }
        return "".join(rows).encode(), len(rows)

    def finish(self, collected: Path) -> JsonDict:
        (nats, se), alignment = per_base(self.total_score), self.source.alignment
        return {
            **({} if alignment is None else {"related_genomes": len(alignment.genomes)}),
            "records": len(self.lengths),
            "counted": int(self.total_score[2]),
            "nats_per_base": nats,
            "bits_per_base": nats / math.log(2),
            "se_mc": se,
            "se_mc_bits": se / math.log(2),
            "columns": COLUMNS,
        }

    def closing(self, seconds: float) -> str:
        nats, se = per_base(self.total_score)
        rows: list[tuple[str, ...]] = [
            ("records", f"{len(self.lengths):,}"),
            ("bases counted", f"{self.total_score[2]:,.0f} of {sum(self.lengths):,}"),
            ("-log p per base", in_both(nats)),
            ("se_mc", in_both(se)),
        ]
        if self.source.alignment is not None:
            rows.append(("conditional on", f"{len(self.source.alignment.genomes)} related genomes"))
        return f"{table(rows)}\n{super().closing(seconds)}"


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
        denoiser = self.model.denoiser
        self.totals = {"bases": 0}
        alone = self.stranded or denoiser.backbone.reads_both_strands
        self.information = Information(
            denoiser, self.model.process, self.window, self.spacing, alone, self.batch_size
        )
        self.settings = settings_of(self, "window", "batch_size", "spacing", "stranded")
        self.earlier = earlier_identities(denoiser)
        self.source, self.sites = self.source.sites()
        self.records = [(region.chrom, region.end) for region in self.source.regions]
        self.converts = is_big_wig(self.output)
        too_long = (name for name, _ in self.records if len(name.encode()) > LONGEST_NAME)
        if self.converts and (wrong := next(too_long, None)):
            raise ValueError(
                f"per_base: a name of {len(wrong):,} characters ({wrong[:40]}...) does not fit "
                "bigWig; write a .bedgraph"
            )

    @property
    def collected(self) -> Path:
        values = self.output.with_name(f".{self.output.name}.values")
        return values if self.converts else self.output

    @property
    def total(self) -> int:
        return sum(1 for _ in tiles(self.sites, self.source.lengths, self.window))

    def starts(self) -> list[int]:
        total = self.total
        return [*range(0, total, self.information.together), total]

    def begin(self) -> None:
        total = sum(end - start for _, start, end in self.sites)
        strands = "" if self.information.stranded else " and strand"
        log.info(f"per_base: {total:,} bases, {self.spacing} network calls per window{strands}")

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
        return big_wig_runs(record, start, values)

    def fold(self, result: Result) -> tuple[bytes, int]:
        self.totals["bases"] += result.about["bases"]
        return super().fold(result)

    def convert(self, collected: Path) -> None:
        with collected.open("rb") as values:
            write_big_wig(self.records, values, self.output)

    def closing(self, seconds: float) -> str:
        return f"the track is in {self.output}"
