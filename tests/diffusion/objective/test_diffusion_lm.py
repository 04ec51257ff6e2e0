"""The bound of Diffusion-LM against the exact likelihood of the same chain, by quadrature: two
letters, two positions, embeddings of one dimension, three steps, a network with random weights."""

import itertools
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.gaussian import GaussianProcess
from dnadiff.diffusion.noise import LogLinear, Polynomial, Sqrt
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.diffusion_lm import DiffusionLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ddim import DDIM
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT

BIT = Vocab(3, 2, 2, (2,))
GRID = torch.linspace(-7.5, 7.5, 101, dtype=torch.float64)
CELL = float(GRID[1] - GRID[0])
PAIRS = torch.cartesian_prod(GRID, GRID)[..., None]  # (K, 2, 1) vectors of two positions
STRINGS = torch.tensor(list(itertools.product([0, 1], repeat=2)))


class World:
    """A model, and what quadrature says of it."""

    def __init__(self, noise, num_steps=3):
        torch.manual_seed(4)
        self.process = GaussianProcess(BIT, noise, t_min=0.15)
        self.objective = DiffusionLM(self.process, width=1, num_steps=num_steps, weighting="nelbo")
        self.denoiser = self.objective.denoiser(DiT(BIT, 8, 1, 2, cond_dim=8, dropout=0.0)).double()
        for weight in self.denoiser.parameters():
            torch.nn.init.normal_(weight, std=0.5)
        self.denoiser.eval().requires_grad_(False)
        self.denoiser.codes[:2, 0] = torch.tensor([-1.0, 0.8])
        self.times = self.process.times(num_steps, GRID)

    def steps(self):
        """For each step: t, s, estimates of x0 at all grid points, and the Gaussian of z_s."""
        for s, t in itertools.pairwise(self.times):
            estimate = self.denoiser.denoise(PAIRS, t.expand(len(PAIRS)))
            yield t, s, estimate, Normal(*self.process.reverse(estimate, PAIRS, t, s))

    def log_p(self):
        """-log p of the four strings, exact."""
        density = Normal(0.0, 1.0).log_prob(PAIRS).sum((1, 2)).exp()
        for *_, step in reversed(list(self.steps())):
            first, second = (
                (Normal(step.loc[:, i], step.scale[:, i]).log_prob(GRID).exp() * CELL)
                for i in (0, 1)
            )
            density = torch.einsum("k,ka,kb->ab", density, first, second).flatten()
        letters = self.denoiser.round(GRID[:, None]).exp()[:, :2] * CELL
        shape = len(GRID), len(GRID)
        return torch.einsum("ab,aw,bv->wv", density.view(shape), letters, letters).flatten().log()

    def terms(self, string):
        """Rounding, divergences of all steps and the end, of the whole string."""
        x0 = self.denoiser.codes[string]  # (2, 1)

        def mean(values, t):
            alpha = self.process.noise.alpha(t)
            q = Normal(alpha.sqrt() * x0, (1 - alpha).sqrt()).log_prob(PAIRS).sum((1, 2)).exp()
            return float((q * CELL**2 * values).sum())

        rounding = (
            -self.denoiser.round(PAIRS)
            .gather(-1, string.expand(len(PAIRS), 2)[..., None])
            .sum((1, 2))
        )
        total = 0.0
        for t, s, _, step in self.steps():
            true = Normal(*self.process.reverse(x0, PAIRS, t, s))
            total += mean(kl_divergence(true, step).sum((1, 2)), t)
        alpha = self.process.noise.alpha(self.times[-1])
        last = kl_divergence(Normal(alpha.sqrt() * x0, (1 - alpha).sqrt()), Normal(0.0, 1.0))
        return mean(rounding, self.times[0]), total, float(last.sum())


@pytest.fixture(scope="module", params=[LogLinear(0.1), Sqrt(0.05)], ids=["linear", "sqrt"])
def world(request):
    return World(request.param)


def test_the_bound_is_above_the_exact_likelihood_of_every_string(world):
    exact = -world.log_p()
    assert abs(float((-exact).exp().sum()) - 1) < 1e-9
    terms = [world.terms(string) for string in STRINGS]
    assert all(sum(each) > own for each, own in zip(terms, exact))


def test_with_the_posterior_mean_it_is_close_and_half_of_the_divergence_is_no_bound():
    world = World(Sqrt(0.05))
    clean, prior = world.denoiser.codes[STRINGS], torch.tensor([0.1, 0.2, 0.3, 0.4]).double()

    def posterior_mean(z, t, cond=None, valid=None, estimate=None):
        alpha = world.process.noise.alpha(t)[:, None, None, None]
        q = Normal(alpha.sqrt() * clean, (1 - alpha).sqrt()).log_prob(z[:, None]).sum((2, 3))
        return torch.einsum("ks,sld->kld", (prior.log() + q).softmax(-1), clean)

    world.denoiser.denoise = posterior_mean
    for string, exact in zip(STRINGS, -world.log_p()):
        rounding, divergence, end = world.terms(string)
        assert 0 < rounding + divergence + end - exact < 0.7
        assert rounding + divergence / 2 + end < exact


def test_draws_have_the_mean_of_the_bound(world):
    rows = 20_000
    for string in STRINGS[1:3]:
        batch = TrainingBatch(string.expand(rows, 2), torch.ones(rows, 2), Draws.for_batch(3, rows))
        u = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
        nats = world.objective.token_bound(world.denoiser, batch, u).sum(-1)
        assert abs(float(nats.mean()) - sum(world.terms(string))) < 4 * float(nats.std()) / 141


def test_the_cost_of_a_step_is_the_divergence_of_its_gaussians(world):
    x0 = world.denoiser.codes[STRINGS[1]]
    for t, s, estimate, step in world.steps():
        true = Normal(*world.process.reverse(x0, PAIRS, t, s))
        found = world.process.step_cost(estimate, x0, t, s)
        torch.testing.assert_close(found, kl_divergence(true, step)[..., 0])


def test_a_schedule_that_leaves_no_signal_has_a_finite_bound():
    # log SNR at t = 1 is -inf there
    world = World(Sqrt(0.0), num_steps=4)
    rows, string = 20_000, STRINGS[1]
    batch = TrainingBatch(string.expand(rows, 2), torch.ones(rows, 2), Draws.for_batch(3, rows))
    u = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    nats = world.objective.token_bound(world.denoiser, batch, u).sum(-1)
    assert nats.isfinite().all()
    assert abs(float(nats.mean()) - sum(world.terms(string))) < 4 * float(nats.std()) / 141
    exact = -world.log_p()
    assert abs(float((-exact).exp().sum()) - 1) < 1e-9 and sum(world.terms(string)) > exact[1]


def test_the_network_sees_given_tokens_alike_in_training_and_sampling(world):
    # as targets of data=pairs see their sources: without noise
    seen, original = [], world.denoiser.denoise

    def watched(z, *args):
        seen.append(z[:, 0])
        return original(z, *args)

    world.denoiser.process_type = GaussianProcess
    world.denoiser.denoise = watched
    x0, rows = torch.tensor([[1, 0]]).expand(50, 2), Draws.for_batch(0, 50)
    weight = torch.tensor([0.0, 1.0]).expand(50, 2)
    world.objective.compute(world.denoiser, TrainingBatch(x0, weight, rows))
    template = torch.where(weight > 0, BIT.mask_id, x0)
    sampler = DDIM(num_steps=3, clamp=False)
    for start in (None, x0):
        found = sampler.sample(
            world.denoiser, world.process, template, rows, start=start, start_t=0.9
        ).tokens
        assert torch.equal(found[:, 0], x0[:, 0])
    del world.denoiser.denoise
    assert len(seen) == 7 and all((z == world.denoiser.codes[1]).all() for z in seen)


def test_samples_given_a_source_have_the_distribution_that_the_bound_is_of(world):
    source = torch.tensor(1)
    clean = world.denoiser.codes[source].view(1, 1).expand(len(GRID), 1)
    density = Normal(0.0, 1.0).log_prob(GRID).exp()
    for s, t in reversed(list(itertools.pairwise(world.times))):
        z = torch.stack([clean, GRID[:, None]], 1)  # (K, 2, 1)
        estimate = world.denoiser.denoise(z, t.expand(len(z)))
        mean, std = world.process.reverse(estimate, z, t, s)
        density = (density * CELL) @ Normal(mean[:, 1], std).log_prob(GRID).exp()
    expected = (density * CELL) @ world.denoiser.round(GRID[:, None]).exp()[:, :2]
    template = torch.tensor([[1, BIT.mask_id]]).expand(40_000, 2)
    world.denoiser.process_type = GaussianProcess
    sampler, draws = DDIM(num_steps=3, clamp=False), Draws.for_batch(2, 40_000)
    tokens = sampler.sample(world.denoiser, world.process, template, draws).tokens
    found = torch.bincount(tokens[:, 1], minlength=2) / 40_000
    assert (found - expected).abs().max() < 0.01


def test_samples_have_the_distribution_of_the_bound(world):
    template, draws = torch.full((40_000, 2), BIT.mask_id), Draws.for_batch(1, 40_000)
    world.denoiser.process_type = GaussianProcess
    sampler = DDIM(num_steps=3, clamp=False)
    tokens = sampler.sample(world.denoiser, world.process, template, draws).tokens
    found = torch.bincount(2 * tokens[:, 0] + tokens[:, 1], minlength=4) / 40_000
    assert (found - world.log_p().exp()).abs().sum() / 2 < 0.01


@pytest.mark.parametrize("weighting", ["simple", "nelbo"])
@pytest.mark.parametrize("kind", [DiT, Caduceus])
def test_embeddings_and_network_are_trained_and_padding_is_not_read(kind, weighting):
    torch.manual_seed(0)
    vocab = Vocab(9, 8, 7, (7, 8))
    objective = DiffusionLM(GaussianProcess(vocab, Sqrt()), 4, 50, weighting)
    options = {"dropout": 0.0, "n_heads": 2} if kind is DiT else {"time_conditioning": True}
    denoiser = objective.denoiser(kind(vocab, d_model=16, n_layers=1, **options))
    for weight in denoiser.backbone.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    x0, weight = torch.arange(6).repeat(4, 1), torch.ones(4, 6)
    x0[:, 4:], weight[:, 4:] = 7, 0
    draws = Draws.for_batch(0, 4)
    found = objective(denoiser, x0, weight, draws, valid=weight > 0)
    found.loss.backward()
    for name in ("codes", "bias", "input.weight", "output.weight"):
        assert denoiser.get_parameter(name).grad.abs().sum() > 0
    assert found.loss.isfinite() and math.isfinite(found.nll)
    bound = objective.evaluation()(denoiser, x0, weight, draws, valid=weight > 0).nll
    with torch.no_grad():
        denoiser.codes[7] += 100.0
    again = objective.evaluation()(denoiser, x0, weight, draws, valid=weight > 0).nll
    torch.testing.assert_close(again, bound)


def test_a_schedule_without_noise_at_the_rounding_is_refused():
    with pytest.raises(ValueError, match=r"Polynomial adds nothing at process\.t_min 0\.0001"):
        DiffusionLM(GaussianProcess(BIT, Polynomial(8)))
    assert DiffusionLM(GaussianProcess(BIT, Polynomial(8), t_min=0.1))


def test_it_names_the_process_and_the_input_that_it_needs():
    with pytest.raises(ValueError, match=r"DiffusionLM needs Gaussian.*set process=gaussian"):
        DiffusionLM(AbsorbingProcess(BIT, LogLinear()))
    objective = DiffusionLM(GaussianProcess(BIT, Sqrt()))
    with pytest.raises(ValueError, match="set time_conditioning=true"):
        objective.denoiser(DiT(BIT, 8, 1, 2), time_conditioning=False)
    with pytest.raises(ValueError, match="set time_conditioning=true"):
        objective.denoiser(Caduceus(BIT, d_model=8, n_layers=1))
