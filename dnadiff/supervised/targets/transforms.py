"""Transforms of labels before a regression: metrics, differences and the loss are on the
transformed scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


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
