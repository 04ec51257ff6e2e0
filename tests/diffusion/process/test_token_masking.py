"""Masks at a rate of each token, on three letters and two positions: everything is enumerated."""

import itertools
import math

import numpy as np
import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import estimate
from dnadiff.diffusion.noise import LogLinear, LogMask, Polynomial
from dnadiff.diffusion.objective.bound import Bound
from dnadiff.diffusion.objective.genmd4 import GenMD4
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.diffusion.token_masking import Spindle, TokenMasking, TokenRates
from dnadiff.diffusion.vocab import Vocab

VOCAB, MASK = Vocab(4, 3, 3, (3,)), 3
STRINGS = list(itertools.product(range(3), repeat=2))
STATES = list(itertools.product(range(4), repeat=2))
XT = torch.tensor(STATES)
GENERATOR = torch.Generator().manual_seed(5)
DATA = torch.rand(9, generator=GENERATOR, dtype=torch.float64) ** 2 + 0.01
DATA = DATA / DATA.sum()
NETWORK = torch.log_softmax(torch.randn(16, 2, 3, generator=GENERATOR, dtype=torch.float64), -1)


def spindle(noise=None, counts=(90, 9, 1)):
    process = Spindle(VOCAB, noise or LogLinear(0.0))
    process.observe(lambda: torch.tensor([*counts, 7]))
    return process


def rates(noise=None, exponents=(0.6, 1.0, 2.5)):
    process = TokenRates(VOCAB, noise or LogLinear(0.0))
    with torch.no_grad():
        process.raw[:3] = torch.tensor(exponents).expm1().log()
    return process


each = pytest.mark.parametrize("make", [spindle, rates])


class Table(MaskedDenoiser):
    """Any predictions for each state, the same at all times."""

    def __init__(self):
        super().__init__(VOCAB)
        self.rows = torch.nn.functional.pad(NETWORK, (0, 1), value=-torch.inf)

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        return self.rows[4 * xt[:, 0] + xt[:, 1]][positions]


def table(process, t):
    return Table().rows


def posterior(process, t):
    """Log p(x0 | xt) of each position, from the joint distribution of x0 and xt."""
    q = letters(process, t)
    found = torch.full((16, 2, 4), -torch.inf, dtype=torch.float64)
    for row, state in enumerate(STATES):
        weight = torch.tensor([d * q[x][state[0]] * q[y][state[1]] for d, (x, y) in pairs()])
        for position, letter in itertools.product(range(2), range(3)):
            mass = sum(w for w, x in zip(weight, STRINGS) if x[position] == letter)
            found[row, position, letter] = (mass / weight.sum()).log()
    return found


def pairs():
    return zip(DATA, STRINGS)


def letters(process, t):
    """q_t of a letter, (3, 4)."""
    time = torch.tensor([t], dtype=torch.float64)
    hit = process.mask_probability(time, torch.arange(3)[None])[0].detach()
    return torch.cat([torch.diag(1 - hit), hit[:, None]], 1)


def bound(process, predict, order=40, integrand=None):
    """The bound of each string by quadrature over time and enumeration of states: (9,)."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    total = torch.zeros(9, dtype=torch.float64)
    for node, weight in zip((nodes + 1) / 2, weights / 2):
        t, speed = node**3, 3 * node**2  # rates below 1 are singular at t = 0
        q, rows = letters(process, t), predict(process, t).reshape(32, 4)
        times = torch.full((32,), t, dtype=torch.float64)
        for number, x in enumerate(STRINGS):
            x0 = torch.tensor(x).expand(16, 2).flatten()
            nats = (integrand or process.integrand)(rows, x0, XT.flatten(), times).view(16, 2)
            probability = q[x[0]][XT[:, 0]] * q[x[1]][XT[:, 1]]
            used = torch.where(probability > 0, probability * nats.sum(-1), 0.0)
            total[number] += weight * speed * used.sum().detach()
    return total


def drawn(process, steps, predict=table):
    """The distribution of the strings after `steps` reverse steps: (9,)."""
    probability = torch.zeros(16, dtype=torch.float64)
    probability[-1] = 1
    grid = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    for t, s in itertools.pairwise(grid):
        rows = predict(process, float(t)).nan_to_num(nan=-torch.inf).reshape(32, 4)
        moved = process.reverse(rows, XT.flatten(), t.expand(32), s.expand(32)).detach().exp()
        first, second = moved.view(16, 2, 4).unbind(1)
        step = (first[:, :, None] * second[:, None, :]).reshape(16, 16)
        probability = torch.where(probability[:, None] > 0, probability[:, None] * step, 0).sum(0)
    return probability.view(4, 4)[:3, :3].flatten()


def exact(process, steps=300):
    """-log p of the reverse process, (9,): its rates in the time -log m, which are the elasticity
    times the predictions, integrated without `reverse`."""
    mu, ids = NETWORK.exp(), {state: row for row, state in enumerate(STATES)}
    generator = torch.zeros(3, 16, 16, dtype=torch.float64)
    for state, position, letter in itertools.product(STATES, range(2), range(3)):
        if state[position] == MASK:
            after = tuple(letter if i == position else old for i, old in enumerate(state))
            rate = mu[ids[state], position, letter]
            generator[letter, ids[state], ids[after]] += rate
            generator[letter, ids[state], ids[state]] -= rate

    def slope(tau, p):
        m = torch.tensor([math.exp(-tau)], dtype=torch.float64)
        relative = process.elasticity(m, process.values.double()[:3]).detach()
        return p @ torch.einsum("v,vij->ij", relative, generator)

    p, h = torch.zeros(16, dtype=torch.float64), 30.0 / steps
    p[-1] = 1
    for k in range(steps):  # Runge and Kutta
        one = slope(k * h, p)
        two = slope((k + 0.5) * h, p + h / 2 * one)
        three = slope((k + 0.5) * h, p + h / 2 * two)
        p = p + h / 6 * (one + 2 * two + 2 * three + slope((k + 1) * h, p + h * three))
    return -p.view(4, 4)[:3, :3].flatten().log()


@each
def test_the_bound_of_any_network_is_above_the_exact_likelihood(make):
    process = make()
    nll, nats = exact(process), bound(process, table)
    assert float((-nll).exp().sum()) == pytest.approx(1, abs=1e-6)
    assert (nats > nll + 1e-4).all()  # of all nine strings
    assert float((-nats).exp().sum()) < 1


@each
def test_the_bound_of_the_exact_predictions_is_the_entropy(make):
    entropy = -float((DATA * DATA.log()).sum())
    assert float(DATA @ bound(make(), posterior)) == pytest.approx(entropy, abs=1e-5)


@each
def test_the_loss_with_the_rate_of_the_true_token_is_no_bound(make):
    process = make()

    def published(rows, x0, xt, t):
        nll, rate = -rows.gather(-1, x0[:, None])[:, 0], process.noise.weight(t)
        own = process.elasticity(t, process.values.double()[x0])
        return torch.where(process.changes(xt), rate * own * nll, 0.0)

    nats = bound(process, posterior, integrand=published)
    assert float((-nats).exp().sum()) > 1.01  # no distribution has such likelihoods
    torch.testing.assert_close(bound(process, posterior), -DATA.log(), rtol=0, atol=1e-6)


@each
def test_the_sampler_draws_from_the_distribution_of_the_model(make):
    process = make()
    p = (-exact(process)).exp()
    far, near = (0.5 * float((drawn(process, n) - p).abs().sum()) for n in (40, 160))
    assert near < 0.01 and near < far / 3
    assert float((drawn(process, 160, posterior) - DATA).abs().sum()) < 0.01


@each
def test_likelihoods_are_estimated_by_the_bound(make):
    process, model = make(), Table()
    model.bound, model.process_type = Bound(process).token_bound, type(process)
    model.anchor = torch.nn.Parameter(torch.zeros(1))
    ids = torch.tensor(STRINGS).repeat(60, 1)
    found = estimate(model, process, [(ids, {"all": torch.ones_like(ids, dtype=bool)})], 128)
    nats = torch.from_numpy(found.nats["all"]).mean(1).view(60, 9).mean(0)
    torch.testing.assert_close(nats, bound(process, table), rtol=0, atol=0.25)
    assert found.protocol == "bound of the objective"
    assert float(nats.mean()) == pytest.approx(float(bound(process, table).mean()), abs=0.04)


@each
@pytest.mark.parametrize("steps", [1, 3, 8])
def test_the_bound_in_steps_is_above_the_exact_likelihood_of_the_chain(make, steps):
    process, rows = make(), Table().rows.reshape(32, 4)
    total = torch.zeros(9, dtype=torch.float64)
    for end in range(1, steps + 1):
        q = letters(process, end / steps)
        t, s = (torch.full((32,), k / steps, dtype=torch.float64) for k in (end, end - 1))
        for number, x in enumerate(STRINGS):
            x0 = torch.tensor(x).expand(16, 2).flatten()
            nats = process.step_cost(rows, x0, XT.flatten(), t, s).detach().view(16, 2).sum(-1)
            total[number] += (q[x[0]][XT[:, 0]] * q[x[1]][XT[:, 1]] * nats).sum()
    gap = total + drawn(process, steps).log()
    assert gap.min() > -1e-12
    if steps == 1:
        assert gap.max() < 1e-12
    else:
        assert gap.max() > 1e-3
    if steps == 8:
        assert (total > bound(process, table)).all()


@each
def test_the_last_step_leaves_no_mask_under_any_schedule(make):
    process = make(LogMask(p_min=0.2, p_max=0.999))
    t, masked = torch.full((16,), 0.5, dtype=torch.float64), torch.full((16,), MASK)
    for rows in Table().rows.unbind(1):
        last = process.reverse(rows, masked, t, torch.zeros_like(t)).detach()
        torch.testing.assert_close(last.exp(), rows.exp())
    total = sum((-process.reconstruction(rows, masked - 1 - k, masked, t)).exp() for k in range(3))
    torch.testing.assert_close(total, torch.ones(16, dtype=torch.float64))


def test_the_bound_in_steps_has_finite_gradients():
    logits = torch.zeros(6, 4, requires_grad=True)
    process, t = spindle(), torch.tensor([0.25, 0.5, 1.0] * 2)
    rows = process.parameterization().log_probs(logits, torch.full((6,), MASK))
    x0, xt = torch.tensor([0, 1, 2] * 2), torch.full((6,), MASK)
    process.step_cost(rows, x0, xt, t, t - 0.25).sum().backward()
    assert logits.grad.isfinite().all() and (logits.grad[:, :3] != 0).all()


@each
@pytest.mark.parametrize("noise", [Polynomial(2.0, 0.0), LogLinear(0.05)])
def test_the_bound_does_not_depend_on_the_clock(make, noise):
    torch.testing.assert_close(bound(make(noise), table), bound(make(), table), rtol=0, atol=1e-5)


@each
def test_a_draw_of_the_bound_has_the_bound_as_its_mean(make):
    process, rows = make(), 60_000
    x0 = torch.tensor([STRINGS[1]]).expand(rows, 2)
    objective = Bound(process)
    loss = objective(Table(), x0, torch.ones(x0.shape), Draws.for_batch(2, rows))
    assert 2 * float(loss.nll) == pytest.approx(float(bound(process, table)[1]), abs=0.03)
    assert objective.own_bound


@pytest.mark.parametrize("noise", [LogLinear(), LogMask()])
def test_equal_rates_are_the_absorbing_process(noise):
    plain, draws = AbsorbingProcess(VOCAB, noise), Draws.for_batch(1, 500)
    x0 = torch.tensor(STRINGS).repeat(56, 1)[:500]
    t, everywhere = torch.linspace(0.01, 0.99, 500, dtype=torch.float64), x0 >= 0
    equal = [rates(noise, (1.0,) * 3), spindle(noise, (5, 5, 5)), Spindle(VOCAB, noise, 0.0)]
    arguments = Table().rows.flatten(0, 1), x0[:32, 0], XT.flatten(), t[100:132]
    last = plain.noise.mask_probability(1.0)
    for process in equal:
        same = process.corrupt(x0, t, everywhere, draws) == plain.corrupt(x0, t, everywhere, draws)
        assert same.double().mean() > 0.995  # relative to t = 1, where everything is masked
        found, of_masks = (each.integrand(*arguments) for each in (process, plain))
        torch.testing.assert_close(found, of_masks)
        if last == 1:
            torch.testing.assert_close(
                process.reverse(*arguments[::2], t[100:132], t[:32]),
                plain.reverse(*arguments[::2], t[100:132], t[:32]),
            )


def test_rare_tokens_are_masked_first_by_the_spindle():
    process, t = spindle(), torch.linspace(0, 1, 101, dtype=torch.float64)
    hit = process.mask_probability(t, torch.arange(3).expand(101, 3))
    assert (hit[0] == 0).all() and torch.allclose(hit[-1], torch.ones(3, dtype=torch.float64))
    assert (hit.diff(dim=0) > 0).all()
    middle = hit[1:-1]
    assert (middle[:, 2] > middle[:, 1]).all() and (middle[:, 1] > middle[:, 0]).all()
    assert (middle[:, 0] < t[1:-1]).all()  # a frequent token stays longer than without the spindle
    p = torch.tensor([91.0, 10, 2, 0])[:3] / 103
    h = -p.log()
    torch.testing.assert_close(process.values[:3], (h - (p * h).sum()) / h.max())
    steep = Spindle(VOCAB, LogLinear(0.0), 0.31)
    steep.information.copy_(torch.tensor([-1.0, 0.0, 1.0, 0.0]))
    assert (steep.mask_probability(t, torch.arange(3).expand(101, 3)).diff(dim=0) > 0).all()


def test_gradients_of_the_exponents_are_those_of_the_bound():
    process, rows = rates(None, (0.8, 1.0, 1.5)), 400_000
    objective, number = GenMD4(process), 5
    x0 = torch.tensor([STRINGS[number]]).expand(rows, 2)
    loss = objective(Table(), x0, torch.ones(x0.shape), Draws.for_batch(0, rows))
    loss.loss.backward()
    assert float(loss.loss.detach()) == pytest.approx(float(loss.nll))

    def at(raw):
        with torch.no_grad():
            process.raw.copy_(raw)
        return float(bound(process, table)[number])

    start, step = process.raw.detach().clone(), 0.01
    for token in range(3):
        away = torch.eye(4)[token] * step
        slope = (at(start + away) - at(start - away)) / (2 * step)
        assert 2 * float(process.raw.grad[token]) == pytest.approx(slope, abs=0.03)
    assert max(abs(float(g)) for g in process.raw.grad[:3]) > 0.1  # so the tolerance is small


def test_gradients_reach_the_exponents_and_the_network_and_no_other_objective_moves_them():
    process = rates()
    Bound(process)
    assert not process.raw.requires_grad
    GenMD4(process)
    assert process.raw.requires_grad and process.state_dict().keys() == {"raw"}
    with pytest.raises(ValueError, match=r"LogMask masks a fraction 0.001.*set noise=loglinear"):
        GenMD4(rates(LogMask()))
    with pytest.raises(TypeError, match="num_steps"):
        GenMD4(process, num_steps=5)


def test_formulas_for_masks_of_equal_rates_refuse_them():
    for process in (spindle(), rates()):
        require("Reverse", process, TokenMasking)
        with pytest.raises(
            ValueError, match=r"Grouped needs an absorbing process.* rate of each token"
        ):
            require("Grouped", process, AbsorbingProcess)
    with pytest.raises(ValueError, match=r"GenMD4 needs.*token_rates"):
        GenMD4(AbsorbingProcess(VOCAB, LogLinear()))
    with pytest.raises(ValueError, match="strength"):
        Spindle(VOCAB, LogLinear(), 0.4)
