"""The -10/-35 weight matrix of E. coli promoters as a baseline: how far two hexamers and the spacer
between them predict the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dnadiff.checks import NonNegative
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.kmers import UNKNOWN
from dnadiff.supervised.baselines import SklearnModel
from dnadiff.supervised.items import Items

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from dnadiff.supervised.targets.estimators import Estimators

# The consensus and its frequencies in percent: 263 promoters of Harley and Reynolds 1987 (Nucleic
# Acids Res. 15:2343), as given in table 3 of J. Bacteriol. 180:594 (1998).
MINUS_35, MINUS_10 = ("TTGACA", (78, 82, 68, 58, 51, 55)), ("TATAAT", (82, 90, 52, 59, 49, 89))
SPACERS, BEST_SPACER = (
    range(15, 20),
    17,
)  # 92 % of these promoters have 17 bases between the hexamers, or one more or less
HEXAMER = 6
SHORTEST = 2 * HEXAMER + min(SPACERS)


def log_odds(consensus: str, percent: tuple[int, ...]) -> np.ndarray:
    """Bits of each base against uniform bases, (6, 5): the rest of a position is shared by the
    other three bases, an unknown base has 0."""
    found = np.zeros((len(consensus), UNKNOWN + 1))
    for row, base, frequency in zip(found, consensus, np.array(percent) / 100):
        row[:UNKNOWN] = np.log2((1 - frequency) / 3 / 0.25)
        row["ACGT".index(base)] = np.log2(frequency / 0.25)
    return found


def hexamer_scores(bases: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The score of the hexamer that starts at each base: (S, L - 5) for `bases (S, L)`."""
    count = bases.shape[1] - len(matrix) + 1
    return sum(
        (row[bases[:, shift : shift + count]] for shift, row in enumerate(matrix)),
        np.zeros((len(bases), count)),
    )


def best_scores(bases: np.ndarray, lengths: np.ndarray, spacer_penalty: float) -> np.ndarray:
    """The best pair of hexamers on the given strand, in bits, (S,); that of the worst possible pair
    for a sequence of less than 27 bases.

    Args:
        bases: (S, L) uint8: A, C, G, T as 0..3, everything else 4.
        lengths: (S,); the rest of a row is ignored.
        spacer_penalty: bits for each base that the spacer differs from 17.
    """
    first, second = log_odds(*MINUS_35), log_odds(*MINUS_10)
    best = np.full(
        len(bases),
        first.min(1).sum() + second.min(1).sum() - spacer_penalty * (max(SPACERS) - BEST_SPACER),
    )
    if bases.shape[1] < SHORTEST:
        return best
    scores_35, scores_10 = hexamer_scores(bases, first), hexamer_scores(bases, second)
    for spacer in SPACERS:
        offset = HEXAMER + spacer
        pairs = (
            scores_35[:, : max(scores_35.shape[1] - offset, 0)]
            + scores_10[:, offset:]
            - spacer_penalty * abs(spacer - BEST_SPACER)
        )
        inside = np.arange(pairs.shape[1]) + offset + HEXAMER <= lengths[:, None]
        best = np.maximum(best, np.where(inside, pairs, -np.inf).max(1, initial=-np.inf))
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

    @override
    def features(self, items: Items, stranded: bool) -> np.ndarray:
        lengths = items.lengths.numpy()
        bases = np.where(
            np.arange(items.ids.shape[1]) < lengths[:, None], self.bases(items.ids.numpy()), UNKNOWN
        )
        scores = best_scores(bases, lengths, self.spacer_penalty)
        if not stranded:
            complement = np.where(bases < UNKNOWN, 3 - bases, UNKNOWN)
            place = lengths[:, None] - 1 - np.arange(bases.shape[1])
            other = np.where(
                place >= 0, np.take_along_axis(complement, np.maximum(place, 0), 1), UNKNOWN
            )
            scores = np.maximum(scores, best_scores(other, lengths, self.spacer_penalty))
        return scores[:, None]

    @override
    def candidates(self, estimators: Estimators) -> Mapping[str, BaseEstimator]:
        from sklearn.preprocessing import StandardScaler

        return estimators.linear(StandardScaler(), [1.0])
