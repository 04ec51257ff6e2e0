"""Classifiers that need no training by gradients: the linear model of k-mers, and the combination
of several classifiers with weights that are fitted on validation predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff.data.kmers import canonical, codes
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import JsonDict
from dnadiff.networks.backbone.base import Backbone
from dnadiff.supervised.classifier import Classifier, SequenceClassifier
from dnadiff.supervised.items import (
    Budget,
    ItemBatch,
    Prediction,
    Report,
    TaskData,
    TaskModel,
    no_report,
)
from dnadiff.supervised.targets import TaskTarget

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

NETWORK = "network"
BASES = "bases"
KMERS = "kmers"
# Parts of what is left of a budget when each member begins, the smallest first: the network gets
# the rest, also what the others do not need.
SHARES = {KMERS: 0.15, BASES: 0.35, NETWORK: 1.0}
# Of the squared distance of the weights from equal ones, in validation items: chosen once for all
# tasks (docs/results/fine_tuning.md).
PENALTY = 10.0


def kmer_counts(bases: np.ndarray, k: int, both_strands: bool) -> csr_matrix:
    """How often each k-mer occurs in each row, (S, 4**k) float64.

    Args:
        bases: (S, L) uint8: A, C, G, T as 0..3, everything else 4.
        both_strands: count a k-mer and its reverse complement together, under the smaller code.
    """
    from scipy.sparse import csr_matrix

    read = canonical if both_strands else codes
    found = [kmers[known] for kmers, known in (read(row, k) for row in bases)]
    ends = np.cumsum([0, *map(len, found)])
    kmers = np.concatenate([np.empty(0, np.uint64), *found]).astype(np.int64)
    counts = csr_matrix((np.ones(len(kmers)), kmers, ends), shape=(len(bases), 4**k))
    counts.sum_duplicates()
    return counts


class KmerClassifier(SequenceClassifier):
    """A linear model of the square roots of k-mer counts, scaled to unit length, in float64.

    Args:
        weight: (C, 4**k).
        bias: (C,).
        stranded: False counts a k-mer and its reverse complement together.
    """

    dtype = torch.float64

    def __init__(self, vocab: Vocab, weight: Tensor, bias: Tensor, stranded: bool) -> None:
        super().__init__()
        self.vocab = vocab
        self.k = round(math.log(weight.shape[1], 4))
        self.num_classes = len(bias)
        self.invariant = not stranded
        self.weight = nn.Parameter(weight.double(), requires_grad=False)
        self.bias = nn.Parameter(bias.double(), requires_grad=False)

    def forward(
        self, ids: Tensor, valid: Tensor | None = None, cond: Tensor | None = None
    ) -> Tensor:
        ids = ids if valid is None else torch.where(valid, ids, self.vocab.pad_id)
        counts = kmer_counts(DNATokenizer().bases(ids.cpu().numpy()), self.k, self.invariant)
        scale = np.sqrt(np.maximum(counts.sum(1), 1))
        features = torch.from_numpy(counts.sqrt().toarray() / np.asarray(scale)).to(self.weight)
        return features @ self.weight.T + self.bias

    def predictions(self, strands: Sequence[ItemBatch]) -> Tensor:
        # A linear model of values has the scale of the labels, not that of a network's outputs.
        scores = [self(*batch[:3]) for batch in strands]
        return self.target.normalized(torch.stack(scores).mean(0))


class Pool(nn.Module):
    """Predictions (S, K) from those of M models, as the target normalizes a weighted sum of them:
    of log-probabilities this is a logarithmic opinion pool, of log-odds their weighted sum, of
    values a linear regression.

    Attributes:
        weights: (M,), not negative; they need not add up to 1, which calibrates probabilities.
        intercept: (K,).
    """

    def __init__(self, weights: Tensor, intercept: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights.double(), requires_grad=False)
        self.intercept = nn.Parameter(intercept.double(), requires_grad=False)

    @classmethod
    def fit(
        cls,
        predictions: Sequence[Tensor],
        labels: Tensor,
        target: TaskTarget,
        penalty: float = PENALTY,
    ) -> Pool:
        """The pool with the lowest loss on validation items, plus `penalty / S` times the squared
        distance from equal weights without an intercept, in standard deviations of the
        predictions. The problem is convex."""
        from scipy.optimize import minimize

        models = torch.stack([one.double() for one in predictions])
        number, size, outputs = models.shape
        scale = models.std((0, 1), correction=0).clamp(min=1e-12)
        equal = torch.full((number,), 1 / number, dtype=models.dtype)

        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            point = torch.tensor(values, requires_grad=True)
            weights, shift = point.split([number, outputs])
            pooled = target.normalized(torch.tensordot(weights, models, 1) + shift * scale)
            loss = target.predicted_loss(pooled, labels)
            distance = (weights - equal).square().sum() + shift.square().sum()
            total = loss + penalty / size * distance
            total.backward()
            return total.item(), point.grad.numpy()  # type: ignore[union-attr]

        start = torch.cat([equal, torch.zeros_like(scale)]).numpy()
        bounds = [(0, None)] * number + [(None, None)] * outputs
        found = minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B", tol=1e-12)
        weights, shift = torch.from_numpy(found.x).split([number, outputs])
        return cls(weights, shift * scale)

    def forward(self, predictions: Sequence[Tensor], target: TaskTarget) -> Tensor:
        """Predictions (S, K) from those of each model."""
        models = torch.stack([one.double() for one in predictions])
        return target.normalized(torch.tensordot(self.weights, models, 1) + self.intercept).float()


class CombinedClassifier(SequenceClassifier):
    """Several classifiers of one task as one: each predicts, and a pool combines the predictions.

    It has the lengths and inputs of its `network`.

    Args:
        members: by name; one is the fine-tuned network.
    """

    def __init__(self, members: Mapping[str, SequenceClassifier], pool: Pool) -> None:
        super().__init__()
        self.members = nn.ModuleDict(members)
        self.pool = pool
        network = members[NETWORK]
        assert isinstance(network, Classifier)
        self.vocab = network.vocab
        self.num_classes = network.num_classes
        self.stranded = network.stranded
        self.inputs = network.inputs
        self.max_length = network.max_length
        self.fixed_length = network.fixed_length
        self.invariant = all(member.invariant for member in members.values())
        self.target = network.target

    @property
    def backbone(self) -> Backbone | None:
        """The fine-tuned network."""
        return self.members[NETWORK].backbone  # type: ignore[return-value]

    def predictions(self, strands: Sequence[ItemBatch]) -> Tensor:
        members: Any = self.members.values()
        return self.pool([member.predictions(strands) for member in members], self.target)

    def forward(
        self, ids: Tensor, valid: Tensor | None = None, cond: Tensor | None = None
    ) -> Tensor:
        """Predictions (B, C) from one strand."""
        return self.predictions([ItemBatch(ids, valid, cond)])


@dataclass(eq=False)
class CombinedModel(TaskModel):
    """Fits a fine-tuned network, a small network on the bases and a model of k-mers, and predicts
    with a pool of them.

    Args:
        rows: the row of each member in a study.
        models: the members by name.
        minutes: wall-clock budget of all members with their searches; None: their own.
        controls: further models by their rows, which are not combined: each is trained for as long
            as the network.
    """

    rows: Mapping[str, str]
    models: Mapping[str, TaskModel]
    minutes: float | None = None
    controls: Mapping[str, TaskModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {self.rows[name]: model for name, model in self.models.items()}
        self.members = {**own, **self.controls}
        self.fitted: tuple[TaskData | None, dict[str, Prediction]] = None, {}

    def describe(self) -> JsonDict:
        members = {row: model.describe() for row, model in self.members.items()}
        own = {**super().describe(), "members": members, "minutes": self.minutes}
        return {**self.models[NETWORK].describe(), **own}

    def check(self, data: TaskData) -> None:
        for model in self.members.values():
            model.check(data)

    def num_steps(self, data: TaskData) -> int:
        return sum(model.num_steps(data) for model in self.members.values())

    def fit_rows(
        self, row: str, data: TaskData, seed: int, report: Report = no_report
    ) -> dict[str, Prediction]:
        own = super().fit_rows(row, data, seed, report)
        return {**own, **self.fitted[1]}

    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        budget = self.budget or Budget(self.minutes)
        before, known = self.fitted
        found = dict(known) if before is data else {}

        def fit(row: str, part: Budget) -> Prediction:
            model = self.members[row]
            if row not in found or model.random:  # else the same for each seed
                report(0, now=f"{row}, seed {seed}")
                model.budget = part
                found.update(model.fit_rows(row, data, seed, report))
            return found[row]

        for name, share in SHARES.items():
            fit(self.rows[name], budget.part(share))
        each = [found[row] for row in self.rows.values()]
        spent = found[self.rows[NETWORK]].seconds / 60 if budget.is_limited else None
        for row in self.controls:
            fit(row, Budget(spent))
        self.fitted = data, found
        classifiers: Any = {name: found[row].classifier for name, row in self.rows.items()}
        target = classifiers[NETWORK].target
        valid: Any = [one.valid_predictions for one in each]
        pool = Pool.fit(valid, data.valid.labels, target)
        self.trained = CombinedClassifier(classifiers, pool)
        self.valid_predictions = pool(valid, target)
        weights = zip(self.rows.values(), pool.weights.tolist())
        info = {name: self.models[name].fit_info for name in (NETWORK, BASES)}
        self.fit_info: JsonDict = {
            "chosen": {
                **info[NETWORK].get("chosen", {}),
                **{f"weight of {row}": round(weight, 4) for row, weight in weights},
            },
            "head": info[NETWORK]["head"],
            "members": {BASES: {"head": info[BASES]["head"]}, KMERS: {"k": classifiers[KMERS].k}},
            **target.record(target.valid_score(self.valid_predictions, data.valid.labels)),
        }
        return pool([one.predictions for one in each], target)
