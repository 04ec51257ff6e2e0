"""Hybrid noise: its shares, its rates near both ends, and what is left with one kind of noise."""

import itertools

import pytest
import torch

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.hybrid import HybridNoise, HybridProcess
from dnadiff.diffusion.noise import Cosine, Linear, LogLinear, Polynomial
from dnadiff.diffusion.process import AbsorbingProcess, MixtureProcess
from dnadiff.diffusion.vocab import Vocab

VOCAB, MASK = Vocab(5, 4, 4, (3, 4)), 4  # letters 0, 1, 2; 3 is never emitted
LINEAR = LogLinear(0.0)
TIMES = torch.tensor([1e-6, 0.1, 0.5, 0.8, 0.999], dtype=torch.float64)
each_noise = pytest.mark.parametrize("noise", [LINEAR, Cosine(0.0), Polynomial(2.0)])
each_gamma = pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])


@each_gamma
def test_the_shares_are_those_of_the_paper(gamma):
    # arXiv 2503.04482: c = B t^(gamma/2) (1 - t)^(gamma/2), B = 2^gamma p_u/(1 - p_u)
    process, p_u = HybridProcess(VOCAB, LINEAR, 0.2, gamma), 0.2
    c = 2**gamma * p_u / (1 - p_u) * (TIMES * (1 - TIMES)) ** (gamma / 2)
    at = process.marginal(TIMES)
    torch.testing.assert_close(at.alpha[:, 0], (1 - TIMES) / (1 + c))
    torch.testing.assert_close(at.b[:, MASK], TIMES / (1 + c))
    torch.testing.assert_close(at.b[:, :3], (c / (1 + c) / 3)[:, None].expand(-1, 3))
    assert (at.b[:, 3] == 0).all()
    assert float(at.b[2, :3].sum()) == pytest.approx(p_u)  # the largest share, at t = 1/2
    torch.testing.assert_close(at.given(torch.full((5,), 1)).sum(-1), torch.ones(5).double())
    torch.testing.assert_close(process.pi(TIMES).sum(-1), torch.ones(5).double())


@each_noise
@each_gamma
def test_derivative_and_inverse_of_the_schedule(noise, gamma):
    hybrid = HybridNoise(noise, 0.3, gamma)
    slope = torch.func.jvp(hybrid.alpha, (TIMES,), (torch.ones_like(TIMES),))[1]
    torch.testing.assert_close(hybrid.dalpha(TIMES), slope, rtol=1e-4, atol=0)
    torch.testing.assert_close(hybrid.inverse(hybrid.alpha(TIMES)), TIMES, rtol=1e-4, atol=0)
    assert hybrid.mask_probability(0.0) == 0 and (slope <= 0).all()


@each_noise
@each_gamma
def test_rates_are_those_of_the_general_formula(noise, gamma):
    process = HybridProcess(VOCAB, noise, 0.3, gamma)
    for x in (0, 2, MASK):
        ids = torch.full((5,), x)
        expected = MixtureProcess.arrival_rate(process, TIMES, ids)
        found = process.arrival_rate(TIMES, ids)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)
        assert (found >= 0).all()


def test_rates_are_exact_at_both_ends():
    process = HybridProcess(VOCAB, LINEAR, 0.2, 1.0)
    scale = 2 * 0.2 / 0.8
    near = torch.tensor([1e-14, 1e-8], dtype=torch.float64)
    letter, mask = torch.zeros(2, dtype=int), torch.full((2,), MASK)
    # c' is B/2 t^-1/2 near t = 0, and d(c/a)/dt a is B/2 (1 - t)^-1/2 near t = 1
    expected = scale / 2 * near**-0.5 / 3
    torch.testing.assert_close(process.arrival_rate(near, letter), expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(process.arrival_rate(near, mask), torch.ones(2).double(), rtol=1e-3,
                               atol=0)  # fmt: skip
    single = process.arrival_rate(near.float(), mask)
    assert single.dtype == torch.float32 and single.isfinite().all()
    before = 1 - torch.tensor([1e-6, 1e-8], dtype=torch.float64)
    expected = scale / 2 * (1 - before) ** -0.5 / 3
    torch.testing.assert_close(process.arrival_rate(before, letter), expected, rtol=1e-3, atol=0)


@each_noise
def test_without_random_tokens_it_is_the_absorbing_process(noise):
    hybrid, absorbing = HybridProcess(VOCAB, noise, 0.0), AbsorbingProcess(VOCAB, noise)
    log_probs = torch.tensor([[0.5, 0.3, 0.2, 0, 0]], dtype=torch.float64).log().expand(3, 5)
    x0, t = torch.arange(3), torch.tensor([1e-5, 0.4, 0.9], dtype=torch.float64)
    for xt in (x0, torch.full((3,), MASK)):
        expected = absorbing.integrand(log_probs, x0, xt, t)
        torch.testing.assert_close(hybrid.integrand(log_probs, x0, xt, t), expected, atol=1e-9,
                                   rtol=1e-6)  # fmt: skip
    masks = torch.full((3,), MASK)
    for s in (t / 2, 0 * t):
        torch.testing.assert_close(
            hybrid.reverse(log_probs, masks, t, s).exp(),
            absorbing.reverse(log_probs, masks, t, s).exp(),
        )
        torch.testing.assert_close(
            hybrid.step_cost(log_probs, x0, masks, t, s),
            absorbing.step_cost(log_probs, x0, masks, t, s),
        )
    assert (hybrid.prior(2, 3) == MASK).all() and (hybrid.ends(x0) == 0).all()


def test_a_schedule_that_leaves_tokens_visible_needs_random_ones():
    with pytest.raises(ValueError, match=r"Linear ends with a mask probability of 0.95.*p_uniform"):
        HybridProcess(VOCAB, Linear(0.0, 3.0), 0.0)
    ends = HybridProcess(VOCAB, Linear(0.0, 3.0), 0.2).ends(torch.arange(3))
    assert (ends > 0).all() and ends.isfinite().all()


@pytest.mark.parametrize("gamma", [0, 2.1])
def test_tokens_that_would_turn_back_are_refused(gamma):
    with pytest.raises(ValueError, match=r"gamma .* must be a number above 0 and at most 2"):
        HybridProcess(VOCAB, LINEAR, 0.2, gamma)


def test_noise_is_drawn_with_its_shares():
    process = HybridProcess(VOCAB, LINEAR, 0.3)
    x0, draws = torch.zeros(40_000, 2, dtype=torch.int64), Draws.for_batch(2, 40_000)
    for t, counted in itertools.product((0.05, 0.6), (True, False)):
        maskable = torch.full(x0.shape, counted)
        xt = process.corrupt(x0, torch.full((len(x0),), t), maskable, draws)
        share = torch.bincount(xt.flatten(), minlength=5) / xt.numel()
        times = torch.tensor([t], dtype=torch.float64)
        expected = process.marginal(times).given(torch.tensor([0]))[0].float()
        clean = torch.tensor([1.0, 0, 0, 0, 0])
        assert (share - (expected if counted else clean)).abs().max() < 0.01
    prior = process.prior(3, 40)
    assert (prior == MASK).all()  # nothing random is left at t = 1
