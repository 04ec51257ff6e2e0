"""What designs are optimized for: the interface of rewards, a target value instead of a maximum,
and the checks on what a reward returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from dnadiff.diffusion.sampler.base import Configurable
from dnadiff.fields import check_value

Values: TypeAlias = NDArray[np.float64]
R = TypeVar("R")
_SHOWN = 40  # letters of a sequence in an error
_TOLERANCE = 1e-4  # of a value that must not depend on the batch


class Reward(Configurable, ABC):
    """A number for each sequence; larger is better. It must be a function of the sequence alone,
    not of the others in a call."""

    @abstractmethod
    def __call__(self, sequences: Sequence[str]) -> Values:
        """The rewards (S,) of S sequences; DNA in upper case."""

    @property
    def has_gradient(self) -> bool:
        """Whether it is a differentiable function of the one-hot sequence."""
        return False

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        """Rewards (S,) of sequences of one length, and their gradients with respect to the one-hot
        sequences, (S, L, 4) for A, C, G, T.

        Raises:
            ValueError: if it has no gradient.
        """
        raise ValueError(
            f"reward {type(self).__name__} has no gradient; choose another reward, or a method "
            "that needs none"
        )

    def check_length(self, length: int) -> None:
        """Raise ValueError if it does not take sequences of `length` bases; called before anything
        is sampled."""

    def inputs(self) -> dict[str, str]:
        """The SHA-256 of each file that the values depend on, by its path."""
        return {}


@dataclass(eq=False)
class FunctionReward(Reward):
    """A Python function of a list of strings that returns one number for each."""

    function: Callable[[Sequence[str]], ArrayLike]

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        return np.asarray(self.function(sequences), dtype=np.float64)


@dataclass(eq=False)
class Toward(Reward):
    """Minus the distance |reward - target|: the best sequences have a reward equal to the target.

    Args:
        reward: the reward that is to approach the target.
        target: in its unit.
    """

    reward: Reward
    target: float

    @override
    def check_length(self, length: int) -> None:
        self.reward.check_length(length)

    @override
    def inputs(self) -> dict[str, str]:
        return self.reward.inputs()

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        return -np.abs(self.reward(sequences) - self.target)

    @property
    @override
    def has_gradient(self) -> bool:
        return self.reward.has_gradient

    @override
    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        value, slope = self.reward.gradient(sequences)
        return -np.abs(value - self.target), -np.sign(value - self.target)[:, None, None] * slope


def as_reward(
    reward: Reward | Callable[[Sequence[str]], ArrayLike], target: float | None = None
) -> Reward:
    """A reward from a reward or a function, with the target value if there is one.

    Raises:
        ValueError: if it is not callable.
    """
    if not callable(reward):
        raise ValueError(
            f"reward {reward!r} cannot be called; give a function of a list of strings that "
            "returns one number for each"
        )
    made = reward if isinstance(reward, Reward) else FunctionReward(reward)
    return made if target is None else Toward(made, check_value("target", target, float))


class CountedReward:
    """A reward with checks on what it returns, and the number of its calls.

    Attributes:
        calls: sequences that were evaluated so far; a gradient counts twice. Evaluations for the
            checks are not counted.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward, self.calls = reward, 0
        self._is_checked = self._is_gradient_checked = False
        self._known: dict[
            str, float
        ] = {}  # rewards of the first calls, until there are two sequences to check

    @property
    def name(self) -> str:
        """The name of the reward in messages."""
        made = self.reward.reward if isinstance(self.reward, Toward) else self.reward
        named = made.function if isinstance(made, FunctionReward) else type(made)
        return named.__name__ if isinstance(named, (type, FunctionType)) else type(named).__name__

    def __call__(self, sequences: Sequence[str]) -> Values:
        """The rewards (S,) of S sequences.

        Raises:
            ValueError: if the reward raises an error, returns another number of values, values that
                are not finite, or values that depend on the other sequences of the call.
        """
        values = self._evaluated(sequences)
        if not self._is_checked:
            self._check_independence(sequences, values)
        self.calls += len(sequences)
        return values

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        """See `Reward.gradient`; raises ValueError as `__call__`."""
        values, slopes = self._called(sequences, self.reward.gradient)
        self._check_values(sequences, values)
        shape = (len(sequences), len(sequences[0]), 4)
        if slopes.shape != shape:
            raise ValueError(
                f"reward {self.name} returned a gradient of shape {slopes.shape}, not {shape}: "
                "sequences, positions and bases"
            )
        if not np.isfinite(slopes).all():
            raise ValueError(
                f"reward {self.name} has a gradient that is not finite; choose a method that needs "
                "none"
            )
        if not self._is_gradient_checked:
            self._check_same(sequences[0], values[0], self._evaluated(sequences[:1])[0])
            self._is_gradient_checked = True
        self.calls += 2 * len(sequences)
        return values, slopes

    def _called(self, sequences: Sequence[str], function: Callable[[Sequence[str]], R]) -> R:
        try:
            return function(list(sequences))
        except Exception as error:
            raise ValueError(
                f"reward {self.name} failed for {_short(sequences[0])}: {type(error).__name__}: "
                f"{error}"
            ) from error

    def _evaluated(self, sequences: Sequence[str]) -> Values:
        values = self._called(
            sequences, lambda given: np.asarray(self.reward(given), dtype=np.float64)
        )
        self._check_values(sequences, values)
        return values

    def _check_values(self, sequences: Sequence[str], values: Values) -> None:
        if values.shape != (len(sequences),):
            raise ValueError(
                f"reward {self.name} returned an array of shape {values.shape} for "
                f"{len(sequences)} sequences; return one number for each"
            )
        if len(wrong := np.flatnonzero(~np.isfinite(values))):
            raise ValueError(
                f"reward {self.name} is {values[wrong[0]]} for {_short(sequences[wrong[0]])}; "
                "return finite numbers only"
            )

    def _check_independence(self, sequences: Sequence[str], values: Values) -> None:
        # Once: the first sequence by itself, and all in the reverse order, which is repeated as
        # soon as a different sequence arrives.
        if not self._known:
            self._check_same(sequences[0], values[0], self._evaluated(sequences[:1])[0])
        self._known |= dict(zip(sequences, values.tolist()))
        if len(self._known) > 1:
            again = list(reversed(self._known))
            for sequence, other in zip(again, self._evaluated(again)):
                self._check_same(sequence, self._known[sequence], other)
            self._is_checked = True

    def _check_same(self, sequence: str, value: float, other: float) -> None:
        if abs(value - other) > _TOLERANCE * max(1.0, abs(value)):
            raise ValueError(
                f"reward {self.name} returned {value:g} and then {other:g} for {_short(sequence)}; "
                "it must be a function of the sequence, without "
                "random numbers and without normalization over the sequences of a call"
            )


def _short(sequence: str) -> str:
    return (
        sequence if len(sequence) <= _SHOWN else f"{sequence[:_SHOWN]}... ({len(sequence)} letters)"
    )
