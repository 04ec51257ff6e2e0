"""The options of `sample`: what they say about importance weights."""

import numpy as np
import pytest

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import BlockDenoiser
from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.guidance import Guided
from dnadiff.design.options import check_weights
from dnadiff.design.request import Templates
from dnadiff.design.template import FREE, Pattern
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.block import Blockwise
from dnadiff.sampler.grouped import Grouped

DNA = DNATokenizer().vocab


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_guided_block_diffusion_has_no_weights_and_says_so(caplog, guidance):
    # With guidance it said that weights correct for fixed tokens in later blocks, and there were none.
    model = BlockDenoiser(Caduceus(DNA, d_model=8, n_layers=1, num_labels=2), 4)
    denoiser = model if guidance == 1 else Guided(model, guidance)
    generator = ConditionalSampler(denoiser, AbsorbingProcess(DNA, LogLinear()), DNATokenizer(), Blockwise(Grouped(1)))
    pattern = Pattern(np.array([3, 3, 3, 3, 3, 3, 3, 9]), np.full(8, FREE, np.uint8), None)
    request, options = Templates([("t", pattern)], 1, DNA.mask_id), {"guidance": guidance, "length": None}
    assert check_weights(options | {"resample": False}, generator, request, is_dna=True) == (guidance == 1)
    outcome = "weights correct for it" if guidance == 1 else "nothing corrects for it"
    assert f"does not see fixed tokens to the right of a mask in later blocks; {outcome}" in caplog.text
    if guidance != 1:
        with pytest.raises(ValueError, match=r"guided block diffusion has no importance weights; set guidance=1, not 2\.0"):
            check_weights(options | {"resample": True}, generator, request, is_dna=True)
