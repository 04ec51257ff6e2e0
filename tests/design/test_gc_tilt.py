"""The tilt that reaches a mean GC."""

import math

import numpy as np
import pytest

from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.design import gc_tilt
from dnadiff.design.request import Templates
from dnadiff.design.template import dna_pattern

DNA = DNATokenizer()


@pytest.mark.parametrize("at_zero", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("gain", [0.6, 1.0, 2.5])
@pytest.mark.parametrize("target", [0.05, 0.5, 0.62, 0.95])
def test_calibration_finds_the_target(at_zero, gain, target):
    calls = []

    def mean(x):
        calls.append(x)
        return 1 / (1 + math.exp(-gain * x) * (1 - at_zero) / at_zero)

    found, reached, count = gc_tilt.find_tilt(mean, target)
    assert abs(mean(found) - target) <= gc_tilt.TOLERANCE and reached == pytest.approx(mean(found)) and count == len(calls) - 2 <= 12


def test_a_gc_that_a_sampler_cannot_reach_is_an_error():
    with pytest.raises(ValueError, match=r"gc 0.8 cannot be reached by this sampler: its pilot batch reaches 0.600"):
        gc_tilt.find_tilt(lambda x: 0.4 + 0.2 / (1 + math.exp(-x)), 0.8)
    assert gc_tilt.find_tilt(lambda x: round(20 / (1 + math.exp(-x))) / 20, 0.507)[1] == pytest.approx(0.5)  # a small pilot moves in steps


@pytest.mark.parametrize("gc", [0, 1, -0.1, "half", True, float("nan"), 0.2, 0.8, 0.1])
def test_a_gc_that_the_template_excludes_is_an_error(gc):
    request = Templates([("t", dna_pattern(DNA, 10, "GCATNNNNNN"))], 4, 3)  # 0.2 and 0.8 only if every letter were one of two
    with pytest.raises(ValueError, match=r"gc .* (must be a number between 0 and 1|cannot be reached: .* between 0.200 and 0.800)"):
        gc_tilt.check(gc, request, DNA)
    assert gc_tilt.check(0.5, request, DNA) == 0.5 == gc_tilt.check(np.float32(0.5), request, DNA)
    with pytest.raises(ValueError, match="for models of DNA"):
        gc_tilt.check(0.5, request, CharTokenizer("ab"))
