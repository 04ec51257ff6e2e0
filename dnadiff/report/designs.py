"""The page about the designs of a run: the real sequences that designs are compared with, and what
is read back from the files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy import ndarray

from dnadiff.design.generate import SampleBatch
from dnadiff.design.method.base import Designer
from dnadiff.design.request import Request, starting_from
from dnadiff.fields import Json
from dnadiff.genomics.metrics.composition import MAX_SEQUENCES, evenly_spaced, pareto_front
from dnadiff.genomics.metrics.designs import DesignTable, compare_designs, information
from dnadiff.genomics.metrics.memorization import cut, held_out_windows, read_bases
from dnadiff.jobs.journal import json_path
from dnadiff.progress import log
from dnadiff.report.page import (
    ENVIRONMENT,
    FAINT,
    MODEL,
    OTHER,
    REAL,
    legend_below,
    logo_figure,
    percentages,
    write_page,
)
from dnadiff.report.samples import divergences
from dnadiff.store.address import expand_user
from dnadiff.store.disk import check_output, read_json
from dnadiff.weights.loaded import Loaded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Real sequences whose reward and likelihood are computed, if there are fewer designs.
_MIN_SCORED = 100
_MIN_REAL = 4
# Arguments that say how files are written, not what is in them.
_RESTARTS = ("resume", "overwrite", "report")
MAX_LOGO = 300  # positions
_BINS = 24  # at most one more
_MAX_GRID = 1000  # values on a grid, such as GC content, are at most so many steps apart
T = TypeVar("T")


@dataclass(frozen=True)
class RealSequences:
    """Windows of real sequences, of the length of the designs.

    Attributes:
        source: what they are, in words.
        windows: at most 2,000, evenly spaced, as uint8 arrays of bases.
        both_strands: whether k-mers are counted on both strands.
        scored: letters of those that have a reward.
        rewards: of the scored; None if they have none.
    """

    source: str
    windows: list[ndarray]
    both_strands: bool
    scored: Sequence[str] = ()
    rewards: ndarray | None = None


@dataclass
class DesignPage:
    """The page of `report=`, after all checks that need no designs; written when the files of the
    run are complete.

    Attributes:
        path: the .html file.
        designer, request: of the run.
        real: FASTA file of sequences that designs are compared with; None compares with held-out
            windows of the model's data.
        num_samples: designs of each template that are written.
        replace: whether an existing page may be replaced.

    Raises:
        ValueError: if the model reads text, or `real=` cannot be used.
        FileExistsError: if the page exists and must be kept.
    """

    path: str
    designer: Designer
    request: Request
    model: Loaded
    trust: Sequence[str]
    real: str | None
    num_samples: int
    batch_size: int
    seed: int
    replace: bool

    def __post_init__(self) -> None:
        if self.model.tokenizer.vocab.complement is None:
            raise ValueError(
                f"report is about designs of DNA, and {self.model.path} was trained on text; leave "
                "report out"
            )
        self.file = check_output(expand_user(self.path), self.replace)
        shown = (target.shown for target in self.request.evenly_spaced())
        self.length = min(end - start for start, end in shown)  # of a real window
        self.named = None if self.real is None else self._of_file(self.real)

    def _of_file(self, path: str) -> RealSequences:
        """Windows of a FASTA file without unknown bases, with the rewards of as many as there are
        designs, and of at least 100."""
        found = cut(read_bases(path), self.length, max_unknown=0)
        if len(found) < _MIN_REAL:
            raise ValueError(
                f"real {path} has {len(found)} windows of {self.length:,} bases, the length of the "
                f"designs; give at least {_MIN_REAL}"
            )
        windows = [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]
        number = max(self.request.num_groups * self.num_samples, _MIN_SCORED)
        # Bases without unknown ones as a string.
        scored = [
            np.frombuffer(b"ACGT", np.uint8)[windows[i]].tobytes().decode("ascii")
            for i in evenly_spaced(len(windows), number)
        ]
        try:
            rewards = list(map(self.designer.goal.reward, _batches(scored, self.batch_size)))
        except ValueError as error:
            raise ValueError(f"real {path}: {error}") from error
        source = f"{len(windows):,} real sequences of {Path(path).name}"
        return RealSequences(source, windows, False, scored, np.concatenate(rewards))

    def _held_out(self) -> RealSequences | None:
        """Windows of the held-out part of the model's data, without rewards; None, with a log
        message, if they cannot be read here."""
        reason = "report: designs are not compared with"
        try:
            data = self.model.training_data(self.trust)
            part = "test" if data.intervals["test"] else "valid"
            found = cut(held_out_windows(data, part, self.length), self.length, max_unknown=0)
        except (ValueError, OSError) as error:
            log.info(f"{reason} real sequences; give real=y.fa ({error})")
            return None
        windows = [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]
        if len(windows) < _MIN_REAL:
            log.info(
                f"{reason} the {len(windows)} held-out windows of {self.length:,} bases; give "
                "real=y.fa"
            )
            return None
        source = f"{len(windows):,} windows of {data.name}, part {part}"
        return RealSequences(source, windows, not data.stranded)

    def write(self, output: Path, overrides: Sequence[str]) -> Path:
        """Write the page from the FASTA file and the JSON file next to it; `overrides` are the
        arguments of the command."""
        content = read_json(json_path(output), ("records", "design", "settings"))
        table = DesignTable.read(output, content["records"])
        each = self.request.each
        num_groups = self.request.num_groups
        # Bases whose log-probability each record has: as many for all designs of one template.
        counted = [self.designer.num_counted(self.request[i * each]) for i in range(num_groups)]
        reward = table.columns["reward"]
        log_prob = table.columns["log_prob"] / np.repeat(
            np.array(counted, float), len(table) // num_groups
        )
        has_log_prob = bool(np.isfinite(log_prob).any())
        real = self.named or self._held_out()
        share = np.exp(table.columns["log_weight"] - table.columns["log_weight"].max())
        counts = table.counts
        compared = None
        points = None
        if real is not None:
            # Less than the length of a window if that has given flanks.
            windows = [bases[: int(table.lengths.min())] for bases in real.windows]
            compared = compare_designs(table.sequences, windows, real.both_strands, self.seed)
            if real.rewards is not None and has_log_prob:
                points = self._log_probs(real.scored), real.rewards
        given = [one for one in overrides if one.partition("=")[0] not in _RESTARTS]
        write_page(
            self.file,
            "designs",
            content=content,
            designs=table,
            real=real,
            max_sequences=MAX_SEQUENCES,
            max_logo=MAX_LOGO,
            log_prob=log_prob,
            has_log_prob=has_log_prob,
            reward=reward,
            weighted_reward=(share * reward).sum() / share.sum(),
            points=points,
            # In the order of ascending likelihood, which is that of descending reward.
            front=pareto_front(log_prob, reward) if has_log_prob else None,
            compared=compared,
            logo=None
            if counts is None or len(counts) > MAX_LOGO
            else logo_figure(information(counts)),
            commands=[f"python -m dnadiff.sample {shlex.join(given)}"],
        )
        print(f"the page is {self.file}")
        return self.file

    def _log_probs(self, sequences: Sequence[str]) -> ndarray:
        """The log-probability per base of real sequences."""
        named = [(f"real_{i}", letters) for i, letters in enumerate(sequences)]
        request = starting_from(self.designer.tokenizer, named, 1)
        bounds = []
        for numbers in _batches(range(len(request)), self.batch_size):
            targets = [request[i] for i in numbers]
            starts = [target.start for target in targets if target.start is not None]
            batch = SampleBatch(targets, starts, 0, 0, None)
            bounds.append(self.designer.bounds(batch, numbers, self.designer.num_draws, self.seed))
        return np.concatenate(bounds) / self.length


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def described(settings: Json) -> str:
    """An object of the configuration in words: its class, and its settings that are neither null
    nor empty."""
    if isinstance(settings, Mapping):
        inner = [
            f"{key} {described(value)}"
            for key, value in settings.items()
            if key != "_target_" and value not in (None, [])
        ]
        name = settings.get("_target_", "").rpartition(".")[2]
        return f"{name} ({', '.join(inner)})" if name and inner else name or ", ".join(inner)
    if isinstance(settings, list):
        return " ".join(map(described, settings))
    return {True: "yes", False: "no"}[settings] if isinstance(settings, bool) else str(settings)


def tradeoff(
    axes: Axes, log_prob: ndarray, reward: ndarray, real: tuple[ndarray, ndarray] | None
) -> None:
    """Reward against log-probability of each design, and of `real` sequences (log_prob, reward),
    with the Pareto front of the designs."""
    if real is not None:
        x, y = (each[evenly_spaced(len(each), MAX_SEQUENCES)] for each in real)
        marks: Json = {"mfc": "none", "ms": 3.5, "mew": 0.8}
        axes.plot(x, y, "s", color=REAL, alpha=0.6, label="real sequences", **marks)
    x, y = (each[evenly_spaced(len(each), MAX_SEQUENCES)] for each in (log_prob, reward))
    dots: Json = {"ms": 4.5, "mew": 0}
    axes.plot(x, y, "o", color=MODEL, alpha=0.6, label="designs", **dots)
    front = pareto_front(log_prob, reward)  # of all designs, drawn or not
    steps: Json = {"drawstyle": "steps-pre", "lw": 1.4, **dots}
    axes.plot(log_prob[front], reward[front], "o-", color=OTHER, label="Pareto front", **steps)
    axes.set(
        title="Reward and likelihood",
        xlabel="log-probability under the model, nats per base",
        ylabel="reward",
    )
    legend_below(axes)


def histogram(axes: Axes, designs: ndarray, real: ndarray | None, title: str, label: str) -> None:
    """The distribution of a value over designs, and over real sequences."""
    edges = bin_edges(designs if real is None else np.concatenate([designs, real]))
    if real is not None:
        shares = percentages(real, edges)
        axes.stairs(shares, edges, color=REAL, lw=1.2, fill=False, label="real sequences")
    shares = percentages(designs, edges)
    axes.stairs(shares, edges, color=MODEL, alpha=0.25, fill=True, lw=0)
    axes.stairs(shares, edges, color=MODEL, lw=1.8, label="designs")
    axes.axvline(float(designs.mean()), color=MODEL, lw=1, ls="--", label="mean of the designs")
    axes.set(title=title, xlabel=label, ylabel="% of sequences", ylim=(0, None))
    axes.tick_params(axis="x", color=FAINT)
    legend_below(axes)


def bin_edges(values: ndarray) -> ndarray:
    """Edges of at most 25 bins of one width; values on a grid are in the middle of bins, each with
    the same number of grid points."""
    low = float(values.min())
    high = float(values.max())
    if high == low:
        return np.array([low - 0.5, high + 0.5])
    grid = np.unique(np.round((values - low) / (high - low), 5))  # headers have six digits
    step = float(np.diff(grid).min())
    if step * _MAX_GRID < 1:
        return np.linspace(low, high, _BINS + 1)
    steps = round(1 / step)
    each = -(-(steps + 1) // _BINS)
    number = -(-(steps + 1) // each)
    return low + (high - low) / steps * (each * np.arange(number + 1) - 0.5)


ENVIRONMENT.filters |= {"described": described, "median": np.median}
ENVIRONMENT.globals |= {
    function.__name__: function for function in (tradeoff, histogram, divergences)
}
