"""Noise schedules: the probability alpha(t) that a token is still visible at time t.

t = 0 is clean and t = 1 all mask. A schedule is one small record of functions of t; what is done with
them (corruption, posteriors, losses) belongs to `dnadiff.process` and `dnadiff.objective`. The continuous NELBO is
an integral over the mask probability, so it is the same for every schedule with the same two ends, learned ones included;
a schedule changes the variance of training, the grid of a sampler and every bound in discrete time.
"""

from dnadiff.noise.base import NoiseSchedule, refuse_cut
from dnadiff.noise.mask_fraction import Cosine, CosineSquared, LogLinear, MaskGITCosine, MaskShare, Polynomial, ShiftedLogOdds
from dnadiff.noise.total_noise import Geometric, Linear, LogMask, TotalNoise

__all__ = [
    "Cosine",
    "CosineSquared",
    "Geometric",
    "Linear",
    "LogLinear",
    "LogMask",
    "MaskGITCosine",
    "MaskShare",
    "NoiseSchedule",
    "Polynomial",
    "ShiftedLogOdds",
    "TotalNoise",
    "refuse_cut",
]
