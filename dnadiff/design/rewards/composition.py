"""Rewards for the composition of a sequence: GC content and runs of one base."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from dnadiff.design.reward import Reward, Values
from dnadiff.fields import PositiveInt, checked


class GCContent(Reward):
    """The fraction of G and C among the bases A, C, G and T of a sequence, from 0 to 1; 0 for a
    sequence without any.

    Examples:
        >>> float(GCContent()(["GATC"])[0])
        0.5
    """

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        return np.array([_gc(sequence)[0] for sequence in sequences])

    @property
    @override
    def has_gradient(self) -> bool:
        return True

    @override
    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        slopes = np.zeros((len(sequences), len(sequences[0]), 4))
        values = np.zeros(len(sequences))
        for row, sequence in enumerate(sequences):
            values[row], known = _gc(sequence)
            slopes[row, [base in "ACGT" for base in sequence]] = np.array(
                [0.0, 1.0, 1.0, 0.0]
            ) / max(known, 1)
        return values, slopes


def _gc(sequence: str) -> tuple[float, int]:
    gc, known = sequence.count("G") + sequence.count("C"), sum(map(sequence.count, "ACGT"))
    return gc / max(known, 1), known


@checked
class Homopolymer(Reward):
    """Minus the number of bases by which the longest run of one base exceeds `longest`; 0 if none
    does.

    Args:
        longest: allowed length of a run.

    Examples:
        >>> Homopolymer(longest=3)(["ACGT", "AAAAAC"]).tolist()
        [0.0, -2.0]
    """

    def __init__(self, longest: PositiveInt = 6) -> None:
        self.longest = longest

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        longest = [
            max(
                (len(list(run)) for base, run in itertools.groupby(text) if base in "ACGT"),
                default=0,
            )
            for text in sequences
        ]
        return np.minimum(self.longest - np.array(longest, dtype=np.float64), 0.0)
