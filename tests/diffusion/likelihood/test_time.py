"""Likelihoods of a network that is conditioned on time: it gets the time that samplers give it,
also where a template fixes most tokens."""

import itertools
import math

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.request import Templates, dna_pattern
from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.grouped import Grouped

DNA = DNATokenizer()


class Timed(MaskedDenoiser):
    """A (with p) and C at every position; p depends on the time, and on the number of A to the
    left."""

    time_conditioning = True

    def __init__(self):
        super().__init__(DNA.vocab)
        self.anchor, self.times = torch.nn.Parameter(torch.zeros(1)), []

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.times += t.tolist()
        p = torch.sigmoid(4 * t[:, None] - 1 - 0.3 * ((xt == 7).cumsum(-1) % 3))
        log_probs = torch.full((*xt.shape, 12), -torch.inf)
        log_probs[..., 7], log_probs[..., 8] = p.log(), (1 - p).log()
        return log_probs[positions]


def process():
    return AbsorbingProcess(DNA.vocab, LogLinear(1e-3))


def by_enumeration(denoiser, template, text):
    """-log p of the open positions under one random position per call, averaged over all orders, at
    the fraction of masked tokens."""
    given, total = (
        torch.from_numpy(DNA.encode(text)).long(),
        sum(letter != "n" for letter in template),
    )
    places = [i for i, letter in enumerate(template) if letter == "N"]
    nats = 0.0
    orders = list(itertools.permutations(places))
    for order in orders:
        x = given.clone()
        x[places] = DNA.vocab.mask_id
        for left, place in zip(range(len(places), 0, -1), order):
            here = torch.arange(len(x))[None] == place
            nats -= denoiser.log_probs(x[None], torch.tensor([left / total]), positions=here)[
                0, int(given[place])
            ].item() / len(orders)
            x[place] = given[place]
    return nats


def test_the_bound_of_8_open_among_64_tokens_is_at_the_times_of_the_sampler():
    template = "ACGTTGAC" * 3 + "NNNNNNNN" + "GATTACAG" * 4
    denoiser = Timed()
    made = ConditionalSampler(denoiser, process(), DNA, Grouped(8))
    (batch,) = made.batches(Templates([("t", dna_pattern(DNA, 64, template))], 3, 3), 5, 3)
    assert sorted(set(denoiser.times)) == pytest.approx([k / 64 for k in range(1, 9)])
    denoiser.times.clear()
    bounds = made.bounds(batch, [0, 1, 2], 16, 1)  # two draws for each of the eight counts
    assert sorted(set(denoiser.times)) == pytest.approx([k / 64 for k in range(1, 9)])
    assert all(math.isfinite(bound) for bound in bounds)


def test_the_bound_of_a_template_is_the_code_length_of_its_sampler():
    # An N of the genome cannot be masked, so it is no part of the window whose masked fraction is
    # the time.
    denoiser, text = Timed(), "CAnnACCAAC"
    template = "CAnnNCNNAC"
    ids = torch.from_numpy(DNA.encode(text)).long()[None]
    is_open = torch.tensor([letter == "N" for letter in template])
    expected = by_enumeration(denoiser, template, text)
    assert float(likelihood.exact_nelbo(denoiser, process(), ids, is_open)) == pytest.approx(
        expected, abs=1e-5
    )
    many = likelihood.WindowBatch(ids.expand(3000, -1), {"all": is_open.expand(3000, -1)})
    result = likelihood.estimate(
        denoiser, process(), [many], 6
    )  # two draws for each of the three counts
    each = torch.from_numpy(result.per_sequence())
    assert (
        each.mean().item() == pytest.approx(expected, abs=4 * each.std().item() / 3000**0.5)
        and each.std() < 1
    )


def test_a_sampler_gives_the_times_of_the_tokens_that_can_be_masked():
    denoiser, x = Timed(), torch.from_numpy(DNA.encode("CAnnACCAAC")).long()[None]
    x[0, [4, 6, 7]] = DNA.vocab.mask_id
    Grouped(10).sample(denoiser, process(), x, Draws.for_batch(0, 1))
    assert denoiser.times == pytest.approx([3 / 8, 2 / 8, 1 / 8])


def test_whole_windows_and_padding_have_the_time_of_training():
    denoiser = Timed()
    ids = torch.from_numpy(DNA.encode("CANNACCAAC")).long()[None]
    ids[0, 8:] = DNA.vocab.pad_id
    counted = DNA.vocab.is_emitted()[ids]
    likelihood.estimate(
        denoiser,
        process(),
        [likelihood.WindowBatch(ids, {"all": counted}, ids != DNA.vocab.pad_id)],
        12,
    )
    assert sorted(set(denoiser.times)) == pytest.approx([k / 6 for k in range(1, 7)], abs=1e-6)
