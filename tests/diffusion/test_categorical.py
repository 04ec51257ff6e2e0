import pytest
import torch

from dnadiff.diffusion import draws
from dnadiff.diffusion.draws import Draws


def test_tails_are_exact():
    # facts 20: 50,256 symbols of 1e-8 and one with the rest; the tail is hit with 5e-4, ten times
    # in 20,000 draws.
    probs = torch.full((50_257,), 1e-8, dtype=torch.float64)
    probs[123] = 1 - probs.sum() + 1e-8
    u = Draws.for_batch(0, 20_000).uniform("token")
    middle = (u > 0.001) & (
        u < 0.999
    )  # the one likely symbol covers these; a few of them are checked

    def hits(part):
        return int((draws.draw(probs.log().float().expand(len(part), -1), part) != 123).sum())

    assert hits(u[middle][:100]) == 0
    assert 1 <= hits(u[~middle]) <= 25  # Poisson with mean 10.05


def test_extreme_uniforms_never_reach_a_symbol_of_probability_zero():
    log_probs = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(2, -1)
    assert draws.draw(
        log_probs, torch.tensor([2**-53, 1 - 2**-53], dtype=torch.float64)
    ).tolist() == [1, 1]


def test_inverse_of_the_cumulative_distribution():
    log_probs = torch.tensor([0.5, 0.25, 0.25]).log().expand(4, -1)
    assert draws.draw(
        log_probs, torch.tensor([0.1, 0.6, 0.74, 0.76], dtype=torch.float64)
    ).tolist() == [0, 1, 1, 2]


def test_temperature_two_flattens():
    probs = draws.temper(torch.tensor([[0.8, 0.2]]).log(), 2.0).exp()
    torch.testing.assert_close(probs, torch.tensor([[2 / 3, 1 / 3]], dtype=torch.float64))


def test_top_k_and_nucleus_keep_the_most_probable():
    log_probs = torch.tensor([[0.1, 0.6, 0.3]]).log()
    assert draws.top_k(log_probs, 1).isfinite().tolist() == [[False, True, False]]
    assert draws.nucleus(log_probs, 0.7).isfinite().tolist() == [[False, True, True]]
    assert draws.nucleus(log_probs, 0.5).isfinite().tolist() == [[False, True, False]]


def test_a_row_of_nan_or_without_mass_is_refused():
    wrong = {
        "contains NaN or infinity": ([torch.nan, 0.0], [torch.inf, 0.0]),
        "every symbol has probability 0": ([-torch.inf, -torch.inf],),
    }
    for message, rows in wrong.items():
        for row in rows:
            with pytest.raises(ValueError, match=message) as raised:
                draws.draw(
                    torch.tensor([[0.0, 0.0], row]), torch.tensor([0.5, 0.5], dtype=torch.float64)
                )
            assert isinstance(raised.value, draws.NoMassError) == (
                message == "every symbol has probability 0"
            )


def test_a_tiny_temperature_takes_the_most_probable():
    assert draws.temper(torch.tensor([[-1.2, -0.4, -torch.inf]]), 1e-310).exp().tolist() == [
        [0, 1, 0]
    ]
