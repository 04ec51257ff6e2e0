"""Noise schedules: the probability alpha(t) that a token is still visible at time t.

t = 0 is clean and t = 1 completely masked. The continuous NELBO is an integral over the mask
probability, so it is the same for every schedule with the same two ends. A schedule changes the
variance of training, the grid of a sampler and every bound in discrete time.
"""

from dnadiff.noise.base import NoiseSchedule, refuse_cut
from dnadiff.noise.mask_fraction import (
    Cosine,
    CosineSquared,
    LogLinear,
    MaskFraction,
    MaskGITCosine,
    Polynomial,
    ShiftedLogOdds,
)
from dnadiff.noise.total_noise import Geometric, Linear, LogMask, TotalNoise

__all__ = [
    "Cosine",
    "CosineSquared",
    "Geometric",
    "Linear",
    "LogLinear",
    "LogMask",
    "MaskFraction",
    "MaskGITCosine",
    "NoiseSchedule",
    "Polynomial",
    "ShiftedLogOdds",
    "TotalNoise",
    "refuse_cut",
]
