"""Requests filled by every sampler and backbone: constraints hold in every output, and noise
depends on the sample only."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.design.conditioning import Guided
from dnadiff.design.generate import ConditionalSampler, effective_size, systematic_resample
from dnadiff.design.request import (
    CODES,
    Free,
    Templates,
    dna_pattern,
    read_motifs,
    text_pattern,
    window_around,
)
from dnadiff.diffusion.denoiser import BlockDenoiser, CausalDenoiser, Denoiser
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.order import Order, OrderDenoiser
from dnadiff.diffusion.process import AbsorbingProcess, Score
from dnadiff.networks.backbone.base import BlockBackbone, CausalBackbone
from dnadiff.options.command import compose
from dnadiff.store.objects import build, config_dir, locate

DNA, TEXT = DNATokenizer(), CharTokenizer("abc ")


def masks(name):
    """Whether the sampler is for models of masks."""
    settings = compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"]
    return issubclass(AbsorbingProcess, locate(settings["_target_"], None).process_type)


SAMPLERS = sorted(filter(masks, (p.stem for p in (config_dir() / "sampler").glob("*.yaml"))))
FEW = {"num_steps": 3, "num_groups": 3, "window": 8, "stride": 3, "block_size": 4}
LETTERS = st.text(sorted(CODES), min_size=3, max_size=14)


@cache
def settings_of(name):
    def smaller(settings):
        return {
            k: smaller(v) if isinstance(v, dict) else FEW.get(k, v) for k, v in settings.items()
        }

    return smaller(compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"])


def sampler_of(name):
    return build(settings_of(name))


def backbones_of(name):
    return ["dit"] if name == "fast_dllm" else backbones(sampler_of(name).reads)


@cache
def network(backbone, labels=0, tokenizer=DNA, sedd=False, blocks=False):
    """A small network with peaked predictions."""
    torch.manual_seed(0)
    chosen = compose("train", [f"backbone={backbone}"])["backbone"]
    small = {"d_model": 16, "n_layers": 1, "n_heads": 2, "num_labels": labels}
    made = build(
        {k: small.get(k, v) for k, v in chosen.items()}
        | ({"num_labels": labels} if labels else {}),
        vocab=tokenizer.vocab,
    ).eval()
    for parameter in made.parameters():
        if parameter.ndim == 2 and parameter.shape[0] < 40:
            torch.nn.init.normal_(parameter)
    if isinstance(made, CausalBackbone):
        return CausalDenoiser(made)
    if blocks:
        return BlockDenoiser(made, 4)
    return Denoiser(made, Score(tokenizer.vocab) if sedd else None, noise=LogLinear(1e-3))


@cache
def backbones(reads):
    names = sorted(p.stem for p in (config_dir() / "backbone").glob("*.yaml"))
    return [name for name in names if isinstance(network(name).backbone, reads)]


def generator(name, backbone, tilt=0.0, guidance=None, sedd=False):
    sampler = sampler_of(name)
    denoiser = network(
        backbone, 0 if guidance is None else 2, sedd=sedd, blocks=sampler.reads is BlockBackbone
    )
    if name == "learned_order":
        order = Order(0.1)
        denoiser = OrderDenoiser(denoiser.backbone, None, LogLinear(1e-3), False, order, False)
    labels = None if guidance is None else torch.tensor([[0.0, 1.0]])
    denoiser = denoiser if guidance in (None, 1) else Guided(denoiser, guidance)
    return ConditionalSampler(
        denoiser, AbsorbingProcess(DNA.vocab, LogLinear(1e-3)), DNA, sampler, labels, tilt
    )


def keeps(letters, text):
    return all(
        CODES[b] & CODES[a.upper()] and (a not in "acgtACGT" or a == b)
        for a, b in zip(letters, text, strict=True)
    )


@pytest.mark.parametrize("name", SAMPLERS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_every_sampler_and_backbone_keeps_random_templates(name, data):
    templates = [
        t
        for t in data.draw(st.lists(LETTERS, min_size=1, max_size=3))
        if set(t) & set(CODES) - set("ACGTU")
    ] or ["NRN"]
    backbone = data.draw(st.sampled_from(backbones_of(name)))
    guidance = (
        data.draw(st.sampled_from([None, 1.0, 2.0])) if "caduceus" in backbone else None
    )  # networks with labels
    sedd = name == "analytic" and guidance is None and data.draw(st.booleans())
    made = generator(name, backbone, data.draw(st.sampled_from([0.0, 2.0, -1.0])), guidance, sedd)
    request = Templates(
        [(f"t{i}", dna_pattern(DNA, len(t), t)) for i, t in enumerate(templates)], 2, 3
    )
    for batch in made.batches(request, data.draw(st.integers(0, 99)), 4):
        for target, tokens in zip(batch.targets, batch.tokens):
            assert keeps(templates[int(target.name[1])], made.text(target, tokens))
        assert batch.log_weight is None or np.isfinite(batch.log_weight).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_lengths_motifs_and_noise_depend_on_the_sample_only(name):
    made = generator(name, backbones_of(name)[0])
    motifs = read_motifs(["TATRAT@1", "CCA@-5:-"])
    request = Free(DNA, 7, (12, 19), 5, "", motifs)
    together = [
        made.text(t, x)
        for batch in made.batches(request, 3, 7)
        for t, x in zip(batch.targets, batch.tokens)
    ]
    apart = [
        made.text(t, x)
        for batch in made.batches(request, 3, 2)
        for t, x in zip(batch.targets, batch.tokens)
    ]
    assert together == apart and len({len(text) for text in together}) > 2
    assert all(
        text[1:4] == "TAT" and text[4] in "AG" and text[-5:-2] == "TGG" and 12 <= len(text) <= 19
        for text in together
    )
    later = [
        made.text(t, x)
        for batch in made.batches(request, 3, 2, first=4)
        for t, x in zip(batch.targets, batch.tokens)
    ]
    assert later == together[4:]


def test_text_templates_are_kept():
    made = ConditionalSampler(
        network("dit", 0, TEXT),
        AbsorbingProcess(TEXT.vocab, LogLinear(1e-3)),
        TEXT,
        sampler_of("grouped"),
    )
    request = Templates([("t", text_pattern(TEXT, "ab[MASK*4]c"))], 3, 0)
    (batch,) = made.batches(request, 1, 4)
    assert all(
        s.startswith("ab") and s.endswith("c") and len(s) == 7
        for s in (made.text(t, x) for t, x in zip(batch.targets, batch.tokens))
    )
    assert made.has_weights(request) is False


def test_which_samples_have_weights():
    partly, free = (Templates([("t", dna_pattern(DNA, 4, t))], 1, 3) for t in ("ANRC", "ANNC"))
    assert (
        generator("grouped", "dit").has_weights(partly) is True
        and generator("grouped", "dit").has_weights(free) is False
    )
    assert (
        generator("grouped", "dit", 1.0).has_weights(free) is True
        and generator("low_confidence", "dit").has_weights(partly) is None
    )
    assert (
        generator("ar", "mamba").has_weights(free) is True
        and generator("low_confidence", "dit").has_weights(free) is False
    )
    # a motif that overlaps a partial letter of the prompt at some lengths only
    lengths = {
        seed: [len(Free(DNA, 8, (5, 7), seed)[i].pattern.ids) for i in range(8)]
        for seed in range(9)
    }
    seed = next(seed for seed, found in lengths.items() if found[0] == 5 and max(found) > 5)
    assert (
        generator("grouped", "dit").has_weights(
            Free(DNA, 8, (5, 7), seed, "RNN", read_motifs("AANNN@-5"))
        )
        is True
    )
    gibbs = generator("gibbs", "dit")  # in three groups
    assert (
        gibbs.has_weights(partly) is None
        and next(iter(gibbs.batches(partly, 1, 4))).log_weight is None
    )
    gibbs.sampler = replace(gibbs.sampler, num_groups=4)
    assert (
        gibbs.has_weights(partly) is True
        and next(iter(gibbs.batches(partly, 1, 4))).log_weight is not None
    )
    gibbs.sampler = replace(gibbs.sampler, num_groups=None)
    many = (
        Free(DNA, 8, (60, 70), 0, "", read_motifs("AANNN@-5")),
        Free(DNA, 8, (60, 64), 0, "", read_motifs("AANRN@-5")),
    )
    assert (
        gibbs.has_weights(many[1]) is True
        and next(iter(gibbs.batches(many[1], 1, 1))).log_weight is not None
    )
    cold = generator("grouped", "dit")
    cold.sampler.temperature = 0.5
    assert cold.has_weights(partly) is None
    likeliest = generator("ancestral", "dit")
    likeliest.sampler = replace(likeliest.sampler, noise_removal="argmax")
    assert (
        likeliest.has_weights(partly) is None
        and generator("ancestral", "dit").has_weights(partly) is True
    )


def test_a_constraint_at_one_rare_length_is_found():
    # The motif's R is outside the prompt at 600 tokens alone; one of 600 samples has as many, and
    # 256 evenly spaced ones had not.
    def request(seed):
        return Free(DNA, 600, (301, 600), seed, "A" * 300, read_motifs("R@-300"))

    def longest(seed):
        return [i for i in range(600) if 301 + hash64(seed, "length", i) % 300 == 600]

    spaced = {int(i) for i in np.linspace(0, 599, 256)}
    seed = next(seed for seed in range(99) if longest(seed) and not spaced & set(longest(seed)))
    assert generator("grouped", "dit").has_weights(request(seed)) is True
    lengths = [len(target.pattern.ids) for target in request(seed).distinct()]
    assert len(lengths) == len(set(lengths)) and 600 in lengths
    none = next(seed for seed in range(99) if not longest(seed))
    assert generator("grouped", "dit").has_weights(request(none)) is False


def test_bounds_are_of_the_generated_part_given_the_rest():
    for name, backbone in (("grouped", "dit"), ("ar", "mamba")):
        made = generator(name, backbone)
        (batch,) = made.batches(
            Templates(
                [("t", dna_pattern(DNA, 3, "ANC")), ("u", dna_pattern(DNA, 5, "NGNNN"))], 1, 3
            ),
            1,
            2,
        )
        bounds = made.bounds(batch, [0, 1], 4, 1)
        x = torch.from_numpy(batch.tokens[0])[None]
        if name == "ar":
            expected = made.denoiser.next_log_probs(x).gather(-1, x[..., None])[0, 1:, 0].sum()
        else:
            xt = torch.tensor([[7, 3, 8]])
            expected = made.denoiser.log_probs(xt)[0, 1, x[0, 1]]
        assert bounds[0] == pytest.approx(expected.item(), abs=1e-5) and bounds[1] < 0


def test_effective_size_and_systematic_resampling():
    assert effective_size(np.zeros(5)) == pytest.approx(5) and effective_size(
        np.array([0.0, -800, -900])
    ) == pytest.approx(1)
    # Four copies, two copies and one of its own: 7^2 / (4^2 + 2^2 + 1).
    assert effective_size(np.zeros(7), "aababca") == pytest.approx(49 / 21)
    assert effective_size(np.log([0.5, 0.25, 0.25]), "xyy") == pytest.approx(2)
    weight = np.log([0.5, 0.25, 0.25])
    assert (
        systematic_resample(weight, 4, 0.5).tolist() == [0, 0, 1, 2]
        and systematic_resample(weight - 1e3, 8, 0.01).tolist() == [0] * 4 + [1] * 2 + [2] * 2
    )
    assert systematic_resample(np.array([-np.inf, 0.0]), 3, 0.9999).tolist() == [1, 1, 1]


def test_windows_around_an_interval():
    assert window_around(50, 60, 1000, 20) == (45, 65) and window_around(0, 4, 1000, 20) == (0, 20)
    assert window_around(995, 1000, 1000, 20) == (980, 1000) and window_around(3, 9, 12, 20) == (
        0,
        12,
    )
