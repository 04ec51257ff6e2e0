"""Mask rates from a mixture of a uniform and a Beta distribution: their distribution, and the
bound."""

import numpy
import pytest
import torch
from scipy import special, stats
from torch.overrides import TorchFunctionMode

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import BetaRates, ExactCount, Positions, strata
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.caduceus import Caduceus

DNA = DNATokenizer().vocab
PROCESS = AbsorbingProcess(DNA, LogLinear())
SETTINGS = [(3.0, 17.0, 0.5), (1.0, 5.0, 0.1), (2.0, 2.0, 0.9), (1.0, 1.0, 0.5), (3.0, 17.0, 1.0)]


@pytest.mark.parametrize(("alpha", "beta", "uniform"), SETTINGS)
def test_rates_have_the_distribution_of_the_mixture(alpha, beta, uniform):
    masking, size = BetaRates(alpha, beta, uniform), 400
    rates = numpy.sort(
        masking.rates((torch.arange(size, dtype=torch.float64) + 0.5) / size).numpy()
    )
    cumulative = uniform * rates + (1 - uniform) * stats.beta(alpha, beta).cdf(rates)
    assert (
        numpy.abs(cumulative - (numpy.arange(size) + 0.5) / size).max() < 1.5 / size
    )  # both parts are stratified


@pytest.mark.parametrize(("alpha", "beta", "uniform"), SETTINGS)
def test_the_density_is_that_of_the_mixture(alpha, beta, uniform):
    rates = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    expected = uniform + (1 - uniform) * stats.beta(alpha, beta).pdf(rates.numpy())
    masking = BetaRates(alpha, beta, uniform)
    numpy.testing.assert_allclose(
        masking.density(rates).numpy(), expected, rtol=2e-3, atol=3e-3
    )  # quantiles are interpolated
    # The density is that of the interpolated rates: importance sampling is exact, here of the
    # integral of r^2.
    drawn = masking.rates((torch.arange(2**20, dtype=torch.float64) + 0.5) / 2**20)
    assert float((drawn**2 / masking.density(drawn)).mean()) == pytest.approx(1 / 3, abs=1e-5)


@pytest.mark.parametrize(("alpha", "beta", "uniform"), SETTINGS)
@pytest.mark.parametrize(("masked", "length"), [(1, 1), (1, 3), (2, 3), (3, 3), (1, 20)])
def test_every_mask_counts_as_in_the_bound(alpha, beta, uniform, masked, length):
    # A mask of k of L tokens has the probability r^k (1 - r)^(L - k), and the bound integrates 1/r
    # times that over all rates.
    masking = BetaRates(alpha, beta, uniform)
    rate = masking.rates((torch.arange(2**18, dtype=torch.float64) + 0.5) / 2**18)
    found = (rate ** (masked - 1) * (1 - rate) ** (length - masked) / masking.density(rate)).mean()
    assert float(found) == pytest.approx(special.beta(masked, length - masked + 1), rel=1e-4)


OBJECTIVES = {
    "mdlm": lambda masking: MDLM(PROCESS, masking, "cross_entropy"),
    "sedd": lambda masking: SEDD(PROCESS, masking),
    "block_mdlm": lambda masking: BlockMDLM(PROCESS, 2, masking, "cross_entropy"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_weights_are_those_of_every_objective(name):
    torch.manual_seed(0)
    objective, masking = OBJECTIVES[name](BetaRates()), BetaRates()
    denoiser = objective.denoiser(
        Caduceus(DNA, d_model=8, n_layers=1, d_state=4), time_conditioning=False
    )
    x0, weight, draws = torch.randint(7, 11, (6, 5)), torch.ones(6, 5), Draws.for_batch(0, 6)
    batch = TrainingBatch(x0, weight, draws)
    masked, positions = objective.masked_positions(batch)
    blocks = draws.for_blocks(3) if name == "block_mdlm" else draws
    rate = masking.rates(strata(blocks, True, torch.device("cpu")))
    factor = (
        (1 / (rate * masking.density(rate)))
        .float()
        .view(6, -1)
        .repeat_interleave(2 if name == "block_mdlm" else 5, 1)[:, :5]
    )
    nll = objective.token_nll(denoiser, batch, masked, Positions(positions))
    found = objective(denoiser, x0, weight, draws)
    torch.testing.assert_close(found.nll, (nll * factor[positions]).sum() / 30)
    found.loss.backward()


def test_no_step_waits_for_the_device():
    masking, x0 = BetaRates(), torch.full((8, 40), 7)
    maskable = torch.ones_like(x0, dtype=torch.bool)
    masking(PROCESS, x0, maskable, Draws.for_batch(0, 8))  # the quantiles are computed once
    copies = [getattr(torch.Tensor, name) for name in ("cpu", "numpy", "item", "tolist")]

    class OnTheDevice(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            assert function not in copies, "a step copies from the device"
            return function(*args, **kwargs or {})

    with OnTheDevice():
        masking(PROCESS, x0, maskable, Draws.for_batch(0, 8, step=1))


def test_with_the_bound_as_the_loss_the_rates_change_the_variance_only():
    notes = {name: of(BetaRates()).notes() for name, of in OBJECTIVES.items()}
    assert (notes["mdlm"], notes["block_mdlm"], len(notes["sedd"])) == ([], [], 1)
    assert "objective/masking=beta changes only the variance" in notes["sedd"][0]
    assert (
        MDLM(PROCESS, BetaRates(), "nelbo").notes()
        and not MDLM(PROCESS, ExactCount(), "nelbo").notes()
    )
    with pytest.raises(
        ValueError, match="d3pm is defined in discrete time and cannot use masking BetaRates"
    ):
        D3PM(PROCESS, BetaRates())


def test_training_sees_the_rates_and_evaluation_does_not():
    objective = MDLM(PROCESS, BetaRates(3, 17, 0.1), "cross_entropy")
    assert isinstance(objective.evaluation().masking, ExactCount)
    batch = objective.masking(
        PROCESS,
        torch.full((500, 40), 7),
        torch.ones(500, 40, dtype=torch.bool),
        Draws.for_batch(0, 500),
    )
    share = float((batch.xt == DNA.mask_id).float().mean())
    assert share == pytest.approx(0.1 * 0.5 + 0.9 * 0.15, abs=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.5}, "alpha 0.5 must be a number of at least 1"),
        ({"beta": 0}, "beta 0 must be a number of at least 1"),
        ({"uniform": 0}, "uniform 0 must be a number above 0 and at most 1"),
        ({"uniform": 1.5}, "uniform 1.5 must be a number above 0 and at most 1"),
        ({"alpha": "a"}, "alpha 'a' must be a number of at least 1"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError) as caught:
        BetaRates(**settings)
    assert message in str(caught.value)
