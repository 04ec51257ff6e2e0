import math

import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
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
