"""The options of `sample`: what they say about importance weights, and the settings of a sampler
that depend on the model."""

from types import SimpleNamespace

import numpy as np
import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.conditioning import Guided
from dnadiff.design.generate import ConditionalSampler, check_weights
from dnadiff.design.request import FREE, Pattern, Templates
from dnadiff.design.samples import check_settings, resolved_sampler
from dnadiff.diffusion.denoiser import BlockDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.block import Blockwise
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.threshold import Threshold
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.options.command import compose

DNA = DNATokenizer().vocab


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize(("inner", "weighted"), [(Grouped(1), True), (Threshold(), False)])
def test_weights_of_block_diffusion_are_those_of_the_sampler_inside(
    caplog, guidance, inner, weighted
):
    # A sampler without weights was said to be corrected by them.
    model = BlockDenoiser(Caduceus(DNA, d_model=8, n_layers=1, num_labels=2), 4)
    denoiser = model if guidance == 1 else Guided(model, guidance)
    generator = ConditionalSampler(
        denoiser, AbsorbingProcess(DNA, LogLinear()), DNATokenizer(), Blockwise(inner)
    )
    pattern = Pattern(np.array([3, 3, 3, 3, 3, 3, 3, 9]), np.full(8, FREE, np.uint8), None)
    request = Templates([("t", pattern)], 1, DNA.mask_id)
    assert check_weights(generator, request, False, is_dna=True) == weighted
    outcome = "weights correct for it" if weighted else "nothing corrects for it"
    assert (
        f"does not see fixed tokens to the right of a mask in later blocks; {outcome}"
        in caplog.text
    )
    if not weighted:
        with pytest.raises(
            ValueError, match="resample=true needs a sampler with importance weights"
        ):
            check_weights(generator, request, True, is_dna=True)


class Half:
    """A stored curve that asks for half as many groups as tokens, and records the lengths that it
    was asked about."""

    def __init__(self):
        self.lengths = []

    def groups(self, length, num_groups=None, sizes=None):
        self.lengths.append(length)
        return {"num_groups": length // 2 if num_groups is None else num_groups, "sizes": None}

    def measured_length(self):
        return 512


def resolved(*options, block_size=None, length=512):
    """The settings of a sampler for a model, and the lengths whose curve was read."""
    model, curve = SimpleNamespace(denoiser=SimpleNamespace(block_size=block_size)), Half()
    settings = compose("sample", ["checkpoint=x", *options])["sampler"]
    return resolved_sampler(settings, model, curve, length, length), curve.lengths


def test_groups_inside_a_block_are_not_those_of_the_whole_sequence():
    # With the curve of 512 tokens there were 256 groups in blocks of 32.
    fast = ("sampler=fast_dllm", "sampler@sampler.sampler=grouped")
    settings, lengths = resolved(*fast)
    assert (
        settings["sampler"]["num_groups"] is None and settings["block_size"] == 32 and lengths == []
    )
    assert resolved(*fast, "sampler.sampler.num_groups=4")[0]["sampler"]["num_groups"] == 4
    with pytest.raises(
        ValueError,
        match=r"sizes 'optimal' needs the h\(n\) of a block, and this model was trained without "
        r"blocks; expected",
    ):
        resolved(*fast, "sampler.sampler.sizes=optimal")
    settings, lengths = resolved("sampler=block", block_size=16)
    assert settings["sampler"]["num_groups"] == 8 and lengths == [16]
    assert resolved("sampler=block", "sampler.block_size=8", block_size=16)[1] == [8]
    windows = ("sampler=semi_ar", "sampler.window=64", "sampler@sampler.sampler=grouped")
    assert resolved(*windows)[0]["sampler"]["num_groups"] == 32
    inside = (
        "sampler=semi_ar",
        "sampler.window=64",
        "sampler@sampler.sampler=fast_dllm",
        "sampler@sampler.sampler.sampler=grouped",
    )
    assert (
        resolved(*inside)[0]["sampler"]["sampler"]["num_groups"] is None
        and resolved(*inside)[1] == []
    )


def test_masks_in_the_samples_are_refused_at_every_level():
    inner = ("sampler@sampler.sampler=fast_dllm", "sampler@sampler.sampler.sampler=ancestral")
    for options in (
        ["sampler=ancestral"],
        ["sampler=semi_ar", "sampler@sampler.sampler=ancestral"],
        ["sampler=semi_ar", *inner],
    ):
        settings = compose("sample", ["checkpoint=x", *options])["sampler"]
        check_settings(settings)
        last = settings
        while "sampler" in last:
            last = last["sampler"]
        last["noise_removal"] = "none"
        with pytest.raises(ValueError, match="noise_removal=none leaves masks in the samples"):
            check_settings(settings)
