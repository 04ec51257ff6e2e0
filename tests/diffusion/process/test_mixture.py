"""Mixture processes on two letters and a mask, compared with enumeration of all states."""

import itertools
import math

import numpy as np
import pytest
import torch

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.hybrid import HybridProcess
from dnadiff.diffusion.noise import Cosine, Geometric, LogLinear, NoiseSchedule, Polynomial
from dnadiff.diffusion.process import AbsorbingProcess, MixtureProcess, UniformProcess, require
from dnadiff.diffusion.vocab import Vocab

VOCAB = Vocab(3, 2, 2, (2,))
LETTERS, MASK = (0, 1), 2
STATES = list(itertools.product(range(3), repeat=2))
DATA = torch.tensor([0.45, 0.05, 0.2, 0.3], dtype=torch.float64)  # of 00, 01, 10, 11
NATS = -float((DATA * DATA.log()).sum())


class Masks(MixtureProcess):
    def pi(self, t):
        return torch.nn.functional.one_hot(torch.full_like(t, MASK, dtype=torch.int64), 3).to(t)


class Halves(MixtureProcess):
    """Noise that is uniform at t = 0 and all masks at t = 1."""

    def pi(self, t):
        return torch.stack([(1 - t) / 2, (1 - t) / 2, t], -1)


def gidd_scale(t, p_u=0.3):
    """c(t) of GIDD (arXiv 2503.04482), with gamma 1."""
    return 2 * p_u / (1 - p_u) * (t * (1 - t)).clamp(min=0).sqrt()


class GIDDNoise(NoiseSchedule):
    def alpha(self, t):
        return (1 - t) / (1 + gidd_scale(t))

    def dalpha(self, t):
        return torch.func.jvp(self.alpha, (t,), (torch.ones_like(t),))[1]

    def inverse(self, alpha):
        raise NotImplementedError


class GIDD(MixtureProcess):
    """b = (t m + c u)/(1 + c): at p_u = 0.3, up to 30 % of the tokens are uniform."""

    def pi(self, t):
        uniform = gidd_scale(t) / 2
        total = (t + 2 * uniform).clamp(min=1e-300)
        return torch.stack([uniform / total, uniform / total, t / total], -1)


LINEAR = LogLinear(0.0)
PROCESSES = {
    "masks": Masks(VOCAB, LINEAR),
    "uniform": UniformProcess(VOCAB, LINEAR),
    "halves": Halves(VOCAB, LINEAR),
    "gidd": GIDD(VOCAB, GIDDNoise()),
    "hybrid": HybridProcess(VOCAB, LINEAR, p_uniform=0.2, gamma=1.5),
}
each_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


def marginal(process, t):
    """q_t(z | x) of one token, (2, 3), without the code under test."""
    t = torch.tensor([t], dtype=torch.float64)
    alpha = float(process.noise.alpha(t))
    return alpha * torch.eye(3, dtype=torch.float64)[:2] + (1 - alpha) * process.pi(t)


def predictions(process, t):
    """p(x_i | the noisy token at the other position) of every state: (9, 2, 3)."""
    q, joint = marginal(process, t), DATA.view(2, 2)
    first = joint @ q / (joint.sum(0) @ q)  # (x_0, z_1)
    second = joint.T @ q / (joint.sum(1) @ q)  # (x_1, z_0)
    mu = torch.zeros(9, 2, 3, dtype=torch.float64)
    for state, (z0, z1) in enumerate(STATES):
        mu[state, 0, :2], mu[state, 1, :2] = first[:, z1], second[:, z0]
    return mu


def bound(process, predict, order=60):
    """The bound of the four sequences by quadrature over time and enumeration of states, (4,)."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    u = torch.from_numpy((nodes + 1) / 2)
    # slopes are infinite at t = 0 and 1: integrate over an angle, slowly at both ends
    angle, speed = math.pi / 2 * u**2 * (3 - 2 * u), math.pi / 2 * 6 * u * (1 - u)
    t = angle.sin() ** 2
    weight = torch.from_numpy(weights / 2) * speed * (2 * angle).sin()
    shape = (order, 4, 9, 2)  # times, sequences, states, positions
    mu = torch.stack([predict(process, float(each)) for each in t])[:, None].expand(*shape, 3)
    x0 = torch.tensor(list(itertools.product(LETTERS, repeat=2)))[:, None].expand(shape)
    xt, times = torch.tensor(STATES).expand(shape), t[:, None, None, None].expand(shape)
    found = process.integrand(
        mu.reshape(-1, 3).log(), x0.flatten(), xt.flatten(), times.flatten().contiguous()
    ).view(shape)
    q = torch.stack([marginal(process, float(each)) for each in t])  # (order, 2, 3)
    chance = q[torch.arange(order)[:, None, None, None], x0, xt].prod(-1)
    per_state = torch.where(chance > 0, chance * found.sum(-1), 0.0)
    return weight @ per_state.sum(-1)


def sampled(process, predict, steps):
    """The distribution of the four sequences after `steps` reverse steps from the prior."""
    at_one = process.pi(torch.ones(1, dtype=torch.float64))[0]
    probability, xt = torch.outer(at_one, at_one).flatten(), torch.tensor(STATES)
    grid = torch.linspace(math.pi / 2, 0, steps + 1, dtype=torch.float64).sin() ** 2
    for t, s in itertools.pairwise(grid):
        log_probs = predict(process, float(t)).log().nan_to_num(nan=-torch.inf)
        rows = process.reverse(log_probs.view(18, 3), xt.flatten(), t.expand(18), s.expand(18))
        first, second = rows.exp().view(9, 2, 3).unbind(1)
        step = (first[:, :, None] * second[:, None, :]).reshape(9, 9)
        probability = torch.where(probability[:, None] > 0, probability[:, None] * step, 0).sum(0)
    return probability.view(3, 3)[:2, :2].flatten()


def wrong(process, t):
    """Predictions that ignore the other token."""
    return torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64).expand(9, 2, 3)


@each_process
def test_the_bound_of_the_exact_predictions_is_the_entropy(process):
    assert float(DATA @ bound(process, predictions)) == pytest.approx(NATS, abs=1e-5)


@each_process
def test_the_bound_is_above_what_the_sampler_draws(process):
    tilted = DATA.new_tensor([0.3, 0.2, 0.4, 0.1])

    def predict(process, t):
        mu = predictions(process, t)
        mu[..., :2] = mu[..., :2] * tilted[[0, 3]] / (mu[..., :2] @ tilted[[0, 3]])[..., None]
        return mu

    gap = bound(process, predict) + sampled(process, predict, 500).log()
    assert gap.min() > -1e-3 and gap.max() > 5e-3


@each_process
def test_predictions_that_do_not_depend_on_the_state_cost_their_cross_entropy(process):
    letter = torch.tensor([0.7, 0.3], dtype=torch.float64)
    expected = -torch.outer(letter, letter).log().flatten()
    torch.testing.assert_close(bound(process, wrong), expected, rtol=0, atol=1e-5)


@each_process
@pytest.mark.parametrize("steps", [1, 3])
def test_independent_tokens_are_sampled_exactly_in_any_number_of_steps(process, steps):
    letter = torch.tensor([0.7, 0.3], dtype=torch.float64)
    found = sampled(process, wrong, steps)
    torch.testing.assert_close(found, torch.outer(letter, letter).flatten(), rtol=0, atol=1e-15)


@each_process
def test_the_sampler_approaches_the_data(process):
    far, near = (float((sampled(process, predictions, n) - DATA).abs().max()) for n in (25, 200))
    assert near < far / 4 and near < 2e-3


def test_masks_as_noise_are_the_absorbing_process():
    mixture, absorbing = PROCESSES["masks"], AbsorbingProcess(VOCAB, LINEAR)
    log_probs = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64).log().expand(4, 3)
    x0, xt = torch.tensor([0, 1, 0, 1]), torch.tensor([2, 2, 0, 1])
    t, s = (torch.tensor(x, dtype=torch.float64).expand(4) for x in (0.6, 0.25))
    mdlm = torch.tensor([-math.log(0.6) / 0.6, -math.log(0.4) / 0.6, 0, 0], dtype=torch.float64)
    for process in (mixture, absorbing):
        torch.testing.assert_close(process.integrand(log_probs, x0, xt, t), mdlm)
    carried = log_probs.clone()
    carried[2:] = torch.nn.functional.one_hot(xt[2:], 3).double().log()
    torch.testing.assert_close(
        mixture.reverse(carried, xt, t, s).exp(), absorbing.reverse(carried, xt, t, s).exp()
    )


def test_the_integrand_of_uniform_noise_is_the_loss_of_udlm():
    # arXiv 2412.10193, equation 18: alpha'/(N alpha) [N/x_i - N/y_i - sum_j x_j/x_i log(...)],
    # with x = N alpha x0 + 1 - alpha, y the same of the predictions, and i the noisy token.
    letters, alpha, dalpha, z, x0 = 2, 0.4, -1.0, 1, 0
    mu = torch.tensor([0.9, 0.1], dtype=torch.float64)
    x = letters * alpha * torch.eye(2, dtype=torch.float64)[x0] + 1 - alpha
    y = letters * alpha * mu + 1 - alpha
    sum_j = (x / x[z] * (y[z] * x / (y * x[z])).log()).sum()
    udlm = dalpha / (letters * alpha) * (letters / x[z] - letters / y[z] - sum_j)
    found = PROCESSES["uniform"].integrand(
        torch.tensor([[0.9, 0.1, 0.0]], dtype=torch.float64).log(),
        torch.tensor([x0]),
        torch.tensor([z]),
        torch.tensor([1 - alpha], dtype=torch.float64),
    )
    assert float(found) == pytest.approx(float(udlm), abs=1e-12)


def test_the_ends_count_where_the_schedule_does_not_reach_them():
    process = UniformProcess(VOCAB, LogLinear(0.1))
    q = torch.tensor([0.55, 0.45], dtype=torch.float64)
    ends = process.ends(torch.tensor([[0, 1]]))
    torch.testing.assert_close(ends, (q * (q * 2).log()).sum().expand(1, 2))
    log_probs = torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.float64).log()
    clean = PROCESSES["uniform"].reconstruction(log_probs, *torch.zeros(3, 1, dtype=int))
    assert float(clean) == pytest.approx(0.0)


@each_process
def test_corrupted_tokens_have_the_distribution_of_the_process(process):
    x0 = torch.tensor([0, 1]).repeat(20_000, 1)
    draws = Draws.for_batch(3, len(x0))
    found = process.corrupt(x0, torch.full((len(x0),), 0.4), torch.ones_like(x0, dtype=bool), draws)
    for x in LETTERS:
        share = torch.bincount(found[:, x], minlength=3).double() / len(x0)
        assert (share - marginal(process, 0.4)[x]).abs().max() < 0.02
    kept = process.corrupt(x0, torch.ones(len(x0)), torch.zeros_like(x0, dtype=bool), draws)
    assert torch.equal(kept, x0)


def test_the_loss_has_finite_gradients_where_nothing_has_mass():
    logits = torch.tensor([[5.0, -200.0, 1.0]], requires_grad=True)
    process = PROCESSES["masks"]
    log_probs = process.parameterization().log_probs(logits, torch.tensor([MASK]))
    loss = process.integrand(log_probs, *torch.tensor([[0], [MASK]]), torch.tensor([0.5]))
    loss.sum().backward()
    assert logits.grad.isfinite().all()


def test_formulas_for_masks_refuse_other_processes_by_name():
    require("Ancestral", PROCESSES["uniform"], MixtureProcess)
    with pytest.raises(ValueError, match=r"Ancestral needs an absorbing process.*UniformProcess"):
        require("Ancestral", PROCESSES["uniform"], AbsorbingProcess)


def arbitrary(process, t):
    """Predictions of a network that fits nothing, which depend on the state and on time."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(2, 9, 2, 2, generator=generator, dtype=torch.float64)
    mu = torch.zeros(9, 2, 3, dtype=torch.float64)
    mu[..., :2] = torch.softmax(logits[0] + (1 - t) * logits[1], -1)
    return mu


def generated(process, predict, steps=400):
    """The distribution of the four sequences when the reverse rates are integrated over time:
    r(z) q^(v)/q^(z) from z to v, at one position at a time."""
    at_one = process.pi(torch.ones(1, dtype=torch.float64))[0]
    probability = torch.outer(at_one, at_one).flatten()
    grid = torch.linspace(-18, 18, steps, dtype=torch.float64).sigmoid()  # slow at both ends
    grid = torch.cat([grid, grid.new_ones(1)]).flip(0)
    middle, xt = (grid[1:] + grid[:-1]) / 2, torch.tensor(STATES)
    times = middle[:, None, None].repeat(1, 9, 2)
    guess = process.marginal(times).of(torch.stack([predict(process, float(t)) for t in middle]))
    here = xt.expand(len(middle), 9, 2)
    rate = process.arrival_rate(times, here) / guess.gather(-1, here[..., None])[..., 0]
    flow = (rate[..., None] * guess).nan_to_num(0.0)  # from each state, at a place, to a token
    to = torch.stack([xt[:, None].repeat(1, 3, 1), xt[:, None].repeat(1, 3, 1)], 1)
    to[:, 0, :, 0], to[:, 1, :, 1] = torch.arange(3), torch.arange(3)
    arrow = torch.nn.functional.one_hot(to @ torch.tensor([3, 1]), 9).double()
    generator = torch.einsum("sipv,ipvj->sij", flow, arrow)
    generator = generator - torch.diag_embed(generator.sum(-1))
    for step in torch.linalg.matrix_exp(generator * (grid[:-1] - grid[1:])[:, None, None]):
        probability = probability @ step
    return last_step(process, predict, probability, float(grid[-1]))


def last_step(process, predict, probability, t):
    """What is left to do at time t, in one step."""
    t = torch.tensor(t, dtype=torch.float64)
    return (probability @ transition(process, predict, t, 0 * t)).view(3, 3)[:2, :2].flatten()


def transition(process, predict, t, s):
    """p(xs | xt) of one step, (9, 9); nothing where a state has no probability."""
    log_probs = predict(process, float(t)).log()
    xt = torch.tensor(STATES).flatten()
    rows = process.reverse(log_probs.view(18, 3), xt, t.expand(18), s.expand(18)).exp()
    first, second = rows.nan_to_num(0.0).view(9, 2, 3).unbind(1)
    return (first[:, :, None] * second[:, None, :]).reshape(9, 9)


@each_process
@pytest.mark.parametrize("predict", [arbitrary, wrong])
def test_the_bound_of_any_network_is_above_what_its_rates_generate(process, predict):
    probability = generated(process, predict)
    assert float(probability.sum()) == pytest.approx(1, abs=1e-4)
    gap = bound(process, predict) + probability.log()
    assert gap.min() > -2e-4
    if predict is wrong:  # no choice depends on the state: nothing is lost
        assert gap.max() < 2e-4


def test_without_the_divergence_of_the_visible_token_it_is_no_bound():
    class KLAlone(UniformProcess):
        def integrand(self, log_probs, x0, xt, t):
            at = self.marginal(t)
            q, guess = at.given(x0), at.of(log_probs.exp())
            divergence = (torch.xlogy(q, q) - torch.xlogy(q, guess)).sum(-1)
            return self.terms(log_probs, x0, xt, t)[0] * divergence

    process = PROCESSES["uniform"]
    lower = bound(KLAlone(VOCAB, LINEAR), arbitrary)
    assert (lower + generated(process, arbitrary).log()).min() < -0.02


@pytest.mark.parametrize("steps", [1, 2, 5])
@each_process
def test_the_bound_in_steps_is_that_of_their_chain(process, steps):
    grid = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    at_one = process.pi(grid[:1])[0]
    probability, total = torch.outer(at_one, at_one).flatten(), torch.zeros(4, dtype=torch.float64)
    xt = torch.tensor(STATES)
    for t, s in itertools.pairwise(grid):
        q, log_probs = marginal(process, float(t)), arbitrary(process, float(t)).log()
        for row, x in enumerate(itertools.product(LETTERS, repeat=2)):
            x0 = torch.tensor(x).expand(9, 2).flatten()
            times = (t.expand(18), s.expand(18))
            cost = process.step_cost(log_probs.view(18, 3), x0, xt.flatten(), *times).view(9, 2)
            chance = q[x[0]][xt[:, 0]] * q[x[1]][xt[:, 1]]
            total[row] += torch.where(chance > 0, chance * cost.sum(-1), 0.0).sum()
        probability = probability @ transition(process, arbitrary, t, s)
    assert float(probability.sum()) == pytest.approx(1)
    gap = total + probability.view(3, 3)[:2, :2].flatten().log()
    assert gap.min() > -1e-12
    if steps < 3:
        torch.testing.assert_close(total, over_paths(process, grid), rtol=0, atol=1e-12)


def over_paths(process, grid):
    """The mean of log q(path | x0)/p(path) over all paths of one or two steps, (4,)."""
    total = torch.zeros(4, dtype=torch.float64)
    steps = [transition(process, arbitrary, t, s) for t, s in itertools.pairwise(grid)]
    start = process.pi(grid[:1])[0]
    start = torch.outer(start, start).flatten()
    first = marginal(process, float(grid[0]))
    for row, (a, b) in enumerate(itertools.product(LETTERS, repeat=2)):
        last = 3 * a + b
        q = torch.outer(first[a], first[b]).flatten()
        if len(steps) == 1:
            p = start * steps[0][:, last]
        else:
            # q(x_t) q(x_s | x_t, x0): the reverse step of certain predictions
            certain = torch.nn.functional.one_hot(torch.tensor([a, b]), 3).double().expand(9, 2, 3)
            q = q[:, None] * transition(process, lambda *_, mu=certain: mu, *grid[:2])
            p = start[:, None] * steps[0] * steps[1][:, last]
        total[row] = torch.where(q > 0, q * (q / p).log(), 0.0).sum()
    return total


@pytest.mark.parametrize("make", [UniformProcess, HybridProcess, Masks])
@pytest.mark.parametrize("noise", [Cosine(0.0), Polynomial(3.0, 0.0)], ids=["cosine", "cubic"])
def test_the_bound_does_not_depend_on_how_fast_time_goes(make, noise):
    def at_alpha(process, t):
        t = torch.tensor(t, dtype=torch.float64)
        return arbitrary(process, float(1 - process.noise.alpha(t)))

    slow, linear = make(VOCAB, noise), make(VOCAB, LINEAR)
    torch.testing.assert_close(bound(slow, at_alpha), bound(linear, at_alpha), rtol=0, atol=2e-4)


def test_duo_s_loss_is_the_same_for_every_noisy_token():
    # arXiv 2506.10892, the bound without one-hot vectors of x, whose mean over z is this one's
    letters = 3
    process = UniformProcess(Vocab(4, 3, 3, (3,)), LINEAR)
    mu = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    for t, x0, z in itertools.product((0.2, 0.7), range(letters), range(letters)):
        alpha = 1 - t
        bar = letters * alpha * mu + 1 - alpha
        ratio = (1 - alpha) / (letters * alpha + 1 - alpha)
        if z == x0:
            sums = ratio * (letters * bar[z].log() - bar.log().sum())
            sums += (letters - 1) * ratio * math.log(ratio)
            at_z = letters * alpha + 1 - alpha
        else:
            sums = letters * bar[z].log() - bar.log().sum() - math.log(ratio) / ratio
            sums -= letters * alpha / (1 - alpha) * (bar[x0] / bar[z]).log()
            at_z = 1 - alpha
        duo = -1 / (letters * alpha) * (letters / at_z - letters / bar[z] - sums)
        log_probs = torch.cat([mu, mu.new_zeros(1)]).log()[None]
        times = torch.tensor([t], dtype=torch.float64)
        found = process.integrand(log_probs, torch.tensor([x0]), torch.tensor([z]), times)
        assert float(found) == pytest.approx(float(duo), abs=1e-12)


@pytest.mark.parametrize("make", [UniformProcess, HybridProcess])
def test_noise_left_at_the_start_is_reverted_in_the_last_step(make):
    process, t = make(VOCAB, Geometric(0.1, 20.0)), torch.full((1,), 0.5, dtype=torch.float64)
    log_probs = torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.float64).log()
    at = process.marginal(t)
    for x0, xt in itertools.product(LETTERS, repeat=2):
        joint = [at.given(torch.tensor([x]))[0, xt] * (0.7, 0.3)[x] for x in LETTERS]
        found = process.reconstruction(log_probs, torch.tensor([x0]), torch.tensor([xt]), t)
        assert float(found) == pytest.approx(-math.log(joint[x0] / sum(joint)))


@pytest.mark.parametrize(
    ("process", "noisy"),
    [
        (PROCESSES["uniform"], LETTERS),
        (PROCESSES["hybrid"], (*LETTERS, MASK)),
        (AbsorbingProcess(VOCAB, LINEAR), (MASK,)),
    ],
)
def test_costs_of_steps_have_finite_gradients(process, noisy):
    logits = torch.tensor([[5.0, -200.0, 1.0]], requires_grad=True)
    for xt, s in itertools.product(noisy, (0.0, 0.25)):
        log_probs = process.parameterization().log_probs(logits, torch.tensor([xt]))
        times = (torch.tensor([0.5]), torch.tensor([s]))
        cost = process.step_cost(log_probs, *torch.tensor([[0], [xt]]), *times)
        assert cost.isfinite().all()
        assert torch.autograd.grad(cost.sum(), logits)[0].isfinite().all()
