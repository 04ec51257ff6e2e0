"""p(x) = p(RC x) for a parameter-shared network with random-order samplers."""

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ancestral import Ancestral
from dnadiff.diffusion.sampler.confidence import Confidence
from dnadiff.diffusion.sampler.first_hitting import FirstHitting
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS

DNA = DNATokenizer().vocab
BATCH, LENGTH = 6_000, 3


def asymmetry(kind, sampler):
    """sum (n_x - n_rc)^2/(n_x + n_rc) over the 32 pairs of 3-base sequences (none is its own
    partner): chi-squared with 32 degrees of freedom if both strands have one distribution: 32 on
    average, above 75 with probability 3e-5."""
    torch.manual_seed(1)
    network = kind(DNA, 8, 1, d_state=4).eval()
    for name, p in network.named_parameters():
        if p.ndim == 2 and "A_log" not in name:
            torch.nn.init.normal_(p, std=0.5)
    process = AbsorbingProcess(DNA, LogLinear())
    tokens = sampler.sample(
        Denoiser(network), process, process.prior(BATCH, LENGTH), Draws.for_batch(0, BATCH)
    ).tokens
    powers = torch.tensor([16, 4, 1])
    here, there = ((ids - 7) @ powers for ids in (tokens, DNA.reverse_complement(tokens)))
    counts = [torch.bincount(words, minlength=64).double() for words in (here, there)]
    assert (counts[0] > 0).sum() > 20  # not all alike
    return float(((counts[0] - counts[1]) ** 2 / (counts[0] + counts[1]).clamp(min=1)).sum() / 2)


@pytest.mark.parametrize(
    "sampler",
    [Grouped(2), FirstHitting(), Ancestral(4), Confidence(3)],
    ids=lambda s: type(s).__name__,
)
def test_samples_of_a_shared_network_and_their_reverse_complements_have_the_same_distribution(
    sampler,
):
    assert asymmetry(CaduceusPS, sampler) < 75


def test_the_statistic_sees_a_network_without_sharing():
    assert asymmetry(Caduceus, FirstHitting()) > 300
