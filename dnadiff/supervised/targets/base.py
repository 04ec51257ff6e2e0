"""The base class of what a task predicts.

A target reads the columns of a table, and defines the head's outputs, the loss, the predictions,
the metrics and what reports show. Everything else of a study is the same for all targets.

Shapes: `S` items, `K` outputs of the head, `R` seeds. Predictions (S, K) are what
    `TaskTarget.predictions` returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
from torch import Tensor
from typing_extensions import override

from dnadiff.bootstrap import ConfidenceInterval
from dnadiff.config import Json
from dnadiff.supervised.metric_intervals import bootstrap_p_value, metric_interval
from dnadiff.supervised.metrics import RANGES, ScoredRun

if TYPE_CHECKING:
    from dnadiff.supervised.targets.estimators import Estimators
    from dnadiff.supervised.targets.predicted import Predicted

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
