"""ReMDM and the forward-backward corrector."""

import runpy
from pathlib import Path

import pytest
import torch

from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess, unmask_probability
from dnadiff.diffusion.sampler.forward_backward import ForwardBackward
from dnadiff.diffusion.sampler.remasking import Cap, Confident, Forward, Loop, Rescale
from dnadiff.diffusion.sampler.remdm import ReMDM
from dnadiff.diffusion.vocab import Vocab

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "posteriors.py"))
posterior = TABLES["posterior"]

BIT = Vocab(3, 2, 2, (2,))
ALL = [Cap(0.3), Rescale(0.5), Confident(), Loop(0.3)]


def number(x):
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(
    ("remasking", "expected"),
    [
        (Cap(0.008), 0.008),
        (Cap(0.9), 0.6),
        (Rescale(0.1), 0.06),
        (Confident(), 0.6),
        (Forward(), 0.2),
    ],
)
def test_published_strengths(remasking, expected):
    # alpha_t = 0.5, alpha_s = 0.6 would allow 0.8; 0.6 is given as the largest to see the clamp
    assert remasking.probability(number(0.5), number(0.6), number(0.6)).item() == pytest.approx(
        expected
    )


def test_forward_backward_unmasks_twice_as_often():
    remask = Forward().probability(number(0.5), number(0.6), number(0.8))
    assert unmask_probability(number(0.5), number(0.6), remask).item() == pytest.approx(
        2 * 0.1 / 0.5
    )


def test_improbable_tokens_are_remasked_first():
    confidence = torch.tensor([[0.9, 0.1, torch.inf], [torch.inf, torch.inf, torch.inf]])
    chance = Confident().per_position(torch.tensor(0.5), confidence)
    assert (
        chance[0].tolist() == pytest.approx([0.5 * 0.31003, 0.5 * 0.68997, 0], abs=1e-5)
        and chance[1].sum() == 0
    )


def test_the_loop_holds_its_level():
    loop = Loop(0.02, t_on=0.55, t_off=0.05, alpha_on=0.9)
    alpha = loop.alpha(LogLinear(), number([1.0, 0.775, 0.55, 0.3, 0.05, 0.025, 0.0]))
    assert alpha.tolist() == pytest.approx([0, 0.45, 0.9, 0.9, 0.9, 0.95, 1.0])
    assert (
        loop.probability(alpha[2], alpha[3], number(0.1)) == 0.02
        and loop.probability(alpha[1], alpha[2], number(0.1)) == 0
    )


def test_steps_are_those_of_the_posterior():
    process, t, s = AbsorbingProcess(BIT, LogLinear(0.0)), number([0.5]), number([0.5 - 1 / 1024])
    rows = posterior(process, number([[[0.5, 0.5, 0.0]]]).log(), torch.tensor([[2]]), t, s, 0.008)
    # facts 17
    chance = unmask_probability(process.noise.alpha(t), process.noise.alpha(s), 0.008).item()
    assert 1 - rows[0, 0, 2].item() == pytest.approx(chance) and chance == pytest.approx(
        0.00995313, abs=1e-8
    )


@pytest.mark.parametrize("remasking", ALL, ids=lambda r: type(r).__name__)
def test_every_token_is_drawn_and_some_again(remasking, world):
    model = world.table()
    result = world.draw(ReMDM(remasking, num_steps=40), model, 100)
    assert (result.tokens < 3).all() and result.rows == model.rows and result.nfe <= 40
    assert model.rows > 300  # three positions a sequence could be unmasked in at most 300


@pytest.mark.parametrize(
    "remasking", [Cap(0.3), Rescale(0.5), Loop(0.3)], ids=lambda r: type(r).__name__
)
def test_remasking_independent_of_tokens_keeps_a_product_distribution(remasking, world):
    joint, batch = (number([0.7, 0.3])[:, None] * number([0.2, 0.8])).flatten(), 20_000
    found = world.frequencies(
        world.draw(ReMDM(remasking, num_steps=10), world.table(None, joint, BIT), batch).tokens, 2
    )
    assert ((found - joint).abs() < 4.5 * (joint * (1 - joint) / batch).sqrt()).all()
    assert (
        not ReMDM.exact and ForwardBackward.exact
    )  # a strength of its own each step leaves an error however short steps are


class Everything(Cap):
    """Remasks every visible token, and records which tokens have a confidence."""

    def __init__(self):
        self.seen = []

    def probability(self, alpha_t, alpha_s, largest):
        return torch.ones_like(largest)

    def per_position(self, chance, confidence):
        self.seen.append(confidence.isfinite())
        return chance


def test_a_remasked_token_has_no_confidence(world):
    class Recorder(type(world.table())):
        requested = ()

        def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
            unmasks = torch.zeros(len(xt) if cond is None else 200, 3, dtype=torch.bool)
            unmasks[cond[:, 0].long()] = positions
            self.requested = (*self.requested, unmasks)
            return super().log_probs(xt, t, cond, positions, valid)

    every, model = Everything(), Recorder(world.joint, world.table().vocab)
    result = world.draw(ReMDM(every, num_steps=6), model, 200, cond=torch.arange(200.0)[:, None])
    assert (
        result.tokens < 3
    ).all()  # nothing is taken back at the last step, however strong the remasking
    assert len(every.seen) == len(model.requested) == 6 and not every.seen[0].any()
    for unmasked, confident in zip(
        model.requested, every.seen[1:]
    ):  # what unmasked at the step before, and nothing older
        assert torch.equal(confident, unmasked) and 0 < confident.double().mean() <= 1


@pytest.mark.parametrize("name", ["ancestral", "analytic", "remdm", "forward_backward"])
def test_the_last_step_is_explicit(name, world):
    joint = number([0.6, 0.4])
    kwargs = {"num_steps": 1}
    fraction = [
        (
            world.draw(
                world.make(name, noise_removal=how, **kwargs), world.table(None, joint, BIT), 2000
            ).tokens[:, 0]
            == 0
        )
        .double()
        .mean()
        for how in ("sample", "argmax")
    ]
    assert fraction[0].item() == pytest.approx(0.6, abs=0.05) and fraction[1] == 1
    left = world.draw(
        world.make(name, noise_removal="none", num_steps=4), world.table(None, joint, BIT), 2000
    ).tokens[:, 0]
    assert (left == 2).double().mean().item() == pytest.approx(0.25, abs=0.05)
    with pytest.raises(
        ValueError, match="noise_removal 'no' is not known; choose one of sample, argmax, none"
    ):
        world.make(name, noise_removal="no")


@pytest.mark.parametrize(
    "call",
    [
        lambda: Cap(1.5),
        lambda: Rescale(-0.1),
        lambda: Loop(t_on=0.1, t_off=0.5),
        lambda: Loop(alpha_on=1.0),
        lambda: Cap("abc"),
        lambda: Loop(t_on=float("nan")),
    ],
)
def test_impossible_settings_are_refused(call):
    with pytest.raises(ValueError, match="must"):
        call()
