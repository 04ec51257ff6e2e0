"""What a frozen network knows: its pooled features under a logistic regression, or compared with those of known items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnadiff.backbone.base import Backbone
from dnadiff.downstream.baselines import log_probs_of, logistic, most_accurate
from dnadiff.downstream.classifier import check_length, merges_strands, pooled, pooled_width
from dnadiff.downstream.items import Items, TaskData, batch


@torch.no_grad()
def embedded(
    backbone: Backbone, items: Items, batch_size: int, both_strands: bool, report: Callable[..., None] | None = None
) -> np.ndarray:
    """Mean features of each item, (S, D) float32; with `both_strands` the mean of those of the two strands.

    A network that reads both strands itself reads an item once, and then gives (S, D/2).

    Args:
        backbone: put into evaluation mode.
        items: sequences.
        batch_size: items at once, grouped by length.
        both_strands: read both.
        report: called as `report(0, tokens)`.
    """
    backbone.eval()
    device = next(backbone.parameters()).device
    stranded = not both_strands
    width = pooled_width(backbone, stranded)
    result = torch.empty(len(items), width)
    for index in items.lengths.argsort(stable=True).split(batch_size):
        strands = [None, torch.ones(len(index), dtype=torch.bool)] if both_strands and not merges_strands(backbone, stranded) else [None]
        total = torch.zeros(len(index), width)
        for reverse in strands:
            ids, valid, _ = batch(items, index, backbone.vocab, reverse)
            total += pooled(backbone, ids.to(device), None if valid is None else valid.to(device), stranded=stranded).cpu()
            if report is not None:
                report(0, ids.numel())
        result[index] = total / len(strands)
    return result.numpy()


class Frozen(ABC):
    """A network that is not trained on the task; its features are.

    Args:
        backbone: gives the network for a seed.
        random: whether another seed gives another network.
        batch_size: items at once.
        about: names the network in `describe`, such as its checkpoint.
        device: where the network runs.

    Attributes:
        found: of the last call: accuracy on the validation items of every setting, and which was chosen.
    """

    def __init__(
        self,
        backbone: Callable[[int], Backbone],
        random: bool = False,
        batch_size: int = 64,
        about: Mapping[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        self.backbone, self.random, self.batch_size, self.about, self.device = backbone, random, batch_size, dict(about or {}), device
        self.found: dict[str, Any] = {}
        self._known: dict[tuple[bool, bytes], np.ndarray] = {}

    def describe(self) -> dict[str, Any]:
        """What the result depends on, besides task and seed."""
        return {"kind": type(self).__name__, **self.about}

    def num_steps(self, data: TaskData) -> int:
        """None that are worth counting."""
        return 0

    @abstractmethod
    def candidates(self, size: int) -> dict[str, Any]:
        """Unfitted models for `size` training items under their setting; the most accurate on the validation items is taken."""

    def __call__(self, data: TaskData, seed: int, report: Callable[..., None] | None = None) -> Tensor:
        """Log-probabilities of the test items, (S, C)."""
        backbone = self.backbone(seed).to(self.device)
        check_length(backbone, data)
        if self.random:
            self._known.clear()
        train, valid, test = (self._features(backbone, items, not data.stranded, report) for items in (data.train, data.valid, data.test))
        best, self.found = most_accurate(self.candidates(len(train)), train, data.train.labels.numpy(), valid, data.valid.labels.numpy())
        return log_probs_of(best, test, len(data.classes))

    def _features(self, backbone: Backbone, items: Items, both_strands: bool, report: Callable[..., None] | None) -> np.ndarray:
        """As `embedded`; a sequence met before, under another division, is not read again."""
        keys = [(both_strands, ids[:length].tobytes()) for ids, length in zip(items.ids.numpy(), items.lengths.tolist())]
        missing = [row for row, key in enumerate(keys) if key not in self._known]
        if missing:
            new = embedded(backbone, items.select(torch.tensor(missing)), self.batch_size, both_strands, report)
            self._known |= {keys[row]: vector for row, vector in zip(missing, new)}
        return np.stack([self._known[key] for key in keys])


class LinearProbe(Frozen):
    """Logistic regression on standardised features; the penalty is chosen on the validation items."""

    strengths: Sequence[float] = (0.001, 0.01, 0.1, 1.0, 10.0)

    def candidates(self, size: int) -> dict[str, Any]:
        """See `Frozen`."""
        from sklearn.preprocessing import StandardScaler

        return logistic(StandardScaler(), self.strengths)


class NearestNeighbours(Frozen):
    """The classes of the nearest training items, standardised features of unit length; their number is chosen on validation."""

    numbers: Sequence[int] = (1, 5, 15, 45)

    def candidates(self, size: int) -> dict[str, Any]:
        """See `Frozen`."""
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer, StandardScaler

        return {
            f"{number} neighbours": make_pipeline(StandardScaler(), Normalizer(), KNeighborsClassifier(number))
            for number in self.numbers
            if number <= size
        }
