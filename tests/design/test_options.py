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
from dnadiff.sampler.threshold import Threshold

DNA = DNATokenizer().vocab


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize(("inner", "weighted"), [(Grouped(1), True), (Threshold(), False)])
def test_weights_of_block_diffusion_are_those_of_the_sampler_inside(caplog, guidance, inner, weighted):
    # A sampler without weights was said to be corrected by them.
    model = BlockDenoiser(Caduceus(DNA, d_model=8, n_layers=1, num_labels=2), 4)
    denoiser = model if guidance == 1 else Guided(model, guidance)
    generator = ConditionalSampler(denoiser, AbsorbingProcess(DNA, LogLinear()), DNATokenizer(), Blockwise(inner))
    pattern = Pattern(np.array([3, 3, 3, 3, 3, 3, 3, 9]), np.full(8, FREE, np.uint8), None)
    request, options = Templates([("t", pattern)], 1, DNA.mask_id), {"guidance": guidance, "length": None}
    assert check_weights(options | {"resample": False}, generator, request, is_dna=True) == weighted
    outcome = "weights correct for it" if weighted else "nothing corrects for it"
    assert f"does not see fixed tokens to the right of a mask in later blocks; {outcome}" in caplog.text
    if not weighted:
        with pytest.raises(ValueError, match="resample=true needs a sampler with importance weights"):
            check_weights(options | {"resample": True}, generator, request, is_dna=True)
