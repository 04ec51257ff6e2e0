"""The effect of variants on what a fine-tuned network predicts: the prediction with ALT minus that
with REF, in windows of equal length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from dnadiff.variant_effect.effects import CHUNK, RowScorer, Scored, divided
from dnadiff.variant_effect.pairs import Ids, pair
from dnadiff.variant_effect.site_windows import Floats
from dnadiff.variant_effect.variant import Alleles, Edit, Reference, Skipped

Predict = Callable[[Sequence[Ids]], Floats]  # windows -> predictions (R, n) of R seeds


class PredictedEffect(NamedTuple):
    """The effect of an allele.

    Attributes:
        predicted_REF, predicted_ALT: predictions of both windows, averaged over the seeds.
        difference: ALT minus REF.
        SE_seeds: standard error of the difference over the seeds; NaN for a single one.
        differs: REF is not what the genome has.
    """

    predicted_REF: float
    predicted_ALT: float
    difference: float
    SE_seeds: float
    differs: bool = False


PREDICTED_COLUMNS = PredictedEffect._fields[:-1]


class GenomeWindows(NamedTuple):
    """The genome, and the bases that the network reads."""

    window: int
    reference: Reference
    sites_per_window: int = 1


class PredictedScorer(RowScorer):
    """Compares the predictions of both alleles.

    Args:
        predict: the predictions of windows, on the scale on which differences are taken.
        windows: centered on the variants, shorter where a record ends.
    """

    method_name = "predicted"

    def __init__(self, predict: Predict, windows: GenomeWindows, alleles: Alleles) -> None:
        super().__init__()
        self.predict, self.network, self.alleles = predict, windows, alleles

    @override
    def chunks(self, rows: Iterable, done: int = 0) -> Iterator[list[Scored]]:
        for block in divided(rows, CHUNK):
            if done < len(block):
                edits = [self.alleles.edits(row)[0] for row in block[done:]]
                effects = iter(
                    self._effects(
                        [each for found in edits for each in found if isinstance(each, Edit)]
                    )
                )
                yield [
                    Scored(
                        row,
                        tuple(
                            each if isinstance(each, Skipped) else next(effects) for each in found
                        ),
                    )
                    for row, found in zip(block[done:], edits)
                ]
            done = max(done - len(block), 0)

    def _effects(self, edits: Sequence[Edit]) -> list[PredictedEffect]:
        if not edits:
            return []
        pairs = [pair(self.network.reference, edit, self.network.window) for edit in edits]
        found = self.predict([each.ref for each in pairs] + [each.alt for each in pairs]).reshape(
            -1, 2, len(edits)
        )
        difference = found[:, 1] - found[:, 0]
        seeds = len(found)
        error = (
            difference.std(0, ddof=1) / math.sqrt(seeds)
            if seeds > 1
            else np.full(len(edits), math.nan)
        )
        self.num_scored += len(edits)
        columns = (found[:, 0].mean(0), found[:, 1].mean(0), difference.mean(0), error)
        return [
            PredictedEffect._make([*map(float, values), edit.differs])
            for edit, *values in zip(edits, *columns)
        ]
