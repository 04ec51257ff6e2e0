"""The page about the designs of a run: options, the real sequences that designs are compared with,
and what is read back from the files."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from dnadiff.checks import expand_user
from dnadiff.config import Config
from dnadiff.design import provenance
from dnadiff.design.designer import Designer, start_of
from dnadiff.design.generate import ConditionalSampler, SampleBatch
from dnadiff.design.request import Request, starting_from
from dnadiff.metrics.designs import MAX_SEQUENCES, DesignComparison, DesignTable, compare_designs
from dnadiff.metrics.real_windows import cut, evenly_spaced, held_out_windows, read_bases
from dnadiff.report import design_sections as sections
from dnadiff.report.html import write
from dnadiff.report.sections import footer
from dnadiff.store.address import shown_addresses
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
        content = read_json(provenance.json_path(output), ("records", "design", "settings"))
        table = DesignTable.read(output, content["records"])
        log_prob = table.columns["log_prob"] / self._num_counted(len(table))
        real = self.real or RealSequences.held_out(self.model, self.trust, self.length)
        scored = self._scored(real) if np.isfinite(log_prob).any() else None
        given = [
            one for one in shown_addresses(overrides) if one.partition("=")[0] not in _RESTARTS
        ]
        title = f"{len(table):,} designs for {sections.reward_name(content['design'])}"
        body = [
            sections.masthead(title, content, table),
            sections.main_results(content, table, log_prob, real),
            sections.reward_and_likelihood(table, log_prob, real, scored),
            sections.composition(self._comparison(table, real), real) if real is not None else "",
            sections.logo_of(table),
            sections.configuration(content),
            footer([f"python -m dnadiff.sample {shlex.join(given)}"]),
        ]
        write(self.path, title, body)
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
            batch = SampleBatch(targets, [start_of(target) for target in targets], 0, 0, None)
            bounds.append(self.designer.bounds(batch, numbers, self.designer.num_draws, self.seed))
        return np.concatenate(bounds) / self.length


def open_page(
    config: Config, generator: ConditionalSampler, request: Request, model: Loaded, resumed: bool
) -> DesignPage:
    """The page of `report=`, after all checks that need no designs; one of a run that is `resumed`
    may be replaced.

    Raises:
        ValueError: if the model reads text, or `real=` cannot be used.
        FileExistsError: if the page exists and must be kept.
    """
    if model.tokenizer.vocab.complement is None:
        raise ValueError(
            f"report is about designs of DNA, and {model.path} was trained on text; leave "
            "report out"
        )
    assert isinstance(
        generator, Designer
    )  # `reward_options.check` refuses report= without a reward
    path = check_output(expand_user(config["report"]), config["overwrite"] or resumed)
    length = min(end - start for start, end in (target.shown for target in request.evenly_spaced()))
    written = request.num_groups * config["num_samples"]
    real = None
    if config["real"] is not None:
        real = RealSequences.of_file(
            config["real"], generator, length, written, config["batch_size"]
        )
    return DesignPage(
        path,
        generator,
        request,
        model,
        config["trust"],
        real,
        length,
        config["batch_size"],
        config["seed"],
    )


def letters(bases: np.ndarray) -> str:
    """Bases without unknown ones as a string."""
    return np.frombuffer(b"ACGT", np.uint8)[bases].tobytes().decode("ascii")


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
