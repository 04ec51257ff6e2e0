import math

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimates import OWN
from dnadiff.diffusion.likelihood.estimators import estimate
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import Objective
from dnadiff.diffusion.objective.bound import Bound
from dnadiff.diffusion.objective.masking import Bernoulli
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess, UniformProcess
from dnadiff.diffusion.sampler.reverse import Reverse
from dnadiff.networks.backbone.dit import DiT

DNA = DNATokenizer().vocab


def network():
    torch.manual_seed(0)
    made = DiT(DNA, 16, 1, 2, dropout=0.0)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return made


def loss_of(objective, denoiser, rows=8):
    x0 = torch.arange(7, 11).repeat(rows, 3)
    draws = Draws.for_batch(1, rows)
    return objective(denoiser, x0, torch.ones(x0.shape), draws)


def test_for_masks_it_is_the_loss_of_mdlm():
    process = AbsorbingProcess(DNA, LogLinear(0.0))
    denoiser = Denoiser(network())
    mdlm = loss_of(MDLM(process, Bernoulli(t_min=0.0)), denoiser)
    torch.testing.assert_close(loss_of(Bound(process), denoiser).loss, mdlm.loss)


def test_uniform_noise_is_trained_and_a_uniform_guess_costs_log_4():
    process = UniformProcess(DNA, LogLinear())
    objective = Bound(process)
    untrained = objective.denoiser(DiT(DNA, 16, 1, 2))  # its head is zero
    found = loss_of(objective, untrained, 400)
    assert abs(float(found.nll) - math.log(4)) < 0.3  # rare large terms at small times
    found.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in untrained.parameters())


def test_uniform_noise_is_sampled_without_masks_and_keeps_given_tokens():
    process = UniformProcess(DNA, LogLinear())
    denoiser = Bound(process).denoiser(network(), time_conditioning=True).eval()
    denoiser.process_type = type(process)
    x = process.prior(4, 6)
    assert DNA.is_emitted()[x].all()
    template = torch.full((4, 6), DNA.mask_id)
    template[:, 2] = 9
    found = Reverse(num_steps=5).sample(denoiser, process, template, Draws.for_batch(0, 4))
    assert DNA.is_emitted()[found.tokens].all() and (found.tokens[:, 2] == 9).all()
    assert found.nfe == 5


def test_likelihoods_of_another_process_are_draws_of_its_own_bound():
    process = UniformProcess(DNA, LogLinear())
    objective = Bound(process)
    denoiser = objective.denoiser(network(), time_conditioning=True).eval()
    denoiser.process_type, denoiser.bound = type(process), objective.token_bound
    x0 = torch.arange(7, 11).repeat(6, 2)
    counted = torch.ones(x0.shape, dtype=torch.bool)
    counted[:, 3] = False
    found = estimate(denoiser, process, [(x0, {"all": counted})], num_draws=256)
    assert found.protocol == OWN and (found.tokens["all"] == 7).all()
    # the same in one batch of many rows, each at its own time
    rows, draws = x0.repeat(256, 1), Draws.for_batch(5, 6 * 256)
    with torch.no_grad():
        once = objective(denoiser, rows, counted.repeat(256, 1).float(), draws)
    assert abs(float(once.nll) - found.interval().value) < 5 * (found.se_mc() + 0.005)


def test_an_objective_without_likelihood_says_why():
    class Unbounded(Bound):
        no_likelihood = "it is a chain that has none"
        token_bound = Objective.token_bound

    process = UniformProcess(DNA, LogLinear())
    denoiser = Unbounded(process).denoiser(network()).eval()
    denoiser.process_type, denoiser.bound = type(process), Unbounded(process).token_bound
    x0 = torch.full((1, 4), 8)
    with pytest.raises(ValueError, match=r"Unbounded has no likelihood: it is a chain.*judge"):
        estimate(denoiser, process, [(x0, {"all": x0 == 8})])
