import pytest
import torch

from dnadiff.diffusion.denoiser import BaseDenoiser, Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ar import Autoregressive
from dnadiff.diffusion.sampler.fast_dllm import FastDLLM
from dnadiff.diffusion.sampler.gibbs import Gibbs
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.semi_ar import SemiAR
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT

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


def starts(length, *sizes):
    return [part.start for part in SemiAR(Grouped(), *sizes).parts(length)]


def test_windows_advance_by_strides():
    assert starts(40, 16, 6) == [0, 6, 12, 18, 24]
    assert starts(40, 16, 10) == [
        0,
        10,
        20,
        24,
    ]  # the last one ends with the sequence
    assert starts(16, 16) == [0] and SemiAR(Grouped(), 16).num_steps_for(40) == 4 * 16


def test_any_length_and_templates_across_windows(denoiser):
    x_init = torch.full((3, 45), 3)
    x_init[0, 30:35], x_init[1, :] = 7, 8
    frozen = torch.zeros(3, 45, dtype=torch.bool)
    frozen[2, 40] = True
    result = run(SemiAR(Grouped(4)), denoiser, 45, x_init, frozen=frozen)
    assert (
        (result.tokens[0, 30:35] == 7).all()
        and (result.tokens[1] == 8).all()
        and result.tokens[2, 40] == 3
    )
    filled = result.tokens.clone()
    filled[2, 40] = 7
    assert torch.isin(filled, torch.tensor(DNA.emitted)).all()
    assert result.nfe <= SemiAR(Grouped(4), 16).num_steps_for(45) and result.rows <= 2 * result.nfe


def test_a_short_sequence_is_left_to_the_other_sampler(denoiser):
    assert torch.equal(
        run(SemiAR(Grouped(4)), denoiser, 12).tokens, run(Grouped(4), denoiser, 12).tokens
    )


def test_later_windows_see_the_end_of_the_one_before(denoiser):
    # The first 16 positions given: what follows depends on the last 8 of them and on no others.
    given = torch.full((2, 24), 3)
    given[:, :16] = torch.tensor([7, 8, 9, 10] * 4)
    other = given.clone()
    other[:, :8] = 9
    assert torch.equal(
        run(SemiAR(Grouped(4)), denoiser, 24, given).tokens[:, 16:],
        run(SemiAR(Grouped(4)), denoiser, 24, other).tokens[:, 16:],
    )


@pytest.mark.parametrize("given", [slice(20, 60), slice(0, 8), slice(5, 45), slice(0, 60)])
def test_a_window_without_masks_is_not_refined(given, denoiser):
    x_init = torch.full((3, 60), 3)
    x_init[:, given] = torch.randint(7, 11, (3, 60), generator=torch.Generator().manual_seed(0))[
        :, given
    ]
    for sampler in (SemiAR(Gibbs(1, 4), window=16, stride=10), SemiAR(Gibbs(1, 4))):
        tokens = run(sampler, denoiser, 60, x_init).tokens
        assert torch.equal(tokens[:, given], x_init[:, given]) and (tokens != 3).all()


def test_each_window_has_its_own_noise(denoiser):
    torch.nn.init.zeros_(
        denoiser.backbone.output_layer.linear.weight
    )  # every base is equally likely, whatever stands before it
    tokens = run(SemiAR(Grouped(4), 16, 16), denoiser, 48).tokens
    assert len({tuple(row) for row in tokens.view(-1, 16).tolist()}) == 9


@pytest.mark.parametrize("window", [None, 16])
def test_a_stride_beyond_the_window_is_refused_given_or_default(window, denoiser):
    with pytest.raises(
        ValueError,
        match=r"stride 20 is larger than the window 16; set sampler.stride to at most 16",
    ):
        run(SemiAR(Grouped(4), window, 20), denoiser, 45)
    with pytest.raises(
        ValueError,
        match=r"window 17 is more than the 16 tokens that this network takes; set sampler.window",
    ):
        run(SemiAR(Grouped(4), 17), denoiser, 45)


def test_the_default_window_is_that_of_the_network(denoiser):
    sampler = SemiAR(Grouped(4)).fitted(denoiser)
    assert (sampler.window_for(45), sampler.num_steps_for(45)) == (16, 5 * 4)
    assert SemiAR(Grouped(4)).fitted(BaseDenoiser(denoiser.vocab)).window_for(45) == 45
    assert run(SemiAR(Grouped(4)), denoiser, 45).nfe == run(sampler, denoiser, 45).nfe == 5 * 4


def test_a_model_that_the_inner_sampler_cannot_sample_is_refused_up_front(denoiser):
    sampler = SemiAR(FastDLLM(Grouped(2), 4))
    sampler.check_model(denoiser)
    with pytest.raises(
        ValueError,
        match="needs a transformer with a key-value cache, such as dit; Caduceus has none",
    ):
        sampler.check_model(Denoiser(Caduceus(DNA, d_model=8, n_layers=1)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SemiAR(Grouped(), 0), "window 0 must be an integer of at least 1"),
        (lambda: SemiAR(Grouped(), 8, 9), "stride 9 is larger than the window 8"),
        (lambda: SemiAR(Autoregressive()), "does not fill the masks of a window"),
        (
            lambda: SemiAR(Grouped(20), 16).check_length(40),
            "num_groups 20 is larger than the length 16",
        ),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
