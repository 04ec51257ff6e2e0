"""The page about the designs of a run: options, the real sequences that designs are compared with,
and what is read back from the files."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from dnadiff.design.generate import SampleBatch
from dnadiff.design.method.base import Designer
from dnadiff.design.request import Request, starting_from
from dnadiff.fields import Json
from dnadiff.genomics.metrics.composition import MAX_SEQUENCES, evenly_spaced, pareto_front
from dnadiff.genomics.metrics.designs import (
    DesignComparison,
    DesignTable,
    compare_designs,
    information,
)
from dnadiff.genomics.metrics.memorization import cut, held_out_windows, read_bases
from dnadiff.jobs.journal import json_path
from dnadiff.report.figures import logo_figure
from dnadiff.report.page import write_page
from dnadiff.report.results import Results, interval, number
from dnadiff.store.address import expand_user, shown_addresses
from dnadiff.store.disk import check_output, read_json
from dnadiff.weights.loaded import Loaded

_MIN_SCORED = (
    100  # real sequences whose reward and likelihood are computed, if there are fewer designs
)
_MIN_REAL = 4
_RESTARTS = (
    "resume",
    "overwrite",
    "report",
)  # arguments that say how files are written, not what is in them
MAX_LOGO = 300  # positions
_MAX_ROWS = 12  # of the front in the table
_BOUND = "a lower bound for a diffusion model; exact for an autoregressive one"
T = TypeVar("T")
log = logging.getLogger("dnadiff")


@dataclass(frozen=True)
class RealSequences:
    """Windows of real sequences, of the length of the designs.

    Attributes:
        source: what they are, in words.
        windows: at most 2,000, evenly spaced, as uint8 arrays of bases.
        scored: indices of those that have a reward.
        rewards: of the scored; None if they have none.
        both_strands: whether k-mers are counted on both strands.
    """

    source: str
    windows: list[np.ndarray]
    scored: np.ndarray
    rewards: np.ndarray | None
    both_strands: bool

    @classmethod
    def of_file(
        cls, path: str, designer: Designer, length: int, number: int, batch_size: int
    ) -> RealSequences:
        """Windows of a FASTA file without unknown bases, with the rewards of as many as there are
        designs, and of at least 100.

        Raises:
            ValueError: naming `real`, if there are fewer than four windows, or the reward fails.
        """
        found = cut(read_bases(path), length, max_unknown=0)
        if len(found) < _MIN_REAL:
            raise ValueError(
                f"real {path} has {len(found)} windows of {length:,} bases, the length of the "
                f"designs; give at least {_MIN_REAL}"
            )
        windows = [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]
        scored = evenly_spaced(len(windows), max(number, _MIN_SCORED))
        try:
            rewards = [
                designer.goal.reward(batch)
                for batch in _batches([letters(windows[i]) for i in scored], batch_size)
            ]
        except ValueError as error:
            raise ValueError(f"real {path}: {error}") from error
        return cls(
            f"{len(windows):,} real sequences of {Path(path).name}",
            windows,
            scored,
            np.concatenate(rewards),
            False,
        )

    @classmethod
    def held_out(cls, model: Loaded, trust: Sequence[str], length: int) -> RealSequences | None:
        """Windows of the held-out part of the model's data, without rewards; None, with a log
        message, if they cannot be read here."""
        try:
            data = model.training_data(trust)
            part = "test" if data.intervals["test"] else "valid"
            found = cut(held_out_windows(data, part, length), length, max_unknown=0)
        except (ValueError, OSError) as error:
            log.info(
                f"report: designs are not compared with real sequences; give real=y.fa ({error})"
            )
            return None
        windows = [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]
        if len(windows) < _MIN_REAL:
            log.info(
                f"report: designs are not compared with the {len(windows)} held-out windows of "
                f"{length:,} bases; give real=y.fa"
            )
            return None
        return cls(
            f"{len(windows):,} windows of {data.name}, part {part}",
            windows,
            np.empty(0, int),
            None,
            not data.stranded,
        )


@dataclass(frozen=True)
class DesignPage:
    """The page of a run, written when its files are complete.

    Attributes:
        path: the .html file.
        designer, request: of the run.
        real: the sequences of `real=`; None compares with held-out windows of the model's data.
        length: bases of a real window.
    """

    path: Path
    designer: Designer
    request: Request
    model: Loaded
    trust: Sequence[str]
    real: RealSequences | None
    length: int
    batch_size: int
    seed: int

    def write(self, output: Path, overrides: Sequence[str]) -> Path:
        """Write the page from the FASTA file and the JSON file next to it; `overrides` are the
        arguments of the command."""
        content = read_json(json_path(output), ("records", "design", "settings"))
        table = DesignTable.read(output, content["records"])
        log_prob = table.columns["log_prob"] / self._num_counted(len(table))
        real = self.real or RealSequences.held_out(self.model, self.trust, self.length)
        scored = self._scored(real) if np.isfinite(log_prob).any() else None
        given = [
            one for one in shown_addresses(overrides) if one.partition("=")[0] not in _RESTARTS
        ]
        reward, rewards = table.columns["reward"], None if real is None else real.rewards
        compared = None if real is None else self._comparison(table, real)
        # In the order of ascending likelihood, which is that of descending reward.
        front = pareto_front(log_prob, reward) if np.isfinite(log_prob).any() else None
        counts = table.counts
        drawn = None if counts is None or len(counts) > MAX_LOGO else information(counts)
        about, run = configuration(content)
        write_page(
            self.path,
            "designs",
            title=f"{len(table):,} designs for {reward_name(content['design'])}",
            summary=summary(content, table),
            rows=result_rows(content, table, log_prob, real),
            designs=table,
            real=real,
            bound=_BOUND,
            max_sequences=MAX_SEQUENCES,
            max_logo=MAX_LOGO,
            log_prob=log_prob,
            reward=reward,
            real_reward=rewards,
            points=None if scored is None or rewards is None else (scored, rewards),
            front=front,
            front_rows=[
                (table.names[i], number(reward[i], "{:.5g}"), number(log_prob[i]))
                for i in (front if front is not None else ())[:_MAX_ROWS]
            ],
            compared=compared,
            distance_rows=compared and distance_rows(compared),
            logo=None if drawn is None else logo_figure(drawn),
            about=about,
            run=run,
            commands=[f"python -m dnadiff.sample {shlex.join(given)}"],
        )
        print(f"the page is {self.path}")
        return self.path

    def _num_counted(self, number: int) -> np.ndarray:
        """Bases whose log-probability each record of the file has; all designs of one template have
        the same number of them."""
        groups = [
            self.designer.num_counted(self.request[group * self.request.each])
            for group in range(self.request.num_groups)
        ]
        return np.repeat(np.array(groups, float), number // self.request.num_groups)

    def _comparison(self, table: DesignTable, real: RealSequences) -> DesignComparison:
        designed = int(
            table.lengths.min()
        )  # less than the length of a window if that has given flanks
        return compare_designs(
            table.sequences,
            [bases[:designed] for bases in real.windows],
            real.both_strands,
            self.seed,
        )

    def _scored(self, real: RealSequences | None) -> np.ndarray | None:
        """The log-probability per base of the real sequences that have rewards."""
        if real is None or real.rewards is None:
            return None
        named = [(f"real_{i}", letters(real.windows[i])) for i in real.scored]
        request = starting_from(self.designer.tokenizer, named, 1)
        bounds = []
        for numbers in _batches(range(len(request)), self.batch_size):
            targets = [request[i] for i in numbers]
            starts = [target.start for target in targets if target.start is not None]
            batch = SampleBatch(targets, starts, 0, 0, None)
            bounds.append(self.designer.bounds(batch, numbers, self.designer.num_draws, self.seed))
        return np.concatenate(bounds) / self.length


def open_page(
    path: str,
    designer: Designer,
    request: Request,
    model: Loaded,
    *,
    trust: Sequence[str],
    real: str | None,
    num_samples: int,
    batch_size: int,
    seed: int,
    replace: bool,
) -> DesignPage:
    """The page of `report=`, after all checks that need no designs.

    Args:
        real: FASTA file of sequences that designs are compared with.
        num_samples: designs of each template that are written.
        replace: whether an existing page may be replaced.

    Raises:
        ValueError: if the model reads text, or `real=` cannot be used.
        FileExistsError: if the page exists and must be kept.
    """
    if model.tokenizer.vocab.complement is None:
        raise ValueError(
            f"report is about designs of DNA, and {model.path} was trained on text; leave "
            "report out"
        )
    file = check_output(expand_user(path), replace)
    length = min(end - start for start, end in (target.shown for target in request.evenly_spaced()))
    written, found = request.num_groups * num_samples, None
    if real is not None:
        found = RealSequences.of_file(real, designer, length, written, batch_size)
    return DesignPage(file, designer, request, model, trust, found, length, batch_size, seed)


def reward_name(design: Results) -> str:
    """The class of the reward, with the target value if there is one."""
    target = "" if design["target"] is None else f" near {design['target']:g}"
    return f"{_class_name(design['reward'])}{target}"


def described(settings: Json) -> str:
    """An object of the configuration in words: its class, and its settings that are neither null
    nor empty."""
    if isinstance(settings, Mapping):
        inner = [
            f"{key} {described(value)}"
            for key, value in settings.items()
            if key != "_target_" and value not in (None, [])
        ]
        name = _class_name(settings) if "_target_" in settings else ""
        return f"{name} ({', '.join(inner)})" if name and inner else name or ", ".join(inner)
    if isinstance(settings, list):
        return " ".join(map(described, settings))
    return {True: "yes", False: "no"}[settings] if isinstance(settings, bool) else str(settings)


def _class_name(settings: Mapping[str, Json]) -> str:
    return settings["_target_"].rpartition(".")[2]


def summary(content: Results, designs: DesignTable) -> str:
    """The run in a sentence."""
    design = content["design"]
    low, high = int(designs.lengths.min()), int(designs.lengths.max())
    bases = f"{low:,} bases" if low == high else f"{low:,} to {high:,} bases"
    beta = "" if design["beta"] is None else f" with beta {design['beta']:g}"
    target = design["target"]
    aim = "as large as possible" if target is None else f"as near to {target:g} as possible"
    return (
        f"{len(designs):,} designs of {bases} for a reward that is to be {aim}: "
        f"{described(design['reward'])}. "
        f"The method is {_class_name(design['method'])}{beta}, the sampler {content['sampler']}."
    )


def result_rows(
    content: Results, designs: DesignTable, log_prob: np.ndarray, real: RealSequences | None
) -> list[tuple[str, str, str]]:
    """The numbers of the run."""
    design, reward, form = content["design"], designs.columns["reward"], "{:.4g}"
    rows = [
        (
            "Reward, mean",
            number(reward.mean(), form),
            f"Best {number(reward.max(), form)}, median {number(np.median(reward), form)}.",
        )
    ]
    weight, weights = designs.columns["log_weight"], content.get("weights", {})
    if weights.get("proposals") == len(designs) and "resampled" not in weights:
        share = np.exp(weight - weight.max())
        rows.append(
            (
                "Reward, weighted mean",
                number((share * reward).sum() / share.sum(), form),
                "Under p(x) exp(beta reward(x)).",
            )
        )
    if real is not None and real.rewards is not None:
        reading = (
            f"Best {number(real.rewards.max(), form)}, of {len(real.rewards):,} real sequences."
        )
        rows.append(("Reward of real sequences, mean", number(real.rewards.mean(), form), reading))
    if np.isfinite(log_prob).any():
        rows.append(
            (
                "Log-probability, mean",
                number(np.nanmean(log_prob), "{:.3f}"),
                f"Nats per designed base without the reward: {_BOUND}.",
            )
        )
    if weights:
        size, drawn = (
            weights["effective_size"],
            ", then resampled" if "resampled" in weights else "",
        )
        rows.append(
            (
                "Effective sample size",
                number(size["mean"], "{:.1f}"),
                f"Of {weights['proposals']:,} designs of each template{drawn}.",
            )
        )
        mass = number(weights["log_mass"]["mean"], "{:.2f}")
        rows.append(
            (
                "Log normalizing constant",
                mass,
                "Nats; log of the mean weight, which is an unbiased estimate.",
            )
        )
    settings, calls = content["settings"], design["calls"]
    generated = (
        len(designs) * (settings["proposals"] or settings["num_samples"]) / settings["num_samples"]
    )
    rows.append(
        (
            "Reward calls",
            f"{calls:,}",
            f"{calls / generated:.1f} for each sequence generated; a gradient counts twice.",
        )
    )
    return rows + _diversity(content, designs)


def _diversity(content: Results, designs: DesignTable) -> list[tuple[str, str, str]]:
    rows = [("Distinct sequences", f"{designs.num_distinct:,}", f"Of {len(designs):,}.")]
    if designs.hamming is not None:
        reading = f"Bases; {100 * designs.hamming / designs.lengths[0]:.1f} % of the length."
        rows.append(("Hamming distance, mean of pairs", number(designs.hamming, "{:.1f}"), reading))
    if "copies" in content:
        longest = content["copies"]["longest"]
        reading = (
            f"Bases, {longest['record']}; {longest['mean']:.1f} on average. Exact matches, "
            "either strand."
        )
        rows.append(("Longest match with the training data", f"{longest['max']:,}", reading))
    return rows


def distance_rows(found: DesignComparison) -> list[tuple[str, ...]]:
    """Each distance from real sequences, with its range for sets of real sequences."""
    named = {f"{k}-mers, Jensen-Shannon divergence, bits": d for k, d in found.divergences.items()}
    named["GC content, Wasserstein-1 distance, points"] = found.gc
    form = "{:.3g}"
    return [
        (
            name,
            number(one.samples, form),
            number(one.baseline, form),
            interval(one.low, one.high, form),
        )
        for name, one in named.items()
    ]


def configuration(content: Results) -> tuple[Results, Results]:
    """What the designs depend on: the design, and the model with the sampler."""
    design, model = content["design"], content["model"]
    about = {
        key: described(design[key])
        for key in ("reward", "method", "start")
        if design[key] is not None
    }
    about |= {key: f"{design[key]:g}" for key in ("target", "beta") if design[key] is not None}
    sampler = {
        key: value
        for key, value in content["sampler_settings"].items()
        if value is not None and key != "class"
    }
    run = {
        "checkpoint": model["checkpoint"],
        "trained steps": model["step"],
        "sampler": content["sampler"],
        "sampler settings": sampler,
        "network calls": content["network_calls"],
        "seed": content["seed"],
        "num_draws": content["settings"]["num_draws"],
        **{key: described(value) for key, value in content["inputs"].items() if key != "start"},
    }
    return about, run


def letters(bases: np.ndarray) -> str:
    """Bases without unknown ones as a string."""
    return np.frombuffer(b"ACGT", np.uint8)[bases].tobytes().decode("ascii")


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
