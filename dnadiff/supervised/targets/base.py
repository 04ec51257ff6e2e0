"""Transforms of labels before a regression: metrics, differences and the loss are on the
transformed scale."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.bootstrap import ConfidenceInterval
from dnadiff.config import Json
from dnadiff.supervised.intervals import bootstrap_p_value, metric_interval
from dnadiff.supervised.metrics import RANGES, ScoredRun, title

if TYPE_CHECKING:
    import pandas

    from dnadiff.supervised.targets.estimators import Estimators


class LabelTransform(NamedTuple):
    """A monotone function of labels with its inverse.

    Attributes:
        lower: labels must be larger.
        form: how a transformed column is called.
    """

    apply: Callable[[np.ndarray], np.ndarray]
    invert: Callable[[np.ndarray], np.ndarray]
    lower: float
    form: str

    def name(self, column: str) -> str:
        """The transformed column, for messages and tables."""
        return self.form.format(column)


TRANSFORMS = {
    "none": LabelTransform(np.asarray, np.asarray, -np.inf, "{}"),
    "log1p": LabelTransform(np.log1p, np.expm1, -1.0, "log1p({})"),
    "log2": LabelTransform(np.log2, np.exp2, 0.0, "log2({})"),
}


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


SEPARATOR = "\x1f"  # between the cells of several target columns in one label
MISSING = frozenset(
    ("", "nan", "na", "n/a", "null", "none")
)  # cells of a table without a value, in lower case
Label = (
    int | tuple[float, ...]
)  # of one item: the number of its class, or its values, NaN for a missing one
S = TypeVar("S", bound=ScoredRun)


class ValidScore(NamedTuple):
    """Score on the validation items: larger is better, and the loss breaks ties in accuracy, which
    is 0 for all but classes."""

    accuracy: float
    negative_loss: float


class TaskTarget(ABC, Generic[S]):
    """What a task predicts.

    Attributes:
        names: of the outputs: classes, or columns.
        primary: the metric that models are compared by.
        shown: further metrics in printed tables.
        predicted_kind: what `predicted` returns.
        p_value_test: how p-values of differences are computed.
        takes_several: whether several columns can be given.
        can_be_missing: whether a cell may be empty.
        published: whether there are published protocols for tasks of this kind.
    """

    buildable = True  # the description of a saved network may name it (`dnadiff.config.locate`)
    primary: ClassVar[str]
    predicted_kind: ClassVar[type[Predicted]]
    shown: ClassVar[tuple[str, ...]]
    p_value_test: ClassVar[str] = "bootstrap"
    takes_several: ClassVar[bool] = True
    can_be_missing: ClassVar[bool] = True
    published: ClassVar[bool] = False

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)

    @property
    def num_outputs(self) -> int:
        """Outputs of the head."""
        return len(self.names)

    @property
    @abstractmethod
    def summary(self) -> str:
        """What is predicted, for messages."""

    def settings(self) -> dict[str, Json]:
        """The configuration that `dnadiff.config.build` makes this target from."""
        return {
            "_target_": f"{type(self).__module__}.{type(self).__name__}",
            "names": list(self.names),
        }

    def identity(self) -> list[Json]:
        """What the digest of stored predictions covers besides the names."""
        return [self.settings()]

    # Reading.

    @abstractmethod
    def parse(self, cells: Sequence[str], where: str, columns: Sequence[str]) -> Label:
        """The label in the cells of one row; a ValueError that begins with `where` for cells that
        cannot be read."""

    def check(self, cells: Sequence[str], where: str) -> None:
        """ValueError that begins with `where` for cells of a row that cannot be read; by default
        any text is a label."""

    @abstractmethod
    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[TaskTarget, np.ndarray]:
        """The target with its names, and the labels of all items as an array; ValueError if they do
        not fit the target.

        Args:
            labels: the cells of each row, joined by `SEPARATOR`.
            source, label_source: the path and the column, for messages.
        """

    @abstractmethod
    def as_array(self, labels: Sequence[Label]) -> np.ndarray:
        """Parsed labels as the array that items hold."""

    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        """The target with what it learns from the labels of the training items; ValueError if these
        cannot be learned from."""
        return self

    def check_valid(self, labels: Tensor, source: str) -> None:
        """ValueError if the labels of the validation items cannot tell models apart; by default any
        can."""

    def check_test(self, labels: Tensor, source: str) -> None:
        """ValueError if the primary metric is not defined for the labels of the test items; by
        default it always is."""

    def is_labeled(self, labels: np.ndarray) -> np.ndarray:
        """Which items have a label: (S,) bool; all by default."""
        return np.ones(len(labels), bool)

    def strata(self, labels: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """A number (S,) for each item, and its name: a random division keeps the fractions of each.
        One stratum of all by default."""
        return np.zeros(len(labels), np.int64), ["all"]

    def counts(self, labels: Tensor) -> dict[str, int]:
        """Disjoint groups of items, for reports."""
        return {"sequences": len(labels)}

    def chance(self, labels: np.ndarray) -> float:
        """The primary metric of a prediction that does not depend on the sequence."""
        return 0.0

    # Training.

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of `outputs (B, K)`."""

    @abstractmethod
    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        """Predictions (B, K) from the outputs (B, K) for each strand that was read."""

    @abstractmethod
    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """The weighted mean (S, K) of the predictions of several models; the weights add up to 1,
        and one of 0 leaves a model out."""

    def balanced(self, labels: Tensor) -> Self:
        """The target with a loss in which each class has the same total weight; ValueError if it
        has no classes."""
        raise ValueError(
            f"class_weights=balanced expects a task of classes, got {self.summary}; set "
            "class_weights=none"
        )

    @abstractmethod
    def valid_loss(self, predictions: Tensor, labels: Tensor) -> float:
        """The loss of predictions."""

    @abstractmethod
    def valid_score(self, predictions: Tensor, labels: Tensor) -> ValidScore:
        """The score by which epochs and settings are chosen; the worst for predictions that are not
        finite."""

    def record(self, score: ValidScore) -> dict[str, Json]:
        """The score as it is stored in `fit_info`."""
        return {"valid_loss": -score.negative_loss}

    @property
    @abstractmethod
    def estimators(self) -> Estimators:
        """The scikit-learn models for this target."""

    # Evaluation.

    @abstractmethod
    def scored(
        self, predictions: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> S:
        """Predictions prepared for the metrics; `folds (S,)` if each fold of a cross-validation has
        another model."""

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Callable[[S, np.ndarray], np.ndarray]]:
        """The metrics by name: functions of scored predictions and of item weights (W, S), (W,)."""

    def interval(
        self,
        runs: Sequence[S],
        baseline: Sequence[S] | None = None,
        groups: np.ndarray | None = None,
    ) -> ConfidenceInterval:
        """The primary metric, or the difference of two models, with its 95 % bootstrap interval
        over items and seeds."""
        found = metric_interval(self.metrics[self.primary], runs, baseline, groups=groups)
        return found if baseline is not None else self._in_range(found)

    def _in_range(self, interval: ConfidenceInterval) -> ConfidenceInterval:
        """Scaled deviations (`widened`, and those over seeds) may put an end of an interval where
        the metric cannot be."""
        low, high = np.clip([interval.low, interval.high], *RANGES[self.primary])
        return interval._replace(low=float(low), high=float(high))

    def p_value(
        self, first: Sequence[S], second: Sequence[S], groups: np.ndarray | None = None
    ) -> float:
        """Of the hypothesis that both models have the same primary metric."""
        return bootstrap_p_value(self.metrics[self.primary], first, second, groups=groups)

    def details(self, runs: Sequence[S]) -> dict[str, Json]:
        """What pictures of a model show, ready for JSON."""
        return {}

    # Predictions of new sequences.

    @abstractmethod
    def predicted(self, each_seed: np.ndarray) -> Predicted:
        """The predictions (R, S, K) of all seeds, combined."""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """The columns of a table of predictions, as in `Predicted.cells`."""

    @property
    def text_columns(self) -> frozenset[str]:
        """Those columns that are text; all others are numbers."""
        return frozenset()

    @property
    def label_columns(self) -> list[str]:
        """The columns of the labels."""
        return [f"label_{name}" for name in self.names]

    def label_cells(self, label: Label) -> list[str]:
        """The label of an item as it is written to a table."""
        values = label if isinstance(label, tuple) else (label,)
        return [f"{value!r}" for value in values]

    @abstractmethod
    def seed_columns(self, seed: int) -> list[str]:
        """The columns of the predictions (K,) of one seed."""

    @abstractmethod
    def track_column(self, name: str) -> str:
        """The column that a track of one of the names shows."""

    @abstractmethod
    def contrast(self, predictions: Tensor) -> Tensor:
        """Predictions (..., K) on the scale on which the alleles of a variant are compared by a
        difference."""

    @abstractmethod
    def contrast_name(self, name: str) -> str:
        """What `contrast` contains for a class or column, such as "log-odds of class enhancer"."""

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary})"


class ColumnTarget(TaskTarget[S], Generic[S]):
    """A number for each of the columns `names`.

    Attributes:
        value_prefix: of the columns of predictions in a table.
    """

    value_prefix: ClassVar[str]

    @override
    def parse(self, cells: Sequence[str], where: str, columns: Sequence[str]) -> tuple[float, ...]:
        return tuple(
            math.nan if cell.lower() in MISSING else self.parse_cell(cell, where, column)
            for cell, column in zip(cells, columns, strict=True)
        )

    @abstractmethod
    def parse_cell(self, cell: str, where: str, column: str) -> float:
        """The value in a cell that is not missing."""

    @override
    def check(self, cells: Sequence[str], where: str) -> None:
        self.parse(cells, where, self.names)

    @override
    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[Self, np.ndarray]:
        return self, self.as_array(
            [self.parse(label.split(SEPARATOR), source, self.names) for label in labels]
        )

    @override
    def as_array(self, labels: Sequence[Label]) -> np.ndarray:
        return np.array(labels, np.float32).reshape(len(labels), self.num_outputs)

    @override
    def is_labeled(self, labels: np.ndarray) -> np.ndarray:
        return np.isfinite(labels).any(1)

    @override
    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        for name, column in zip(self.names, labels.T):
            known = column[column.isfinite()]
            if not len(known):
                raise ValueError(
                    f"{source} has no value in column {name!r} of its training items; add some, or "
                    "set task.label_column"
                )
            if bool((known == known[0]).all()):
                raise ValueError(
                    f"{source} has the same value, {known[0]:g}, in column {name!r} of all "
                    f"{len(known):,} training items that have one, "
                    "and training needs different ones; set task.label_column to another column"
                )
        return self

    @override
    def check_valid(self, labels: Tensor, source: str) -> None:
        if not bool(labels.isfinite().any()):
            raise ValueError(
                f"{source} has no value of {', '.join(map(repr, self.names))} in its "
                f"{len(labels):,} validation items, which choose the epoch "
                "and the settings; add some, or divide at random: task.redivide=true"
            )

    @override
    def check_test(self, labels: Tensor, source: str) -> None:
        for name, column in zip(self.names, labels.T):
            if len(column[column.isfinite()].unique()) < 2:
                raise ValueError(
                    f"{source} has fewer than two different values in column {name!r} of its "
                    f"{len(labels):,} test items, for which "
                    f"{title(self.primary)} is not defined; add some, divide in another way "
                    "(task.redivide=true, another task.seed), or leave the column out"
                )

    @override
    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return torch.stack(
            [weight * one.double() for one, weight in zip(predictions, weights) if weight > 0]
        ).sum(0)

    @override
    def valid_score(self, predictions: Tensor, labels: Tensor) -> ValidScore:
        loss = self.valid_loss(predictions, labels)
        return ValidScore(0.0, -loss if math.isfinite(loss) else -math.inf)

    @property
    @override
    def columns(self) -> list[str]:
        return [
            column
            for name in self.names
            for column in (f"{self.value_prefix}_{name}", f"spread_{name}")
        ]

    @override
    def track_column(self, name: str) -> str:
        return f"{self.value_prefix}_{name}"

    @override
    def contrast(self, predictions: Tensor) -> Tensor:
        return predictions
