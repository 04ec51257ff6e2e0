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
    assert ratio(np.array([1.0, 1.1, 0.9]), np.ones(3)).excludes_zero
    assert not ratio(np.array([1.0, -1.0, 0.1]), np.ones(3)).excludes_zero


def test_nothing_to_average_is_an_error():
    with pytest.raises(ValueError, match="no token counts"):
        ratio(np.zeros(2), np.zeros(2))
