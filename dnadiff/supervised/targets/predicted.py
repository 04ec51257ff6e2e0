"""Predictions of new sequences by the networks of several seeds.

Shapes: `R` seeds, `S` sequences, `C` classes, `K` targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from typing_extensions import override

from dnadiff.supervised.targets.transforms import LabelTransform

if TYPE_CHECKING:
    import pandas


class Predicted(ABC):
    """Predictions of S sequences.

    Attributes:
        tally_header: the columns of the printed summary.
        averaged_name: what `combined` is called in tables.
    """

    tally_header: ClassVar[tuple[str, ...]]
    averaged_name: ClassVar[str] = "averaged probabilities"

    @property
    @abstractmethod
    def combined(self) -> np.ndarray:
        """(S, K) combined over the seeds, as `TaskTarget.scored` takes them."""

    @property
    @abstractmethod
    def each_seed(self) -> np.ndarray:
        """(R, S, K) of each seed, as the network predicts them."""

    @abstractmethod
    def to_frame(self) -> pandas.DataFrame:
        """A row for each sequence: what is predicted, and its spread over the seeds."""

    @abstractmethod
    def rows(self) -> list[list[str]]:
        """The cells of each sequence under `TaskTarget.columns`."""

    @abstractmethod
    def tally(self) -> dict[str, float]:
        """Sums over the sequences, for the summary."""

    @classmethod
    @abstractmethod
    def summary_rows(cls, tally: Mapping[str, float], count: int) -> list[tuple[str, ...]]:
        """The printed summary of `count` sequences with these sums, under `tally_header`."""


@dataclass(frozen=True)
class ClassProbabilities(Predicted):
    """Predictions of S sequences by the classifiers of R seeds.

    Attributes:
        classes: names of the C classes.
        log_probs: (R, S, C) float32, of each seed.
    """

    classes: tuple[str, ...]
    log_probs: np.ndarray
    tally_header: ClassVar[tuple[str, ...]] = ("predicted", "number", "of all")

    @property
    def probs(self) -> np.ndarray:
        """(S, C) float64 probabilities, averaged over the seeds."""
        return np.exp(self.log_probs.astype(np.float64)).mean(0)

    @property
    def labels(self) -> np.ndarray:
        """(S,) numbers of the most probable classes."""
        return self.probs.argmax(-1)

    @property
    def predicted(self) -> list[str]:
        """Names of the most probable classes."""
        return [self.classes[number] for number in self.labels]

    @property
    def spread(self) -> np.ndarray:
        """(S,) largest minus smallest probability of the predicted class over the seeds; NaN for a
        single seed."""
        if len(self.log_probs) < 2:
            return np.full(self.log_probs.shape[1], np.nan)
        of_predicted = np.take_along_axis(
            np.exp(self.log_probs.astype(np.float64)), self.labels[None, :, None], axis=2
        )[..., 0]
        return np.ptp(of_predicted, axis=0)

    @override
    def to_frame(self) -> pandas.DataFrame:
        import pandas

        probs = {f"p_{name}": column for name, column in zip(self.classes, self.probs.T)}
        return pandas.DataFrame({"predicted": self.predicted, **probs, "spread": self.spread})

    @property
    @override
    def combined(self) -> np.ndarray:
        return np.log(np.maximum(self.probs, np.finfo(float).tiny))

    @property
    @override
    def each_seed(self) -> np.ndarray:
        return self.log_probs

    @override
    def rows(self) -> list[list[str]]:
        columns = zip(self.predicted, self.probs, self.spread)
        return [
            [name, *(f"{p:.6g}" for p in probs), f"{spread:.6g}"] for name, probs, spread in columns
        ]

    @override
    def tally(self) -> dict[str, float]:
        return dict(Counter(self.predicted))

    @classmethod
    @override
    def summary_rows(cls, tally: Mapping[str, float], count: int) -> list[tuple[str, ...]]:
        return [(name, f"{n:,}", f"{100 * n / count:.1f} %") for name, n in tally.items()]


class _PerTarget(Predicted):
    """Values of K targets with their spread over the seeds."""

    names: tuple[str, ...]

    @property
    @abstractmethod
    def values(self) -> np.ndarray:
        """(S, K) float64, combined over the seeds."""

    @property
    @abstractmethod
    def spread(self) -> np.ndarray:
        """(S, K) largest minus smallest value over the seeds; NaN for a single seed."""

    @override
    def to_frame(self) -> pandas.DataFrame:
        import pandas

        pairs = zip(self.names, self.values.T, self.spread.T)
        return pandas.DataFrame(
            {
                key: column
                for name, *both in pairs
                for key, column in zip((name, f"spread_{name}"), both)
            }
        )

    @override
    def rows(self) -> list[list[str]]:
        pairs = np.stack([self.values, self.spread], 2).reshape(len(self.values), -1)
        return [[f"{value:.6g}" for value in row] for row in pairs]

    @override
    def tally(self) -> dict[str, float]:
        return dict(zip(self.names, self.values.sum(0).tolist()))

    @classmethod
    @override
    def summary_rows(cls, tally: Mapping[str, float], count: int) -> list[tuple[str, ...]]:
        return [(name, f"{total / count:.6g}") for name, total in tally.items()]


def _spread(values: np.ndarray) -> np.ndarray:
    """Largest minus smallest of values (R, S, K) over the seeds; NaN for a single one."""
    return np.ptp(values, axis=0) if len(values) > 1 else np.full(values.shape[1:], np.nan)


@dataclass(frozen=True)
class PredictedValues(_PerTarget):
    """Predictions of S sequences by the regressions of R seeds.

    Attributes:
        names: of the K targets.
        outputs: (R, S, K) float32, of each seed, on the scale of the transform.
        transform: of the labels.
    """

    names: tuple[str, ...]
    outputs: np.ndarray
    transform: LabelTransform
    tally_header: ClassVar[tuple[str, ...]] = ("target", "mean prediction")
    averaged_name: ClassVar[str] = "averaged predictions"

    @property
    @override
    def values(self) -> np.ndarray:
        return self.transform.invert(self.combined)

    @property
    @override
    def spread(self) -> np.ndarray:
        return _spread(self.transform.invert(self.outputs.astype(np.float64)))

    @property
    @override
    def combined(self) -> np.ndarray:
        return self.outputs.astype(np.float64).mean(0)

    @property
    @override
    def each_seed(self) -> np.ndarray:
        return self.outputs


@dataclass(frozen=True)
class LabelProbabilities(_PerTarget):
    """Predictions of S sequences by the multi-label networks of R seeds: `values` are
    probabilities, averaged over the seeds.

    Attributes:
        names: of the K labels.
        log_odds: (R, S, K) float32, of each seed.
    """

    names: tuple[str, ...]
    log_odds: np.ndarray
    tally_header: ClassVar[tuple[str, ...]] = ("label", "mean probability")

    @property
    @override
    def values(self) -> np.ndarray:
        return self._probs.mean(0)

    @property
    @override
    def spread(self) -> np.ndarray:
        return _spread(self._probs)

    @property
    @override
    def combined(self) -> np.ndarray:
        probs = np.clip(self.values, 1e-12, 1 - 1e-12)
        return np.log(probs) - np.log1p(-probs)

    @property
    @override
    def each_seed(self) -> np.ndarray:
        return self.log_odds

    @property
    def _probs(self) -> np.ndarray:
        return 1 / (1 + np.exp(-self.log_odds.astype(np.float64)))
