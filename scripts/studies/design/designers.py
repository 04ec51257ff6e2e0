"""The design methods of the study at equal reward calls: what each of them is called with, and the
small grid that it is tuned over.

A method takes a `Task`, the number of designs, reward calls per design, a seed and its settings,
and returns `Found`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import peer_methods as peers
import torch
from typing_extensions import override

from dnadiff.design.generate import SampleBatch, systematic_resample
from dnadiff.design.method.base import Designer, DesignMethod
from dnadiff.design.method.best_of_n import BestOfN
from dnadiff.design.method.classifier_guidance import ClassifierGuidance
from dnadiff.design.method.metropolis import Metropolis
from dnadiff.design.method.resample_move import ResampleMove
from dnadiff.design.method.smc import SMC
from dnadiff.design.method.svdd import SVDD
from dnadiff.design.request import Free, Request, starting_from
from dnadiff.design.reward import CountedReward, Reward, Values
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.model import Model

UNGUIDED = "unguided"
BASELINE = "best_of_n"
POOL = "top of the pool"
BATCH = 40  # designs of a batch, and particles of a population
Settings = dict[str, Any]


class TimedReward(Reward):
    """A reward that adds up the seconds spent in it, and can remember what it evaluated.

    Attributes:
        seconds: in calls and gradients so far.
        seen: values by sequence, of calls without a gradient; None remembers nothing.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.seconds = 0.0
        self.seen: dict[str, float] | None = None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        with self._timed():
            values = self.reward(sequences)
        if self.seen is not None:
            self.seen.update(zip(sequences, values.tolist()))
        return values

    @override
    def check_length(self, length: int) -> None:
        self.reward.check_length(length)

    @property
    @override
    def has_gradient(self) -> bool:
        return self.reward.has_gradient

    @override
    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        with self._timed():
            return self.reward.gradient(sequences)


@dataclass
class Task:
    """What all methods design for.

    Attributes:
        model: the generative model.
        reward: of the oracle.
        length: bases of a design.
        strong: the strongest promoters that the oracle was fitted on.
    """

    model: Model
    reward: TimedReward
    length: int
    strong: Sequence[str]

    def samples(self, num: int, num_steps: int, seed: int, **condition: Any) -> list[str]:
        """Samples of the model without a reward, possibly with a label and guidance."""
        return [
            str(each)
            for each in self.model.sample(
                num, self.length, Grouped(num_steps), seed=seed, batch_size=BATCH, **condition
            )
        ]


class Found(NamedTuple):
    """Designs with their rewards; designs of one group depend on each other. `calls` are those of
    all designs together."""

    sequences: list[str]
    rewards: list[float]
    groups: list[int]
    calls: int


def run_method(
    task: Task,
    request: Request,
    method: DesignMethod,
    num: int,
    num_steps: int,
    seed: int,
    beta: float = 1.0,
    proposals: int = 1,
) -> Found:
    """The designs of a method of the package: with several proposals for each, `num` are drawn
    again in proportion to their weights."""
    designer = Designer(
        task.model.conditional_sampler(Grouped(num_steps), request), method, task.reward, beta
    )
    batches = list(designer.batches(request, seed, BATCH))
    texts = [
        designer.text(target, tokens)
        for batch in batches
        for target, tokens in zip(batch.targets, batch.tokens)
    ]
    rewards = np.concatenate([rewards_of(batch) for batch in batches])
    groups = (
        np.repeat(np.arange(len(batches)), [len(batch.targets) for batch in batches])
        if isinstance(method, (SMC, ResampleMove))
        else np.arange(len(texts))
    )
    chosen = np.arange(num)
    if proposals > 1:
        weights = [batch.log_weight for batch in batches if batch.log_weight is not None]
        chosen = systematic_resample(
            np.concatenate(weights), num, float(np.random.default_rng(seed).random())
        )
    return Found(
        [texts[i] for i in chosen],
        rewards[chosen].tolist(),
        groups[chosen].tolist(),
        designer.goal.reward.calls,
    )


def rewards_of(batch: SampleBatch) -> Values:
    """The rewards of a batch of designs."""
    assert batch.rewards is not None
    return batch.rewards


def free(task: Task, num: int, seed: int) -> Request:
    """A request for sequences without constraints."""
    return Free(task.model.tokenizer, num, task.length, seed)


def best_of_n(task: Task, num: int, calls: int, seed: int, num_steps: int) -> Found:
    """The best of `calls` samples for each design."""
    return run_method(task, free(task, num, seed), BestOfN(calls), num, num_steps, seed)


def smc(task: Task, num: int, calls: int, seed: int, beta: float, proposals: int) -> Found:
    """`proposals` particles for each design, drawn again by their weights at the end; a particle
    has calls / proposals steps."""
    proposals = min(proposals, calls)
    steps = calls // proposals
    return run_method(
        task, free(task, num * proposals, seed), SMC(), num, steps, seed, beta, proposals
    )


def svdd(task: Task, num: int, calls: int, seed: int, beta: float, candidates: int) -> Found:
    """One of several candidates at each of calls / candidates steps, without the weights."""
    candidates = min(candidates, calls)
    steps = calls // candidates
    return run_method(
        task, free(task, num, seed), SVDD(num_candidates=candidates), num, steps, seed, beta
    )


def guidance(task: Task, num: int, calls: int, seed: int, beta: float) -> Found:
    """Guidance by the gradient, which counts as two calls, and one call at the end, without the
    weights."""
    return run_method(
        task,
        free(task, num, seed),
        ClassifierGuidance(gradient=True),
        num,
        max((calls - 1) // 2, 1),
        seed,
        beta,
    )


def metropolis(
    task: Task, num: int, calls: int, seed: int, beta: float, positions: int, start: str = "model"
) -> Found:
    """The best sequence of a chain of `calls` - 1 proposals, from a sample of the model or from
    strong promoters (`start=strong`)."""
    method = Metropolis(
        num_steps=max(calls - 1, 1), num_positions=positions, num_groups=2, best=True
    )
    if start == "strong":
        given = [(f"promoter {row}", task.strong[row % len(task.strong)]) for row in range(num)]
        return run_method(
            task, starting_from(task.model.tokenizer, given, 1), method, num, 8, seed, beta
        )
    return run_method(task, free(task, num, seed), method, num, 8, seed, beta)


def resample_move(
    task: Task, num: int, calls: int, seed: int, beta: float, positions: int, proposals: int
) -> Found:
    """A population of `proposals` sequences for each design, of which the best different ones of
    each batch are kept."""
    proposals = min(proposals, max(calls // 2, 1))
    method = ResampleMove(
        num_stages=max(calls // proposals - 1, 1), num_positions=positions, num_groups=2
    )
    found = run_method(
        task, free(task, num * proposals, seed), method, num * proposals, 8, seed, beta
    )
    sequences = []
    rewards = []
    groups = []
    values = np.asarray(found.rewards)
    batch = np.asarray(found.groups)
    for group in dict.fromkeys(found.groups):
        rows = np.flatnonzero(batch == group)
        kept = (rows[-1] + 1) // proposals - rows[0] // proposals  # `num` in all batches together
        texts, best = peers.survivors([found.sequences[row] for row in rows], values[rows], kept)
        sequences = sequences + texts
        rewards = rewards + best.tolist()
        groups = groups + [group] * len(texts)
    return Found(sequences, rewards, groups, found.calls)


def genetic(
    task: Task, num: int, calls: int, seed: int, size: int, keep: int, start: str = "uniform"
) -> Found:
    """A genetic algorithm in runs of their own: each has `keep` times the calls of one design, and
    gives its `keep` best sequences."""
    reward = CountedReward(task.reward)
    sequences = []
    rewards = []
    groups = []
    for run, first in enumerate(range(0, num, keep)):
        kept = min(keep, num - first)
        random = np.random.default_rng([seed, run])
        size_here = min(size, calls * kept)
        population = first_population(task, start, size_here, random)
        texts, values = peers.evolve(reward, population, calls * kept, kept, random)
        sequences = sequences + texts
        rewards = rewards + values.tolist()
        groups = groups + [run] * len(texts)
    return Found(sequences, rewards, groups, reward.calls)


def first_population(task: Task, start: str, size: int, random: np.random.Generator) -> list[str]:
    """Sequences to start from: `uniform`, samples of the `model`, or `strong` promoters."""
    if start == "uniform":
        return peers.uniform_sequences(size, task.length, random)
    if start == "model":
        return task.samples(size, 8, int(random.integers(2**31)))
    return [task.strong[row] for row in random.integers(len(task.strong), size=size)]


def ledidi(
    task: Task,
    num: int,
    calls: int,
    seed: int,
    batch: int,
    weight: float,
    target: float,
    start: str = "model",
) -> Found:
    """Ledidi from a sample of the model, for each design."""
    reward = CountedReward(task.reward)
    first = first_population(task, start, num, np.random.default_rng(seed))
    made = [
        peers.ledidi_design(reward, text, calls, batch, weight, target, seed * 10_000 + row)
        for row, text in enumerate(first)
    ]
    return Found(
        [text for text, _ in made], [value for _, value in made], list(range(num)), reward.calls
    )


def unguided(
    task: Task, num: int, calls: int, seed: int, num_steps: int, **condition: Any
) -> Found:
    """Samples of the model, with their rewards."""
    texts = task.samples(num, num_steps, seed, **condition)
    return Found(texts, task.reward(texts).tolist(), list(range(num)), num)


METHODS: dict[str, tuple[Callable[..., Found], list[Settings]]] = {
    UNGUIDED: (unguided, [{"num_steps": 8}]),
    BASELINE: (best_of_n, [{"num_steps": 8}]),
    "smc": (smc, [{"beta": beta, "proposals": 4} for beta in (5.0, 20.0, 80.0)]),
    "svdd": (
        svdd,
        [{"beta": beta, "candidates": count} for beta in (20.0, 80.0) for count in (4, 16)],
    ),
    "classifier_guidance": (guidance, [{"beta": beta} for beta in (20.0, 80.0, 320.0)]),
    "metropolis": (
        metropolis,
        [{"beta": beta, "positions": count} for beta, count in ((20.0, 8), (80.0, 8), (80.0, 3))],
    ),
    "resample_move": (
        resample_move,
        [{"beta": beta, "positions": 8, "proposals": 4} for beta in (20.0, 80.0, 320.0)],
    ),
    "genetic": (
        genetic,
        [
            {"size": size, "keep": keep, "start": start}
            for size, keep in ((16, 1), (64, 10))
            for start in ("uniform", "model")
        ],
    ),
    "metropolis_strong": (
        partial(metropolis, start="strong"),
        [{"beta": beta, "positions": 3} for beta in (20.0, 80.0)],
    ),
    "genetic_strong": (
        partial(genetic, start="strong"),
        [{"size": size, "keep": keep} for size, keep in ((16, 1), (64, 10))],
    ),
    "ledidi": (
        ledidi,
        [
            {"batch": batch, "weight": weight, "target": 6.0}
            for batch, weight in ((4, 0.001), (4, 0.01), (1, 0.001))
        ],
    ),
}


def at_share(
    method: str, share: float, task: Task, num: int, calls: int, seed: int, **settings: Any
) -> Found:
    """A method with a share of the calls as its reward calls."""
    return METHODS[method][0](task, num, round(share * calls), seed, **settings)


# Activities are log(1 + expression): .5, .84 and 1.5 are the quantiles .1, .9 and .97 of a half. A
# method has at most as many network calls with this share of them as reward calls. Its settings are
# those that the other study chose.
CONDITIONAL: dict[str, tuple[Callable[..., Found], list[Settings]]] = {
    **{
        f"activity {activity}, guidance {weight}": (
            unguided,
            [{"num_steps": steps, "label": {"activity": activity}, "guidance": weight}],
        )
        for activity, weight, steps in (
            (1.5, 0, 64),
            (0.5, 1, 64),
            (0.84, 1, 64),
            (1.5, 1, 64),
            (1.5, 2, 32),  # each sequence is read twice
        )
    },
    **{
        name: (partial(at_share, name, share), METHODS[name][1][-1:])
        for name, share in {
            BASELINE: 1 / 9,  # 8 calls of the generator for each
            "smc": 1 / 2,
            "classifier_guidance": 2 / 3,
            "resample_move": 3 / 16,  # 8 at first, 2 in each of two stages
        }.items()
    },
}
PEERS = ("genetic", "genetic_strong", "ledidi")  # methods of others
TRANSFERRED = (
    "metropolis_strong",
    "genetic_strong",
)  # they start from measured promoters, which the others do not see


def available(conditional: bool = False) -> dict[str, tuple[Callable[..., Found], list[Settings]]]:
    """The methods of a study that can run here."""
    known = CONDITIONAL if conditional else METHODS
    return {name: known[name] for name in known if name != "ledidi" or peers.has_ledidi()}


def measured(
    method: Callable[..., Found], task: Task, num: int, calls: int, seed: int, settings: Settings
) -> tuple[Found, dict[str, float]]:
    """Run a method. The price is reward calls of a design, seconds, and the fractions of them in
    the generative network and in the oracle."""
    before = task.reward.seconds
    with timed_network(task.model) as spent:
        start = time.perf_counter()
        found = method(task, num, calls, seed, **settings)
        seconds = time.perf_counter() - start
    price = {
        "calls_per_design": found.calls / num,
        "seconds": seconds,
        "in_model": spent[0] / seconds,
        "in_oracle": (task.reward.seconds - before) / seconds,
    }
    return found, price


@contextmanager
def timed_network(model: Model) -> Iterator[list[float]]:
    """A list of one number: the seconds spent in the log-probabilities of the generative model."""
    denoiser = model.denoiser
    spent = [0.0]
    inner = denoiser.log_probs

    def log_probs(*args: Any, **kwargs: Any) -> torch.Tensor:
        start = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - start

    denoiser.log_probs = log_probs  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        del denoiser.log_probs
