import math

import pytest
import torch

from dnadiff.diffusion.noise import (
    Cosine,
    CosineSquared,
    Geometric,
    Linear,
    LogLinear,
    LogMask,
    MaskGITCosine,
    Polynomial,
    ShiftedLogOdds,
)


def test_published_loglinear_at_half_time():
    # facts: eps 1e-3, t = 0.5
    noise, t = LogLinear(eps=1e-3), torch.tensor([0.5], dtype=torch.float64)
    assert noise.sigma(t).item() == pytest.approx(0.692148, abs=1e-6)
    assert (-noise.dalpha(t) / noise.alpha(t)).item() == pytest.approx(1.996004, abs=1e-6)
    assert (1 - noise.alpha(t)).item() == pytest.approx(0.4995)
    assert noise.weight(t).item() == 2.0


def test_dalpha_is_the_derivative_of_alpha_and_inverse_its_inverse():
    noise, t = LogLinear(), torch.linspace(0, 1, 11, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(noise.alpha(t).sum(), t)
    torch.testing.assert_close(noise.dalpha(t.detach()), slope)
    torch.testing.assert_close(noise.inverse(noise.alpha(t)), t)


def test_weight_is_one_over_t_for_every_eps():
    t = torch.linspace(0.01, 1, 5, dtype=torch.float64)
    for eps in (0.0, 1e-3, 0.5):
        noise = LogLinear(eps)
        torch.testing.assert_close(noise.weight(t), -noise.dalpha(t) / (1 - noise.alpha(t)))


def test_eps_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="eps 1 must be a number of at least 0 and below 1"):
        LogLinear(1)


def at(noise, t):
    return float(noise.alpha(torch.tensor(t, dtype=torch.float64)))


def test_each_schedule_has_its_published_values():
    half = math.sqrt(0.5)
    assert at(Cosine(0.0), 0.5) == pytest.approx(half)  # MDLM's
    assert at(MaskGITCosine(0.0), 0.5) == pytest.approx(
        1 - half
    )  # MD4's and MaskGIT's: 1 - cos(pi/2 (1 - t))
    assert at(CosineSquared(0.0), 0.5) == pytest.approx(0.5)
    assert at(CosineSquared(0.0), 1 / 3) == pytest.approx(0.75)
    assert at(Polynomial(3.0, 0.0), 0.5) == pytest.approx(0.875)
    assert at(Linear(0.0, 10.0), 0.5) == pytest.approx(math.exp(-5))
    assert at(Geometric(1e-4, 20.0), 0.5) == pytest.approx(math.exp(-math.sqrt(1e-4 * 20)))
    assert at(ShiftedLogOdds(10.0), 1 / (math.exp(10) + 1)) == pytest.approx(0.5)
    assert at(ShiftedLogOdds(10.0), 0.25) == pytest.approx(0.75 / (1 + (math.exp(10) - 1) * 0.25))
    assert at(LogMask(1e-3, 0.9), 0.5) == pytest.approx(1 - math.sqrt(9e-4))


def test_values_of_block_diffusion_s_schedules():
    # BD3-LM's probabilities of a mask; its cut of 1e-3 is at the clean end, ours at the other one
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    torch.testing.assert_close(1 - LogLinear(0.0).alpha(t), t)
    theirs = 1 - 0.999 * torch.cos(math.pi / 2 * t)
    torch.testing.assert_close(1 - Cosine(1e-3).alpha(t), theirs - 1e-3)
    assert at(Polynomial(2.0, 0.0), 0.5) == pytest.approx(1 - 0.25)  # its square
    torch.testing.assert_close(1 - Polynomial(2.0, 0.0).alpha(t), t**2)


def test_two_schedules_called_cosine_are_mirror_images():
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    torch.testing.assert_close(MaskGITCosine(0.0).alpha(t), 1 - Cosine(0.0).alpha(1 - t))


def test_rates_are_the_published_ones():
    # MDLM's code gives sigma' of its cosines, with eps inside; sigma' = -alpha'/alpha here.
    t, eps = torch.linspace(0.1, 0.9, 5, dtype=torch.float64), 1e-3
    rate = lambda noise: -noise.dalpha(t) / noise.alpha(t)  # noqa: E731
    cos, sin = torch.cos(t * math.pi / 2), torch.sin(t * math.pi / 2)
    torch.testing.assert_close(
        rate(Cosine(eps)), math.pi / 2 * (1 - eps) * sin / ((1 - eps) * cos + eps)
    )
    torch.testing.assert_close(
        rate(CosineSquared(eps)),
        math.pi / 2 * (1 - eps) * torch.sin(math.pi * t) / ((1 - eps) * cos**2 + eps),
    )


def test_weights_keep_their_digits_near_the_clean_end():
    # In float32 the quotient -alpha'/(1 - alpha) is off by parts in a hundred here.
    t = torch.tensor([1e-4])
    for noise in (
        Cosine(),
        CosineSquared(),
        MaskGITCosine(),
        Polynomial(),
        Linear(),
        Geometric(),
        ShiftedLogOdds(),
        LogMask(),
    ):
        torch.testing.assert_close(
            noise.weight(t).double(), noise.weight(t.double()), rtol=1e-5, atol=0
        )


def test_total_noise_is_finite_where_nothing_is_visible():
    for noise in (LogLinear(0.0), Cosine(0.0), ShiftedLogOdds()):
        assert 10 < float(noise.sigma(torch.ones(1))) < 100


def test_impossible_schedules_are_refused():
    for make, message in (
        (lambda: Linear(3.0, 1.0), "sigma_min 3.0 must be below sigma_max 1.0"),
        (lambda: Geometric(0.0, 1.0), "sigma_min 0.0 must be a number above 0"),
        (lambda: Polynomial(0.5), "exponent 0.5 must be a number of at least 1"),
        (lambda: LogMask(0.5, 0.4), "p_min 0.5 must be below p_max 0.4"),
        (lambda: Cosine(1.0), "eps 1.0 must be a number of at least 0 and below 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
