import math

import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.masking import MaskedBatch, Positions
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import SUBS, AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_the_ratios_that_subs_implies_cost_what_subs_costs(eps):
    # facts 9: V = 4, t = 0.5: sigma' x score entropy = 2 log 4 (both eps: the weight is 1/t)
    noise = LogLinear(eps)
    objective = SEDD(AbsorbingProcess(DNA, noise))
    t, xt = torch.tensor([0.5], dtype=torch.float64), torch.tensor([[3]])

    class Uniform(MaskedDenoiser):
        def log_score(self, xt, t, cond, positions, valid):
            logits = torch.zeros(1, 12, dtype=torch.float64)
            return SUBS(DNA).log_score(logits, xt[positions], noise.sigma(t.double()))

    nll = objective.token_nll(
        Uniform(DNA),
        TrainingBatch(torch.tensor([[7]]), None, None),
        MaskedBatch(xt, t, noise.weight(t)),
        Positions(xt == 3),
    )
    assert float(noise.weight(t) * nll) == pytest.approx(2.772589, abs=1e-6)
    # Written out as in the paper: sigma' [sum of ratios - q log s + q (log q - 1)].
    q = float(noise.alpha(t) / (1 - noise.alpha(t)))
    dsigma = -float(noise.dalpha(t) / noise.alpha(t))
    assert dsigma * (q - q * math.log(q / 4) + q * (math.log(q) - 1)) == pytest.approx(
        2.772589, abs=1e-6
    )


def test_a_new_network_guesses_and_is_conditioned_the_time():
    torch.manual_seed(0)
    backbone = DiT(DNA, 16, 1, 2, 8)  # its head is zero at the start
    objective = SEDD(AbsorbingProcess(DNA, LogLinear()))
    denoiser = objective.denoiser(backbone)
    assert denoiser.time_conditioning and not objective.denoiser(backbone, False).time_conditioning
    x0 = torch.randint(7, 11, (8, 30))
    result = objective.evaluation()(denoiser, x0, torch.ones(8, 30), Draws.for_batch(0, 8))
    assert result.loss.item() == pytest.approx(
        math.log(4), rel=1e-5
    )  # the ratios of a uniform guess
    torch.testing.assert_close(
        denoiser.log_probs(torch.tensor([[3]]), torch.tensor([0.3])).exp()[0, 0, 7:11],
        torch.full((4,), 0.25),
    )


def test_an_empty_batch_costs_nothing():
    torch.manual_seed(0)
    backbone = DiT(DNA, 16, 1, 2, 8)
    objective = SEDD(AbsorbingProcess(DNA, LogLinear(0.0)))
    denoiser = objective.denoiser(backbone)
    result = objective(denoiser, torch.full((2, 8), 11), torch.zeros(2, 8), Draws.for_batch(0, 2))
    result.loss.backward()
    assert result.loss == 0 and all(
        p.grad is None or (p.grad == 0).all() for p in denoiser.parameters()
    )


def test_the_loss_is_finite_where_alpha_vanishes():
    torch.manual_seed(0)
    objective = SEDD(AbsorbingProcess(DNA, LogLinear(0.0)))
    denoiser = objective.denoiser(DiT(DNA, 16, 1, 2, 8))
    t, xt = torch.ones(1, dtype=torch.float64), torch.tensor([[3, 3]])
    nll = objective.token_nll(
        denoiser,
        TrainingBatch(torch.tensor([[7, 8]]), None, None),
        MaskedBatch(xt, t, objective.process.noise.weight(t)),
        Positions(xt == 3),
    )
    nll.sum().backward()
    assert nll.tolist() == pytest.approx([math.log(4)] * 2, rel=1e-4)
    assert all(p.grad is None or p.grad.isfinite().all() for p in denoiser.parameters())


def test_a_network_without_a_time_input_is_trained_without_time():
    backbone = DiT(DNA, 16, 1, 2, 8)
    backbone.takes_sigma = False
    objective = SEDD(AbsorbingProcess(DNA, LogLinear()))
    denoiser = objective.denoiser(backbone)
    assert not denoiser.time_conditioning and not denoiser.normalized
    assert objective(
        denoiser, torch.full((2, 8), 7), torch.ones(2, 8), Draws.for_batch(0, 2)
    ).loss.isfinite()
    with pytest.raises(ValueError, match="has no time input"):
        objective.denoiser(backbone, time_conditioning=True)
