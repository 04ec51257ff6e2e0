import pytest
import torch

from dnadiff.backbone.dit import DiT
from dnadiff.denoiser import Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.ar import AR
from dnadiff.sampler.grouped import Grouped
from dnadiff.sampler.semi_ar import SemiAR
from dnadiff.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


@pytest.fixture
def denoiser():
    torch.manual_seed(0)
    network = DiT(DNA, 16, 1, 2, 8, max_length=16).eval()
    torch.nn.init.normal_(network.output_layer.linear.weight)
    return Denoiser(network)


def run(sampler, denoiser, length, x_init=None, **kwargs):
    process = AbsorbingProcess(DNA, LogLinear())
    x_init = process.prior(3, length) if x_init is None else x_init
    return sampler.sample(denoiser, process, x_init, Draws.for_batch(0, len(x_init)), **kwargs)


def test_windows_move_on_by_strides():
    assert SemiAR(Grouped(), 16, 6).starts(40, 16) == [0, 6, 12, 18, 24]
    assert SemiAR(Grouped(), 16, 10).starts(40, 16) == [0, 10, 20, 24]  # the last one ends with the sequence
    assert SemiAR(Grouped(), 16).starts(16, 16) == [0] and SemiAR(Grouped(), 16).num_steps_for(40) == 4 * 16


def test_any_length_and_templates_across_windows(denoiser):
    x_init = torch.full((3, 45), 3)
    x_init[0, 30:35], x_init[1, :] = 7, 8
    frozen = torch.zeros(3, 45, dtype=torch.bool)
    frozen[2, 40] = True
    result = run(SemiAR(Grouped(4)), denoiser, 45, x_init, frozen=frozen)
    assert (result.tokens[0, 30:35] == 7).all() and (result.tokens[1] == 8).all() and result.tokens[2, 40] == 3
    filled = result.tokens.clone()
    filled[2, 40] = 7
    assert torch.isin(filled, torch.tensor(DNA.emitted)).all()
    assert result.nfe <= SemiAR(Grouped(4), 16).num_steps_for(45) and result.rows <= 2 * result.nfe


def test_a_short_sequence_is_left_to_the_other_sampler(denoiser):
    assert torch.equal(run(SemiAR(Grouped(4)), denoiser, 12).tokens, run(Grouped(4), denoiser, 12).tokens)


def test_later_windows_see_the_end_of_the_one_before(denoiser):
    # The first 16 positions given: what follows depends on the last 8 of them and on no others.
    given = torch.full((2, 24), 3)
    given[:, :16] = torch.tensor([7, 8, 9, 10] * 4)
    other = given.clone()
    other[:, :8] = 9
    assert torch.equal(
        run(SemiAR(Grouped(4)), denoiser, 24, given).tokens[:, 16:], run(SemiAR(Grouped(4)), denoiser, 24, other).tokens[:, 16:]
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SemiAR(Grouped(), 0), "window 0 must be at least 1"),
        (lambda: SemiAR(Grouped(), 8, 9), "stride 9 is larger than the window 8"),
        (lambda: SemiAR(AR()), "semi_ar is for samplers that unmask"),
        (lambda: SemiAR(Grouped(20), 16).check_length(40), "num_groups 20 is larger than the length 16"),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
