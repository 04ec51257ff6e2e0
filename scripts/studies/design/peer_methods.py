"""Design methods of others for the comparison: a genetic algorithm, and Ledidi from PyPI as an
optional import.

All of them see the reward through `CountedReward`, so that their calls are counted as those of the
package's methods.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dnadiff.design.reward import CountedReward, Values

LETTERS = "ACGT"
MISSING = (
    "ledidi is not installed, so its pieces are left out; pip install ledidi adds them (it "
    "is no dependency of this package)"
)


def has_ledidi() -> bool:
    """Whether Ledidi can be imported."""
    return importlib.util.find_spec("ledidi") is not None


def uniform_sequences(num: int, length: int, random: np.random.Generator) -> list[str]:
    """Sequences of independent, equally frequent bases."""
    return ["".join(row) for row in random.choice(list(LETTERS), (num, length))]


def crossed(one: str, other: str, random: np.random.Generator) -> str:
    """One-point crossover: the beginning of one sequence and the end of another."""
    point = int(random.integers(1, len(one)))
    return one[:point] + other[point:]


def mutated(text: str, rate: float, random: np.random.Generator) -> str:
    """Point mutations: on average `rate` bases of the sequence are replaced by another one, at
    least one."""
    number = max(1, int(random.binomial(len(text), min(rate / len(text), 1.0))))
    letters = list(text)
    for at in random.choice(len(text), min(number, len(text)), replace=False).tolist():
        letters[at] = str(random.choice([base for base in LETTERS if base != letters[at]]))
    return "".join(letters)


def tournament(values: Values, size: int, random: np.random.Generator) -> int:
    """The best of `size` random members of a population."""
    drawn = random.integers(len(values), size=size)
    return int(drawn[values[drawn].argmax()])


def evolve(
    reward: CountedReward,
    start: Sequence[str],
    budget: int,
    keep: int,
    random: np.random.Generator,
    rate: float = 2.0,
    entrants: int = 3,
) -> tuple[list[str], Values]:
    """A genetic algorithm: the `keep` best different sequences after `budget` reward calls, and
    their rewards.

    Each generation has as many children as the population; the best of parents and children
    survive.

    Args:
        start: the first population.
        rate: mutations of a child on average.
        entrants: of a tournament.
    """
    population = list(start)[:budget]
    values = reward(population)
    left = budget - len(population)
    while left > 0:
        children = []
        for _ in range(min(len(start), left)):
            parents = [population[tournament(values, entrants, random)] for _ in range(2)]
            children.append(mutated(crossed(*parents, random), rate, random))
        values = np.concatenate([values, reward(children)])
        left = left - len(children)
        population, values = survivors(population + children, values, len(start))
    return survivors(population, values, keep)


def survivors(population: Sequence[str], values: Values, size: int) -> tuple[list[str], Values]:
    """The best different sequences of a population; equal ones only if there are too few others."""
    first = dict.fromkeys(population)
    ranked = sorted(range(len(population)), key=lambda row: -values[row])
    chosen = []
    copies = []
    for row in ranked:
        (chosen if population[row] in first else copies).append(row)
        first.pop(population[row], None)
    kept = (chosen + copies)[:size]
    return [population[row] for row in kept], values[kept]


def one_hot(texts: Sequence[str]) -> Tensor:
    """(S, 4, L) float32."""
    index = torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])
    return torch.nn.functional.one_hot(index, 4).transpose(1, 2).float()


def texts_of(x: Tensor) -> list[str]:
    """The sequences of one-hot tensors (S, 4, L)."""
    return ["".join(LETTERS[base] for base in row) for row in x.detach().argmax(1).tolist()]


class _Evaluated(torch.autograd.Function):
    """The rewards (S, 1) of one-hot sequences, with the gradient of the reward."""

    @staticmethod
    def forward(ctx, x: Tensor, oracle: Oracle) -> Tensor:  # type: ignore[no-untyped-def, override]
        texts = texts_of(x)
        if not ctx.needs_input_grad[0]:
            return oracle.note(texts, oracle.reward(texts))
        values, slopes = oracle.reward.gradient(texts)
        ctx.save_for_backward(torch.from_numpy(slopes).float().transpose(1, 2))
        return oracle.note(texts, values)

    @staticmethod
    def backward(ctx, *outputs: Tensor):  # type: ignore[no-untyped-def, override]
        (slopes,) = ctx.saved_tensors
        return outputs[0][:, :, None] * slopes, None


class Oracle(torch.nn.Module):
    """A reward as the network that Ledidi expects: one-hot (S, 4, L) to (S, 1). It remembers the
    best sequence that it has read."""

    def __init__(self, reward: CountedReward) -> None:
        super().__init__()
        self.reward = reward
        self.best = ""
        self.best_value = -np.inf

    def forward(self, x: Tensor) -> Tensor:
        """The rewards, with their gradient."""
        return _Evaluated.apply(x, self)

    def note(self, texts: Sequence[str], values: Values) -> Tensor:
        """The rewards as a tensor; the best sequence so far is kept."""
        if values.max() > self.best_value:
            self.best, self.best_value = texts[int(values.argmax())], float(values.max())
        return torch.from_numpy(values).float()[:, None]


def ledidi_design(
    reward: CountedReward,
    start: str,
    budget: int,
    batch: int,
    weight: float,
    target: float,
    seed: int,
) -> tuple[str, float]:
    """The best sequence that Ledidi reads while it edits `start`, and its reward, for at most
    `budget` calls.

    Args:
        batch: sequences of a step, each of which costs two calls for its gradient; the start costs
            one.
        weight: of the number of edits in Ledidi's loss, its argument `l`.
        target: reward that it approaches.

    Raises:
        ValueError: if the package is not installed.
    """
    if not has_ledidi():
        raise ValueError(MISSING)
    from ledidi import Ledidi

    oracle = Oracle(reward)
    steps = (budget - 1) // (2 * batch)
    designer = Ledidi(
        oracle,
        (4, len(start)),
        l=weight,
        batch_size=batch,
        max_iter=max(steps, 1),
        early_stopping_iter=max(steps, 1),
        verbose=False,
        random_state=seed,
    )
    designer.fit_transform(one_hot([start]), torch.tensor([[target]]))
    return oracle.best, oracle.best_value
