import numpy as np
import pytest

from dnadiff.bootstrap import blocks, ratio


def test_ratio_weighs_by_the_denominator():
    assert ratio(np.array([1.0, 9.0]), np.array([1.0, 3.0])).value == 2.5


def test_standard_error_of_a_mean_is_that_of_the_textbook():
    values = np.random.default_rng(0).normal(size=400)
    found = ratio(values, np.ones(400))
    assert found.se == pytest.approx(values.std(ddof=1) / 20, rel=0.1)
    assert found.low == pytest.approx(found.value - 1.96 * found.se, abs=0.02)


def test_blocks_keep_the_dependence_of_neighbours():
    values = np.repeat(np.random.default_rng(1).normal(size=50), 8)
    assert ratio(values, np.ones(400), blocks(400, 8)).se > 2 * ratio(values, np.ones(400)).se


def test_excludes_zero():
    assert ratio(np.array([1.0, 1.1, 0.9, 1.0, 1.05]), np.ones(5)).excludes_zero
    assert not ratio(np.array([1.0, -1.0, 0.1, -0.5, 0.3]), np.ones(5)).excludes_zero


def test_nothing_to_average_is_an_error():
    with pytest.raises(ValueError, match="no token counts"):
        ratio(np.zeros(2), np.zeros(2))


@pytest.mark.parametrize("num_blocks", [5, 10, 40])
def test_intervals_of_noise_exclude_zero_as_often_as_they_say(num_blocks):
    random = np.random.default_rng(0)
    wrong = np.mean([ratio(random.normal(size=num_blocks), np.ones(num_blocks), num_resamples=300).excludes_zero for _ in range(600)])
    assert wrong == pytest.approx(0.05, abs=0.03)


def test_too_few_blocks_say_nothing():
    found = ratio(np.array([1.0, 1.1, 0.9, 1.0]), np.ones(4))
    assert found.value == pytest.approx(1.0) and np.isnan([found.se, found.low, found.high]).all() and not found.excludes_zero


def test_blocks_shrink_until_there_are_twenty():
    assert blocks(400, 8).max() == 49 and blocks(100, 50).max() == 19 and blocks(7, 16).tolist() == [0, 1, 2, 3, 4, 5, 6]
