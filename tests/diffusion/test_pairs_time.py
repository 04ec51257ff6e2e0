"""The time that a network is conditioned on when a source is always visible: that of the target, in
training, in bounds and in samplers."""

import torch

from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import WindowBatch, estimate, ordered
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.masking import ExactCount
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT

# letters 0 to 2, the separator 3, the mask 4
SOURCE, TARGET = [0, 1, 0, 2, 3], [1, 3, 3]


def world():
    torch.manual_seed(0)
    vocab = Vocab.ending_in_mask(5)
    process, seen = AbsorbingProcess(vocab, LogLinear()), []
    process.separator = 3
    network = DiT(vocab, d_model=8, n_layers=1, n_heads=2)
    denoiser = Denoiser(network, noise=process.noise, time_conditioning=True).eval()
    sigma = denoiser._sigma
    denoiser._sigma = lambda t: seen.append(t) or sigma(t)
    return process, denoiser, seen


def test_the_source_counts_in_no_time():
    process, denoiser, seen = world()
    x0 = torch.tensor([SOURCE + TARGET] * 6)
    weight = (torch.arange(8) > 4).float().expand_as(x0)
    expected = process.time_at(torch.arange(1, 4), torch.full((3,), 3)).float()
    assert abs(float(expected[-1]) - 1) < 1e-6
    MDLM(process, ExactCount())(denoiser, x0, weight, Draws.for_batch(0, 6))
    torch.testing.assert_close(seen.pop().float().unique(), expected)
    batch = WindowBatch(x0, {"all": weight > 0})
    estimate(denoiser, process, [batch], num_draws=6)
    torch.testing.assert_close(torch.cat(seen).float().unique(), expected)
    seen.clear()
    ordered(denoiser, process, [batch], torch.arange)
    torch.testing.assert_close(torch.cat(seen).unique(), expected)
    seen.clear()
    template = torch.where(weight > 0, process.vocab.mask_id, x0)
    Grouped(3).sample(denoiser, process, template, Draws.for_batch(0, 6))
    assert torch.equal(torch.stack([t.unique() for t in seen])[:, 0], expected.flip(0))


def test_what_training_can_mask_is_behind_the_first_separator():
    process, *_ = world()
    x = torch.tensor([[0, 3, 4, 3, 1], [0, 4, 1, 2, 4], [3, 0, 0, 3, 0]])
    valid = torch.tensor([1, 1, 1, 1, 0]).bool().expand_as(x)
    found = process.maskable(x, valid).int().tolist()
    # without a separator all are a target
    assert found == [[0, 0, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 1, 1, 0]]
    process.separator = None
    assert process.maskable(x).all()
