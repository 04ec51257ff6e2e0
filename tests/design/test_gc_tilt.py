"""The tilt that reaches a mean GC."""

import math

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.design.generate import (
    TOLERANCE,
    ConditionalSampler,
    check_gc,
    find_tilt,
    fit_tilt,
)
from dnadiff.design.request import Templates, dna_pattern
from dnadiff.diffusion.denoiser import BlockDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.block import Blockwise
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.networks.backbone.caduceus import Caduceus

DNA = DNATokenizer()


@pytest.mark.parametrize("at_zero", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("gain", [0.6, 1.0, 2.5])
@pytest.mark.parametrize("target", [0.05, 0.5, 0.62, 0.95])
def test_calibration_finds_the_target(at_zero, gain, target):
    calls = []

    def mean(x):
        calls.append(x)
        return 1 / (1 + math.exp(-gain * x) * (1 - at_zero) / at_zero)

    found, reached = find_tilt(mean, target)
    assert len(calls) <= 12
    assert abs(mean(found) - target) <= TOLERANCE and reached == pytest.approx(mean(found))


def test_a_gc_that_a_sampler_cannot_reach_is_an_error():
    with pytest.raises(
        ValueError, match=r"gc 0.8 cannot be reached by this sampler: its pilot batch reaches 0.600"
    ):
        find_tilt(lambda x: 0.4 + 0.2 / (1 + math.exp(-x)), 0.8)
    assert find_tilt(lambda x: round(20 / (1 + math.exp(-x))) / 20, 0.507)[1] == pytest.approx(
        0.5
    )  # a small pilot moves in steps


@pytest.mark.parametrize("gc", [0, 1, -0.1, "half", True, float("nan"), 0.2, 0.8, 0.1])
def test_a_gc_that_the_template_excludes_is_an_error(gc):
    request = Templates(
        [("t", dna_pattern(DNA, 10, "GCATNNNNNN"))], 4, 3
    )  # 0.2 and 0.8 only if every letter were one of two
    with pytest.raises(
        ValueError,
        match=r"gc .* (must be a .*number above 0 and below 1|cannot be reached: .* between 0.200 "
        r"and 0.800)",
    ):
        check_gc(gc, request, DNA)
    check_gc(0.5, request, DNA)
    check_gc(np.float32(0.5), request, DNA)
    with pytest.raises(ValueError, match="for models of DNA"):
        check_gc(0.5, request, CharTokenizer("ab"))


class Recorded(ConditionalSampler):
    """Keeps the batches that it and its copies made."""

    def __post_init__(self):
        super().__post_init__()
        self.made = []

    def fill(self, *args, **kwargs):
        self.made.append(super().fill(*args, **kwargs))
        return self.made[-1]


def test_the_pilot_makes_no_importance_weights_and_counts_its_calls():
    torch.manual_seed(0)
    model = BlockDenoiser(Caduceus(DNA.vocab, d_model=8, n_layers=1, d_state=4).eval(), 4)
    generator = Recorded(
        model, AbsorbingProcess(DNA.vocab, LogLinear()), DNA, Blockwise(Grouped(2)), tilt=0.5
    )
    request = Templates([("t", dna_pattern(DNA, 14, "NNNNACGTNNGCAA"))], 4, 3)
    numbered = [(i, request[i]) for i in range(4)]
    weighted, plain = generator.fill(numbered, 7), generator.fill(numbered, 7, weighted=False)
    assert weighted.log_weight is not None and plain.log_weight is None
    assert [x.tolist() for x in weighted.tokens] == [x.tolist() for x in plain.tokens]
    assert (
        weighted.nfe == plain.nfe + 8 + 1
    )  # a call for each fixed token after the first mask, and the state before the last block
    generator.made.clear()
    found = fit_tilt(generator, request, 0.5, 1, 16)
    made = generator.made
    assert len(made) >= 2 and all(batch.log_weight is None for batch in made)
    assert (found.calls, found.rows) == (
        sum(batch.nfe for batch in made),
        sum(batch.rows for batch in made),
    )
