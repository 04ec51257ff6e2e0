"""Baselines on length, base composition and k-mer counts, with scikit-learn models.

Those configured in `configs/baselines/` are called with a tokenizer first.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from dnadiff.data.kmers import UNKNOWN
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import JsonDict, NonNegative
from dnadiff.networks.backbone.base import Backbone
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.classifier import (
    Classifier,
    SequenceClassifier,
    check_length,
    pooled_width,
)
from dnadiff.supervised.combined import KmerClassifier, kmer_counts
from dnadiff.supervised.heads import Mean
from dnadiff.supervised.items import (
    Budget,
    Items,
    Report,
    TaskData,
    TaskModel,
    flipped_rows,
    no_report,
)
from dnadiff.supervised.targets import RegressionTarget, TaskTarget

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator, TransformerMixin

    Features: TypeAlias = "ndarray | csr_matrix"  # (S, F)

_CLEAR = 0.05  # an accuracy of the length alone that much above chance is reported


_LEAST = 1e-12  # probability of a class without training items
SLOWER = 3.0  # than with one setting of a linear model, a fit with the next weaker penalty
LOGISTIC = "logistic regression"
RIDGE = "ridge regression"


class Estimators:
    """The scikit-learn models for a target: classifiers, chosen by accuracy (for levels by the
    loss); for other targets one copy of a model for each output, all with the same setting, fitted
    on the items that have a label, and chosen by the validation loss. Predictions of classifiers
    for labels are log-odds.

    Models to choose from are in dictionaries by the name of their setting.
    """

    def __init__(self, target: TaskTarget) -> None:
        self.target = target
        self.of_classes = isinstance(target, ClassTarget)
        self.by_accuracy = target.primary == ClassTarget.primary
        # Of regression by gradient boosting; None: the models classify.
        self.boosting_loss: str | None = None
        if isinstance(target, RegressionTarget):
            self.boosting_loss = target.loss_function.boosting_loss
        self.linear_name = LOGISTIC if self.boosting_loss is None else RIDGE

    def linear(
        self, scaler: TransformerMixin, strengths: Sequence[float]
    ) -> dict[str, BaseEstimator]:
        """Linear models on scaled features; the larger a strength, the weaker the penalty."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.pipeline import make_pipeline

        models = (
            {f"C = {c:g}": LogisticRegression(C=c, max_iter=1000) for c in strengths}
            if self.boosting_loss is None
            else {f"alpha = {1 / c:g}": Ridge(alpha=1 / c) for c in strengths}
        )
        return {name: make_pipeline(scaler, model) for name, model in models.items()}

    def boosting(self, num_trees: Sequence[int], **settings: float) -> dict[str, BaseEstimator]:
        """Gradient boosting without early stopping, one for each number of trees per output."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        shared: JsonDict = {"early_stopping": False, "random_state": 0, **settings}
        make: type[BaseEstimator] = HistGradientBoostingClassifier
        if self.boosting_loss is not None:
            make = HistGradientBoostingRegressor
            shared = {"loss": self.boosting_loss, **shared}
        return {f"{number} trees": make(max_iter=number, **shared) for number in num_trees}

    def fit(self, model: BaseEstimator, features: Features, labels: ndarray) -> Any:
        """A fitted model, or one for each output."""
        from sklearn.base import clone

        if self.of_classes:
            return model.fit(features, labels)
        known = [np.flatnonzero(np.isfinite(column)) for column in labels.T]
        pairs = zip(known, labels.T)
        return [clone(model).fit(features[rows], column[rows]) for rows, column in pairs]

    def score(self, model: Any, features: Features, labels: Tensor) -> float:
        """The score that the settings are chosen by."""
        if self.by_accuracy:
            return float(model.score(features, labels.numpy()))
        return self.target.valid_loss(self.predict(model, features), labels)

    def predict(self, model: Any, features: Features) -> Tensor:
        """Predictions (S, K) of a fitted model."""
        if self.of_classes:
            probs = np.full((features.shape[0], self.target.num_outputs), _LEAST)
            probs[:, model.classes_] = np.maximum(model.predict_proba(features), _LEAST)
            return torch.from_numpy(np.log(probs / probs.sum(1, keepdims=True)))
        if self.boosting_loss is not None:
            columns = np.stack([each.predict(features) for each in model], 1)
        else:
            found = np.stack([each.predict_proba(features)[:, 1] for each in model], 1)
            probs = np.clip(found, 1e-6, 1 - 1e-6)
            columns = np.log(probs) - np.log1p(-probs)
        return torch.from_numpy(columns.astype(np.float64))


class Fit(NamedTuple):
    """A fitted `model`, and what to record of its choice."""

    models: Estimators
    model: Any
    info: JsonDict


class SklearnModel(TaskModel):
    """A scikit-learn model on features of a sequence, with one hyperparameter chosen on the
    validation items.

    `fit_info` records the validation score of every setting and the chosen one: of classes the
    accuracy, of other targets the loss.
    """

    random = False
    not_settings = frozenset(
        ("bases", "vocab", "fit_info", "valid_predictions", "trained", "budget")
    )

    def __init__(self, tokenizer: DNATokenizer) -> None:
        self.bases = tokenizer.bases
        self.vocab = tokenizer.vocab

    @abstractmethod
    def features(self, items: Items, stranded: bool) -> Features:
        """(S, F), dense or sparse."""

    @abstractmethod
    def candidates(self, estimators: Estimators, num_items: int) -> Mapping[str, BaseEstimator]:
        """Unfitted models by the name of their setting. The one with the best validation score is
        used; the first one in a tie.

        Args:
            num_items: training items that have a label; of several targets, of the one with the
                fewest.
        """

    def describe(self) -> JsonDict:
        return super().describe() | {
            key: value for key, value in vars(self).items() if key not in self.not_settings
        }

    def classifier(self, fits: Sequence[Fit], data: TaskData) -> SequenceClassifier | None:
        """The fitted models as a classifier; None if there is none of their kind."""
        return None

    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        train, valid, test = (self.features(items, data.stranded) for items in data.parts.values())
        of_train, of_valid = map(data.target.of_columns, (data.train.labels, data.valid.labels))
        fits = [
            self._fit(target, train[rows.numpy()], labels, valid[known.numpy()], own)
            for (target, _, rows, labels), (_, _, known, own) in zip(of_train, of_valid)
        ]
        self.fit_info = fits[0].info if len(fits) == 1 else {"columns": [x.info for x in fits]}
        self.valid_predictions, predicted = (
            torch.cat([models.predict(model, each) for models, model, _ in fits], 1)
            for each in (valid, test)
        )
        self.trained = self.classifier(fits, data)
        return predicted

    def _fit(
        self, target: TaskTarget, train: Features, labels: Tensor, valid: Features, own: Tensor
    ) -> Fit:
        """The model of a target with the best score for the labels `own` of validation items."""
        budget = self.budget or Budget(None)
        models = Estimators(target.fit(labels))
        fitted = {}
        tried = dict[str, float]()
        unfitted = self.candidates(models, int(labels.isfinite().sum(0).min()))
        with warnings.catch_warnings(action="ignore"):  # such as that classes are numbers
            for name, model in unfitted.items():
                left = budget.left
                fitted[name] = models.fit(model, train, labels.numpy())
                tried[name] = models.score(fitted[name], valid, own)
                if SLOWER * (left - budget.left) > budget.left:
                    break
        choose, score = (max, "valid_accuracy") if models.by_accuracy else (min, "valid_loss")
        best = choose(tried, key=lambda name: tried[name])
        return Fit(models, fitted[best], {"tried": tried, "chosen": best, score: tried[best]})


class KmerLogistic(SklearnModel):
    """Logistic regression on the square roots of k-mer frequencies; for a regression ridge
    regression.

    Unless the task is stranded, a k-mer and its reverse complement are one feature. The square root
    keeps k-mers that occur twice from outweighing the many that occur once.

    Args:
        strengths: values of scikit-learn's C, or of 1 / alpha of ridge regression, to choose from;
            the larger, the weaker the penalty.
    """

    def __init__(
        self,
        tokenizer: DNATokenizer,
        k: int = 6,
        strengths: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0),
    ) -> None:
        super().__init__(tokenizer)
        self.k = k
        self.strengths = tuple(strengths)

    def features(self, items: Items, stranded: bool) -> csr_matrix:
        return kmer_counts(self.bases(items.ids.numpy()), self.k, both_strands=not stranded).sqrt()

    def candidates(self, estimators: Estimators, num_items: int) -> dict[str, BaseEstimator]:
        from sklearn.preprocessing import Normalizer

        return estimators.linear(Normalizer(), self.strengths)

    def classifier(self, fits: Sequence[Fit], data: TaskData) -> KmerClassifier:
        of_each = [self._scores(one.models.target.num_outputs, one.model) for one in fits]
        weight, bias = (torch.from_numpy(np.concatenate(each)) for each in zip(*of_each))
        made = KmerClassifier(self.vocab, weight, bias, data.stranded)
        made.target = data.target.fit(data.train.labels)
        return made

    def _scores(self, num_classes: int, fitted: Any) -> tuple[ndarray, ndarray]:
        """The weights (K, 4**k) and biases (K,) of a fitted model."""
        weight, bias = np.zeros((num_classes, 4**self.k)), np.full(num_classes, math.log(_LEAST))
        if isinstance(fitted, list):  # one for each output
            for number, model in enumerate(fitted):
                weight[number], bias[number] = model[-1].coef_.ravel(), model[-1].intercept_.item()
        else:
            coefficients, intercept = fitted[-1].coef_, fitted[-1].intercept_
            if len(intercept) == 1:  # of two classes, it has the log-odds of the second
                coefficients = np.vstack([0 * coefficients, coefficients])
                intercept = np.array([0.0, *intercept])
            weight[fitted.classes_], bias[fitted.classes_] = coefficients, intercept
        return weight, bias


class KmerBoosting(SklearnModel):
    """Gradient boosting on k-mer frequencies.

    Args:
        rounds: numbers of trees per class to choose from.
    """

    def __init__(
        self,
        tokenizer: DNATokenizer,
        k: int = 4,
        rounds: Sequence[int] = (50, 100, 200),
        rate: float = 0.1,
    ) -> None:
        super().__init__(tokenizer)
        self.k = k
        self.rounds = tuple(rounds)
        self.rate = rate

    def features(self, items: Items, stranded: bool) -> ndarray:
        counts = kmer_counts(self.bases(items.ids.numpy()), self.k, both_strands=not stranded)
        dense = counts.toarray().astype(np.float32)
        return dense / np.maximum(dense.sum(1, keepdims=True), 1)

    def candidates(self, estimators: Estimators, num_items: int) -> dict[str, BaseEstimator]:
        return estimators.boosting(self.rounds, learning_rate=self.rate)


class OneFeature(SklearnModel):
    """Gradient boosting on one number of each sequence."""

    def candidates(self, estimators: Estimators, num_items: int) -> dict[str, BaseEstimator]:
        return estimators.boosting((10, 30, 100), max_leaf_nodes=7)


class LengthAlone(OneFeature):
    """Gradient boosting on the length of the sequence alone: how much the length reveals."""

    def features(self, items: Items, stranded: bool) -> ndarray:
        return items.lengths.numpy()[:, None].astype(np.float32)


def length_alone(data: TaskData) -> dict[str, float] | None:
    """Validation accuracy of the length alone and of the most frequent class, if the length is
    clearly better: by .05 and three standard errors."""
    if (
        data.target.primary != ClassTarget.primary
        or data.min_length == data.max_length
        or not len(data.valid)
    ):
        return None
    model = LengthAlone(DNATokenizer())
    model.fit_predict(replace(data, test=data.valid.select(torch.arange(1))))
    accuracy = float(model.fit_info["valid_accuracy"])
    frequent = data.target.chance(data.valid.labels.numpy())
    clear = max(_CLEAR, 3 * (frequent * (1 - frequent) / len(data.valid)) ** 0.5)
    return {"accuracy": accuracy, "chance": frequent} if accuracy - frequent > clear else None


class GCAlone(OneFeature):
    """Gradient boosting on the GC content alone; it is 0.5 for a sequence without a known base."""

    def features(self, items: Items, stranded: bool) -> ndarray:
        bases = self.bases(items.ids.numpy())
        known = (bases < UNKNOWN).sum(1)
        gc = ((bases == 1) | (bases == 2)).sum(1)
        return np.where(known > 0, gc / np.maximum(known, 1), 0.5)[:, None].astype(np.float32)


# The consensus and its frequencies in percent: 263 promoters of Harley and Reynolds 1987 (Nucleic
# Acids Res. 15:2343), as given in table 3 of J. Bacteriol. 180:594 (1998).
MINUS_35 = ("TTGACA", (78, 82, 68, 58, 51, 55))
MINUS_10 = ("TATAAT", (82, 90, 52, 59, 49, 89))
# 92 % of these promoters have 17 bases between the hexamers, or one more or less.
SPACERS = range(15, 20)
BEST_SPACER = 17


def log_odds(consensus: str, percent: tuple[int, ...]) -> ndarray:
    """Bits of each base against uniform bases, (6, 5): the rest of a position is shared by the
    other three bases, an unknown base has 0."""
    found = np.zeros((len(consensus), UNKNOWN + 1))
    for row, base, frequency in zip(found, consensus, np.array(percent) / 100):
        row[:UNKNOWN] = np.log2((1 - frequency) / 3 / 0.25)
        row["ACGT".index(base)] = np.log2(frequency / 0.25)
    return found


def match_scores(bases: ndarray, matrix: ndarray) -> ndarray:
    """The score of a matrix (W, 5) at each base that it can begin with: (S, L - W + 1) for
    `bases (S, L)`."""
    count = max(bases.shape[1] - len(matrix) + 1, 0)
    scores = np.zeros((len(bases), count))
    for shift in np.flatnonzero(matrix.any(1)):
        scores += matrix[shift][bases[:, shift : shift + count]]
    return scores


def best_scores(bases: ndarray, lengths: ndarray, spacer_penalty: float) -> ndarray:
    """The best pair of hexamers on the given strand, in bits, (S,); that of the worst possible pair
    for a sequence of less than 27 bases.

    Args:
        bases: (S, L) uint8: A, C, G, T as 0..3, everything else 4.
        lengths: (S,); the rest of a row is ignored.
        spacer_penalty: bits for each base that the spacer differs from 17.
    """
    first = log_odds(*MINUS_35)
    second = log_odds(*MINUS_10)
    worst = first.min(1).sum() + second.min(1).sum()
    best = np.full(len(bases), worst - spacer_penalty * (max(SPACERS) - BEST_SPACER))
    for spacer in SPACERS:
        pair = np.concatenate([first, np.zeros((spacer, UNKNOWN + 1)), second])
        scores = match_scores(bases, pair) - spacer_penalty * abs(spacer - BEST_SPACER)
        inside = np.arange(scores.shape[1]) + len(pair) <= lengths[:, None]
        best = np.maximum(best, np.where(inside, scores, -np.inf).max(1, initial=-np.inf))
    return best


class PromoterMotif(SklearnModel):
    """A linear model on the score of the best -35 and -10 hexamers with 15 to 19 bases between
    them.

    The position in the sequence is free. Unless the task is stranded, the better strand counts.

    Args:
        spacer_penalty: bits for each base that the spacer differs from 17; the hexamers have the
            published frequencies.
    """

    def __init__(self, tokenizer: DNATokenizer, spacer_penalty: NonNegative = 1.0) -> None:
        super().__init__(tokenizer)
        self.spacer_penalty = spacer_penalty

    def features(self, items: Items, stranded: bool) -> ndarray:
        bases = self.bases(items.ids.numpy())
        lengths = items.lengths.numpy()
        scores = best_scores(bases, lengths, self.spacer_penalty)
        if not stranded:
            complement = torch.from_numpy(np.where(bases < UNKNOWN, 3 - bases, UNKNOWN))
            other = flipped_rows(complement, items.lengths, UNKNOWN).numpy()
            scores = np.maximum(scores, best_scores(other, lengths, self.spacer_penalty))
        return scores[:, None]

    def candidates(self, estimators: Estimators, num_items: int) -> Mapping[str, BaseEstimator]:
        from sklearn.preprocessing import StandardScaler

        return estimators.linear(StandardScaler(), [1.0])


@dataclass(eq=False)
class FrozenModel(SklearnModel):
    """A scikit-learn model on the features of a network that is not trained on the task.

    `backbone` returns the network for a seed, another one for each if `random`; `about` identifies
    it in `describe`. `fit_info` records the validation score of every setting and the chosen one.
    """

    backbone: Callable[[int], Backbone]
    random: bool = False
    batch_size: int = 64
    about: Mapping[str, object] = field(default_factory=dict)
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._embeddings: dict[bytes, ndarray] = {}

    def describe(self) -> JsonDict:
        return {**TaskModel.describe(self), **self.about}

    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        self.network = self.backbone(seed).to(self.device)
        check_length(self.network, data)
        if self.random:
            self._embeddings.clear()
        return super().fit_predict(data, seed, report)

    def features(self, items: Items, stranded: bool) -> ndarray:
        """Mean features (S, D) float32 of each item, averaged over the strands unless `stranded`,
        with sequences of earlier calls (under another division of the data) taken from memory.

        A network that reads both strands itself has D/2 features then.
        """
        rows = zip(items.ids.numpy(), items.lengths.tolist())
        keys = [ids[:length].tobytes() for ids, length in rows]
        if items.pieces is not None:  # with columns, equal sequences differ
            keys = [key + piece.tobytes() for key, piece in zip(keys, items.pieces.numpy())]
        missing = [row for row, key in enumerate(keys) if key not in self._embeddings]
        if missing:
            new = items.select(torch.tensor(missing))
            width = pooled_width(self.network, stranded)
            reader = Classifier(self.network, Mean(width, width, 0), stranded)
            reader.target = RegressionTarget()  # whose predictions are the mean over the strands
            vectors = reader.predict(new, self.batch_size, not stranded).numpy()
            self._embeddings |= {keys[row]: vector for row, vector in zip(missing, vectors)}
        return np.stack([self._embeddings[key] for key in keys])


class LinearProbe(FrozenModel):
    """Logistic or ridge regression on standardized features, with the penalty chosen on the
    validation items."""

    strengths: Sequence[float] = (0.001, 0.01, 0.1, 1.0, 10.0)

    def candidates(self, estimators: Estimators, num_items: int) -> dict[str, BaseEstimator]:
        from sklearn.preprocessing import StandardScaler

        return estimators.linear(StandardScaler(), self.strengths)


class NearestNeighbors(FrozenModel):
    """k nearest neighbors on standardized features of unit length, with k chosen on the validation
    items."""

    numbers: Sequence[int] = (1, 5, 15, 45)

    def candidates(self, estimators: Estimators, num_items: int) -> dict[str, BaseEstimator]:
        from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer, StandardScaler

        classifies = estimators.boosting_loss is None
        make = KNeighborsClassifier if classifies else KNeighborsRegressor
        scalers = (StandardScaler(), Normalizer())
        numbers = self.numbers
        return {
            f"{number} neighbors": make_pipeline(*scalers, make(number))
            for number in numbers
            if number <= num_items
        }
