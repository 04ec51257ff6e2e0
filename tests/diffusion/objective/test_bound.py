import itertools
import math

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.hybrid import HybridProcess
from dnadiff.diffusion.likelihood.estimates import OWN
from dnadiff.diffusion.likelihood.estimators import estimate
from dnadiff.diffusion.noise import Geometric, LogLinear, LogMask
from dnadiff.diffusion.objective.base import Objective, TrainingBatch
from dnadiff.diffusion.objective.bound import Bound
from dnadiff.diffusion.objective.masking import Bernoulli, DiscreteTime
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess, UniformProcess
from dnadiff.diffusion.sampler.reverse import Reverse
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import BidirectionalBackbone
from dnadiff.networks.backbone.dit import DiT

DNA = DNATokenizer().vocab


def network():
    torch.manual_seed(0)
    made = DiT(DNA, 16, 1, 2, dropout=0.0)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return made


def loss_of(objective, denoiser, rows=8):
    x0 = torch.arange(7, 11).repeat(rows, 3)
    draws = Draws.for_batch(1, rows)
    return objective(denoiser, x0, torch.ones(x0.shape), draws)


def test_for_masks_it_is_the_loss_of_mdlm():
    process = AbsorbingProcess(DNA, LogLinear(0.0))
    denoiser = Denoiser(network())
    mdlm = loss_of(MDLM(process, Bernoulli(t_min=0.0)), denoiser)
    torch.testing.assert_close(loss_of(Bound(process), denoiser).loss, mdlm.loss)


def test_uniform_noise_is_trained_and_a_uniform_guess_costs_log_4():
    process = UniformProcess(DNA, LogLinear())
    objective = Bound(process)
    untrained = objective.denoiser(DiT(DNA, 16, 1, 2))  # its head is zero
    found = loss_of(objective, untrained, 400)
    assert abs(float(found.nll) - math.log(4)) < 0.3  # rare large terms at small times
    found.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in untrained.parameters())


def test_uniform_noise_is_sampled_without_masks_and_keeps_given_tokens():
    process = UniformProcess(DNA, LogLinear())
    denoiser = Bound(process).denoiser(network(), time_conditioning=True).eval()
    denoiser.process_type = type(process)
    x = process.prior(4, 6)
    assert DNA.is_emitted()[x].all()
    template = torch.full((4, 6), DNA.mask_id)
    template[:, 2] = 9
    found = Reverse(num_steps=5).sample(denoiser, process, template, Draws.for_batch(0, 4))
    assert DNA.is_emitted()[found.tokens].all() and (found.tokens[:, 2] == 9).all()
    assert found.nfe == 5


def test_likelihoods_of_another_process_are_draws_of_its_own_bound():
    process = UniformProcess(DNA, LogLinear())
    objective = Bound(process)
    denoiser = objective.denoiser(network(), time_conditioning=True).eval()
    denoiser.process_type, denoiser.bound = type(process), objective.token_bound
    x0 = torch.arange(7, 11).repeat(6, 2)
    counted = torch.ones(x0.shape, dtype=torch.bool)
    counted[:, 3] = False
    found = estimate(denoiser, process, [(x0, {"all": counted})], num_draws=256)
    assert found.protocol == OWN and (found.tokens["all"] == 7).all()
    # the same in one batch of many rows, each at its own time
    rows, draws = x0.repeat(256, 1), Draws.for_batch(5, 6 * 256)
    with torch.no_grad():
        once = objective(denoiser, rows, counted.repeat(256, 1).float(), draws)
    assert abs(float(once.nll) - found.interval().value) < 5 * (found.se_mc() + 0.005)


def test_an_objective_without_likelihood_says_why():
    class Unbounded(Bound):
        no_likelihood = "it is a chain that has none"
        token_bound = Objective.token_bound

    process = UniformProcess(DNA, LogLinear())
    denoiser = Unbounded(process).denoiser(network()).eval()
    denoiser.process_type, denoiser.bound = type(process), Unbounded(process).token_bound
    x0 = torch.full((1, 4), 8)
    with pytest.raises(ValueError, match=r"has no likelihood: it is a chain.*dnadiff\.judge\)"):
        estimate(denoiser, process, [(x0, {"all": x0 == 8})])
    of_text = Unbounded(UniformProcess(SMALL, LogLinear())).without_likelihood()
    assert "dnadiff.judge_text)" in str(of_text)


SMALL = Vocab(3, 2, 2, (2,))  # two letters and a mask
STATES = torch.tensor(list(itertools.product(range(3), repeat=2)))
STRINGS = torch.tensor(list(itertools.product(range(2), repeat=2)))


class Table(BidirectionalBackbone):
    """Any logits for any two tokens, and a slope of them in the noise level."""

    def __init__(self):
        super().__init__(SMALL, 3, takes_sigma=True)
        generator = torch.Generator().manual_seed(7)
        logits = torch.randn(2, 9, 2, 3, dtype=torch.float64, generator=generator)
        self.logits = torch.nn.Parameter(logits)

    def features(self, ids, sigma=None, cond=None, valid=None):
        level = torch.zeros(len(ids)) if sigma is None else torch.exp(-sigma)
        states = ids @ torch.tensor([3, 1])
        return self.logits[0, states] + level.double()[:, None, None] * self.logits[1, states]

    def head(self, features):
        return features


def enumerated(kind, *args):
    """A process of which each of the 36 rows is one of the four strings in one of the states."""

    class Enumerated(kind):
        def corrupt(self, x0, t, maskable, draws):
            return STATES.repeat(4, 1)

    return Enumerated(SMALL, *args)


def expected(objective, denoiser, nodes):
    """The bound of the four strings: the mean over u at `nodes` (u, weight) and over all states."""
    process, total = objective.process, torch.zeros(4, dtype=torch.float64)
    x0 = STRINGS.repeat_interleave(9, 0)
    batch = TrainingBatch(x0, torch.ones(x0.shape), Draws.for_batch(0, 36))
    for u, weight in nodes:
        rows = torch.full((36,), u, dtype=torch.float64)
        nats = objective.token_bound(denoiser, batch, rows).detach()
        at = process.marginal(time_of(objective, rows)[:, None].repeat(1, 2)).given(x0)
        chance = at.gather(-1, STATES.repeat(4, 1)[..., None])[..., 0].prod(-1)
        per_row = torch.where(chance > 0, chance * nats.sum(-1), 0.0)
        total += weight * per_row.view(4, 9).sum(-1)
    return total


def time_of(objective, u):
    if objective.num_steps is None:
        return u**objective.process.time_power
    return ((u * objective.num_steps).floor() + 1) / objective.num_steps


def chain(process, denoiser, steps):
    """The distribution of the four strings after T steps of `Process.reverse`."""
    grid = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    start = process.pi(grid[:1])[0]
    probability = torch.outer(start, start).flatten()
    for t, s in itertools.pairwise(grid):
        with torch.no_grad():
            log_probs = denoiser.log_probs(STATES, t.float().expand(9)).view(18, 3)
        rows = process.reverse(log_probs, STATES.flatten(), t.repeat(18), s.repeat(18)).exp()
        first, second = rows.nan_to_num(0.0).view(9, 2, 3).unbind(1)
        probability = probability @ (first[:, :, None] * second[:, None, :]).reshape(9, 9)
    return probability.view(3, 3)[:2, :2].flatten()


KINDS = {
    "uniform": (UniformProcess, LogLinear()),
    "hybrid": (HybridProcess, LogLinear()),
    "noise at both ends": (UniformProcess, Geometric(0.2, 2.0)),
}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_in_steps_its_mean_is_above_the_exact_likelihood_of_the_sampler(kind, steps):
    process = enumerated(*KINDS[kind])
    objective = Bound(process, num_steps=steps)
    denoiser = objective.denoiser(Table(), time_conditioning=True)
    nodes = [((i + 0.5) / steps, 1 / steps) for i in range(steps)]
    probability = chain(process, denoiser, steps)
    assert float(probability.sum()) == pytest.approx(1, abs=2e-3)  # the rest are masks
    gap = expected(objective, denoiser, nodes) + probability.log()
    assert gap.min() > 0


@pytest.mark.parametrize("kind", ["uniform", "hybrid"])
def test_in_continuous_time_its_mean_is_the_limit_of_many_steps(kind):
    process = enumerated(*KINDS[kind])
    found = {}
    for steps in (None, 100, 200):
        objective = Bound(process, num_steps=steps)
        denoiser = objective.denoiser(Table(), time_conditioning=True)
        if steps is None:
            points, weights = np.polynomial.legendre.leggauss(80)
            nodes = zip((points + 1) / 2, weights / 2, strict=True)
        else:
            nodes = [((i + 0.5) / steps, 1 / steps) for i in range(steps)]
        found[steps] = expected(objective, denoiser, nodes)
    limit = 2 * found[200] - found[100]
    torch.testing.assert_close(found[None], limit, rtol=0, atol=3e-3)
    assert (found[None] + chain(process, denoiser, 400).log()).min() > -1e-3


def test_noise_at_the_start_is_part_of_the_bound():
    objective = Bound(enumerated(UniformProcess, Geometric(0.2, 20.0)))
    denoiser = objective.denoiser(Table(), time_conditioning=True)
    nodes = [(0.5, 1.0)]
    whole = expected(objective, denoiser, nodes)
    objective.process.reconstruction = lambda log_probs, *_: torch.zeros_like(log_probs[:, 0])
    assert (whole > expected(objective, denoiser, nodes) + 0.1).all()


def test_for_masks_in_steps_it_is_the_loss_of_mdlm_in_steps():
    process = AbsorbingProcess(DNA, LogLinear())
    denoiser = Denoiser(network())
    mdlm = loss_of(MDLM(process, DiscreteTime(7)), denoiser)
    torch.testing.assert_close(loss_of(Bound(process, num_steps=7), denoiser).loss, mdlm.loss)


def test_dynamic_weights_are_those_of_gidd():
    process, t = HybridProcess(SMALL, LogLinear(0.0), 0.2), 0.3
    objective = Bound(process, weighting="dynamic")
    times, mu = torch.full((1,), t, dtype=torch.float64), torch.tensor([[0.6, 0.4, 0.0]]).double()
    c = 2 * 0.2 / 0.8 * math.sqrt(t * (1 - t))
    for xt, weight in ((2, 2.0), (1, 1.0), (0, (c / 2) / (1 - t + c / 2))):
        ids = (torch.tensor([0]), torch.tensor([xt]), times)
        found, divergence = objective._weighted(mu.log(), *ids), process.terms(mu.log(), *ids)[1]
        torch.testing.assert_close(found[0], process.integrand(mu.log(), *ids))
        torch.testing.assert_close(found[1], weight * divergence)


def test_dynamic_weights_train_and_validation_is_the_bound():
    process = HybridProcess(DNA, LogLinear())
    dynamic, plain = Bound(process, weighting="dynamic"), Bound(process)
    denoiser = plain.denoiser(network(), time_conditioning=True)
    found = loss_of(dynamic, denoiser, 4)
    assert 0 < float(found.loss.detach()) < float(found.nll)
    found.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in denoiser.parameters())
    valid, bound = (loss_of(each, denoiser) for each in (dynamic.evaluation(), plain))
    assert valid.loss == bound.loss and valid.nll == bound.nll
    assert not dynamic.bound and denoiser.time_conditioning


def test_noise_at_the_start_is_part_of_nll_with_dynamic_weights():
    process = HybridProcess(DNA, LogMask(p_min=0.2, p_max=0.999))
    dynamic, plain = Bound(process, weighting="dynamic"), Bound(process)
    denoiser = plain.denoiser(network(), time_conditioning=True)
    whole = [loss_of(each, denoiser) for each in (dynamic, plain)]
    process.reconstruction = lambda log_probs, *_: torch.zeros_like(log_probs[:, 0])
    rest = [loss_of(each, denoiser) for each in (dynamic, plain)]
    share, of_bound = (float(a.nll - b.nll) for a, b in zip(whole, rest))
    assert share == pytest.approx(of_bound, abs=1e-5) and share > 0.1
    assert whole[0].loss == rest[0].loss


@pytest.mark.parametrize(
    ("process", "settings", "message"),
    [
        (AbsorbingProcess, {}, "dynamic does not fit an absorbing process"),
        (UniformProcess, {"num_steps": 5}, "dynamic does not fit discrete time.*weighting=nelbo"),
        (UniformProcess, {"weighting": "clip"}, "weighting 'clip' is not known.*dynamic"),
        (UniformProcess, {"num_steps": 0}, "num_steps 0 must be an integer of at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(process, settings, message):
    with pytest.raises(ValueError, match=message):
        Bound(process(DNA, LogLinear()), **{"weighting": "dynamic", **settings})
