"""Mask rates from a mixture of a uniform and a Beta distribution: their distribution, and the bound."""

import numpy
import pytest
import torch
from scipy import integrate, stats

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.objective.masking import ExactCount
from dnadiff.objective.mdlm import MDLM
from dnadiff.objective.rates import BetaRates
from dnadiff.process import AbsorbingProcess

DNA = DNATokenizer().vocab
PROCESS = AbsorbingProcess(DNA, LogLinear())
SETTINGS = [(3.0, 17.0, 0.5), (1.0, 5.0, 0.1), (2.0, 2.0, 0.9), (1.0, 1.0, 0.5), (3.0, 17.0, 1.0)]


@pytest.mark.parametrize(("alpha", "beta", "uniform"), SETTINGS)
def test_rates_have_the_distribution_of_the_mixture(alpha, beta, uniform):
    masking, size = BetaRates(alpha, beta, uniform), 400
    rates = numpy.sort(masking.rates((torch.arange(size, dtype=torch.float64) + 0.5) / size).numpy())
    cumulative = uniform * rates + (1 - uniform) * stats.beta(alpha, beta).cdf(rates)
    assert numpy.abs(cumulative - (numpy.arange(size) + 0.5) / size).max() < 1.5 / size  # both parts are stratified


@pytest.mark.parametrize(("alpha", "beta", "uniform"), SETTINGS)
def test_the_density_is_that_of_the_mixture(alpha, beta, uniform):
    rates = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    expected = uniform + (1 - uniform) * stats.beta(alpha, beta).pdf(rates.numpy())
    numpy.testing.assert_allclose(BetaRates(alpha, beta, uniform).density(rates).numpy(), expected, rtol=1e-9)
    total = integrate.quad(lambda r: float(BetaRates(alpha, beta, uniform).density(torch.tensor(r, dtype=torch.float64))), 0, 1)[0]
    assert total == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(("alpha", "beta", "uniform"), SETTINGS[:3])
def test_the_mean_of_the_weighted_loss_is_the_bound(alpha, beta, uniform):
    torch.manual_seed(0)
    denoiser = Denoiser(Caduceus(DNA, d_model=8, n_layers=1, d_state=4).double()).eval()
    x0, weight = torch.tensor([[7, 10, 8]]), torch.ones(1, 3)

    def mean(masking, count):
        found = MDLM(PROCESS, masking, "cross_entropy")
        many = x0.expand(count, -1)
        with torch.no_grad():
            return float(found(denoiser, many, weight.expand(count, -1), Draws.for_batch(0, count)).nll)

    exact = mean(ExactCount(), 60_000)
    assert mean(BetaRates(alpha, beta, uniform), 60_000) == pytest.approx(exact, abs=0.02)


def test_training_sees_the_rates_and_evaluation_does_not():
    objective = MDLM(PROCESS, BetaRates(3, 17, 0.1), "cross_entropy")
    assert isinstance(objective.evaluation().masking, ExactCount)
    batch = objective.masking(PROCESS, torch.full((500, 40), 7), torch.ones(500, 40, dtype=torch.bool), Draws.for_batch(0, 500))
    share = float((batch.xt == DNA.mask_id).float().mean())
    assert share == pytest.approx(0.1 * 0.5 + 0.9 * 0.15, abs=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.5}, "objective.masking.alpha 0.5 must be 1 or more"),
        ({"beta": 0}, "objective.masking.beta 0 must be 1 or more"),
        ({"uniform": 0}, "objective.masking.uniform 0 must be above 0 and at most 1"),
        ({"uniform": 1.5}, "objective.masking.uniform 1.5 must be above 0 and at most 1"),
        ({"alpha": "a"}, "objective.masking.alpha 'a' must be a finite number"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError) as caught:
        BetaRates(**settings)
    assert message in str(caught.value)
