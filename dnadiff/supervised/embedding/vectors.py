"""Embeddings in memory: an array with the names of its sequences, and its forms for pandas and
scanpy."""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import anndata
    import pandas


class Embeddings(np.ndarray):
    """Vectors of S sequences (S, D). An array in every other respect; what is computed from it has
    no names.

    Attributes:
        names: of the sequences; None for an array made from another one.
    """

    names: list[str] | None = None

    @classmethod
    def of(cls, vectors: np.ndarray, names: Sequence[str]) -> Embeddings:
        """The vectors with the names of their sequences; those that occur twice get numbers, so
        that all names differ."""
        found = np.asarray(vectors).view(cls)
        found.names = _different(names)
        return found

    def to_frame(self) -> pandas.DataFrame:
        """A row for each sequence, a column for each feature."""
        import pandas

        return pandas.DataFrame(
            np.asarray(self),
            index=self.names,
            columns=[f"feature_{i}" for i in range(self.shape[1])],
        )

    def to_anndata(self) -> anndata.AnnData:
        """`X` (S, D), with the names in `obs_names`: what `embed output=e.h5ad` writes, without
        coordinates.

        Raises:
            ValueError: without the package anndata.
        """
        try:
            package = importlib.import_module("anndata")
        except ImportError as error:
            raise ValueError(
                "to_anndata needs the package anndata: pip install -e '.[anndata]' in the checkout"
            ) from error
        table = self.to_frame()
        return package.AnnData(np.asarray(self), obs=table[[]].rename(str), var=table.T[[]])


def _different(names: Sequence[str]) -> list[str]:
    """The names; to one that occurs twice its position in the list is appended, or the next number
    that gives an unused name."""
    number, used, found = Counter(names), set(names), []
    for i, name in enumerate(names):
        if number[name] > 1:
            name = next(
                new for new in (f"{name}_{j}" for j in itertools.count(i)) if new not in used
            )
        used.add(name)
        found.append(name)
    return found
