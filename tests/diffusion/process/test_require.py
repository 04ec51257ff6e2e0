"""A model of another process than the absorbing one never gets a number from formulas for masks."""

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.conditioning import Constrained
from dnadiff.diffusion.denoiser import Conjoined, DenoiserWrapper, site_log_probs
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.bound import Bound
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import UniformProcess
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.genomics.information import Information
from dnadiff.genomics.variants.methods import Masked, Network
from dnadiff.networks.backbone.dit import DiT

VOCAB = DNATokenizer().vocab
PROCESS = UniformProcess(VOCAB, LogLinear())
IDS = torch.full((2, 6), 8)
BATCHES = [(IDS, {"all": torch.ones_like(IDS, dtype=torch.bool)})]


@pytest.fixture
def denoiser():
    made = Bound(PROCESS).denoiser(DiT(VOCAB, 16, 1, 2)).eval()
    made.process_type = UniformProcess
    return made


@pytest.mark.parametrize(
    "use",
    [
        lambda d: likelihood.estimate(d, PROCESS, BATCHES),
        lambda d: likelihood.estimate(Conjoined(d, VOCAB), PROCESS, BATCHES),
        lambda d: likelihood.one_draw(d, PROCESS, BATCHES),
        lambda d: likelihood.exact_nelbo(d, PROCESS, IDS),
        lambda d: likelihood.ordered(d, PROCESS, BATCHES, likelihood.ORDERS["strided"]),
        lambda d: site_log_probs(d, PROCESS, IDS, IDS == 8, stranded=True),
        lambda d: Information(d, PROCESS, 6, 2),
        lambda d: Masked().for_model(d),
        lambda d: Network(d, PROCESS, None, 6),
        lambda d: Grouped().check_model(DenoiserWrapper(d)),
        lambda d: Constrained(d, IDS, torch.ones(1, VOCAB.size, dtype=torch.bool)),
        lambda d: MDLM(PROCESS),
    ],
)
def test_it_is_refused_by_name(denoiser, use):
    with pytest.raises(ValueError, match=r"needs an absorbing process.*\(UniformProcess\)"):
        use(denoiser)
