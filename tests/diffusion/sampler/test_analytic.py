"""SEDD's Tweedie step."""

import runpy
from pathlib import Path

import pytest
import torch

from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess, Score, log_expm1
from dnadiff.diffusion.sampler.analytic import Analytic
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "posteriors.py"))
analytic_posterior, posterior = TABLES["analytic_posterior"], TABLES["posterior"]

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
NOISE = LogLinear(1e-3)


def ratios(time_conditioning=False):
    torch.manual_seed(0)
    network = DiT(DNA, 16, 1, 2, 8).eval()
    torch.nn.init.normal_(
        network.output_layer.linear.weight, std=0.1
    )  # ratios that add up to about 1
    return Denoiser(network, Score(DNA), NOISE, time_conditioning)


def run(sampler, denoiser, batch=64, length=10):
    process = AbsorbingProcess(DNA, NOISE)
    return sampler.sample(
        denoiser, process, process.prior(batch, length), Draws.for_batch(0, batch)
    )


@pytest.mark.parametrize(
    ("name", "vocab"), [("dna", Vocab(16, 3, 4, (3,))), ("text", Vocab(33, 32, 32, (32,)))]
)
def test_the_step_equals_the_published_one(parity, name, vocab):
    file = parity(f"mdlm_losses_{name}")
    t = file["t_sampler"].double()[:, None]
    ours = analytic_posterior(
        file["subs_score"].double().log(), file["xt"], NOISE.sigma(t), NOISE.sigma(t - 0.1), vocab
    )
    torch.testing.assert_close(ours, file["analytic_probs_dt0.1"].double(), rtol=0, atol=1e-6)


def test_ratios_of_probabilities_take_ancestral_steps():
    process, t, s = (
        AbsorbingProcess(DNA, NOISE),
        torch.tensor([0.6], dtype=torch.float64),
        torch.tensor([0.4], dtype=torch.float64),
    )
    log_probs = torch.full((1, 1, 12), -torch.inf, dtype=torch.float64)
    log_probs[..., 7:11] = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    log_score = log_probs - torch.expm1(NOISE.sigma(t)).log()
    ours = analytic_posterior(log_score, torch.tensor([[3]]), NOISE.sigma(t), NOISE.sigma(s), DNA)
    torch.testing.assert_close(ours, posterior(process, log_probs, torch.tensor([[3]]), t, s))


def test_ratios_too_large_are_scaled_to_one():
    rows = analytic_posterior(
        torch.full((1, 1, 12), 3.0, dtype=torch.float64),
        torch.tensor([[3]]),
        NOISE.sigma(torch.tensor(0.9)),
        torch.tensor(0.0),
        DNA,
    )
    assert rows.sum().item() == pytest.approx(1) and rows[0, 0, 3] == 0


def test_probabilities_are_sampled_as_by_ancestral(world):
    for name in ("analytic", "ancestral"):
        assert world.draw(world.make(name, num_steps=9), world.table(), 50).rows < 200
    one, two = (
        world.draw(world.make(name, num_steps=9), world.table(), 50).tokens
        for name in ("analytic", "ancestral")
    )
    assert torch.equal(one, two)


def test_an_unchanged_sequence_is_not_evaluated_again():
    kept, conditioned = ratios(), ratios()
    conditioned.time_conditioning = (
        True  # asks at every step; this network does not read the time all the same
    )
    conditioned.read_features = lambda query: kept.read_features(query)
    few, many = run(Analytic(40), kept), run(Analytic(40), conditioned)
    assert torch.equal(few.tokens, many.tokens) and few.rows < 0.4 * many.rows
    assert torch.isin(few.tokens, torch.tensor(DNA.emitted)).all()


@pytest.mark.parametrize("how", ["sample", "argmax", "none"])
def test_a_network_conditioned_on_time(how):
    result = run(Analytic(6, noise_removal=how), ratios(True))
    assert result.nfe <= 6 and (how == "none") == bool((result.tokens == 3).any())


@pytest.mark.parametrize("conditioned", [False, True])
def test_steps_by_ratios_converge_to_the_distribution(conditioned, world):
    class Ratios(type(world.table())):
        """The toy distribution as ratios that the sampler must take for unnormalized ones."""

        normalized, time_conditioning = False, conditioned

        def log_score(self, xt, t, cond=None, positions=None, valid=None):
            factor = log_expm1(NOISE.sigma(t.double()))[:, None].expand(xt.shape)[positions]
            return self.log_probs(xt, t, cond, positions, valid) - factor[:, None]

    batch, vocab = 20_000, world.table().vocab
    floor = 0.5 * (2 / torch.pi * world.joint * (1 - world.joint) / batch).sqrt().sum().item()
    far, near = (
        0.5
        * (
            world.frequencies(world.draw(Analytic(n), Ratios(world.joint, vocab), batch).tokens, 3)
            - world.joint
        )
        .abs()
        .sum()
        .item()
        for n in (1, 64)
    )
    assert far > 8 * floor and near < 2 * floor
