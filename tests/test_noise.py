import pytest
import torch

from dnadiff.noise import LogLinear


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
    with pytest.raises(ValueError, match=r"eps 1 must lie in \[0, 1\)"):
        LogLinear(1)
