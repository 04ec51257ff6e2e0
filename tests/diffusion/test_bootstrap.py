import math

import numpy as np
import pytest
from scipy import stats

from dnadiff.diffusion.bootstrap import (
    ConfidenceInterval,
    blocks,
    effective_block_size,
    ratio,
    student_t,
    verdict,
)


def excludes_zero(interval: ConfidenceInterval) -> bool:
    return interval.low > 0 or interval.high < 0


def test_ratio_is_weighted_by_the_denominator():
    assert ratio(np.array([1.0, 9.0]), np.array([1.0, 3.0])).value == 2.5


def test_standard_error_of_a_mean_matches_the_analytic_one():
    values = np.random.default_rng(0).normal(size=400)
    found = ratio(values, np.ones(400))
    assert found.se == pytest.approx(values.std(ddof=1) / 20, rel=0.1)
    assert found.low == pytest.approx(found.value - 1.96 * found.se, abs=0.02)


def test_blocks_keep_the_correlation_of_neighbors():
    values = np.repeat(np.random.default_rng(1).normal(size=50), 8)
    assert ratio(values, np.ones(400), blocks(400, 8)).se > 2 * ratio(values, np.ones(400)).se


def test_constant_values_exclude_zero_and_noise_does_not():
    assert excludes_zero(ratio(np.array([1.0, 1.1, 0.9, 1.0, 1.05]), np.ones(5)))
    assert not excludes_zero(ratio(np.array([1.0, -1.0, 0.1, -0.5, 0.3]), np.ones(5)))


def test_zero_denominator_is_an_error():
    with pytest.raises(ValueError, match="no token counts"):
        ratio(np.zeros(2), np.zeros(2))


@pytest.mark.parametrize(
    "num_blocks", [5, *(pytest.param(number, marks=pytest.mark.slow) for number in (10, 40))]
)
def test_intervals_of_noise_exclude_zero_at_the_nominal_rate(num_blocks):
    random = np.random.default_rng(0)
    wrong = np.mean(
        [
            excludes_zero(
                ratio(random.normal(size=num_blocks), np.ones(num_blocks), num_resamples=300)
            )
            for _ in range(600)
        ]
    )
    assert wrong == pytest.approx(0.05, abs=0.03)


def test_too_few_blocks_give_no_interval():
    found = ratio(np.array([1.0, 1.1, 0.9, 1.0]), np.ones(4))
    assert (
        found.value == pytest.approx(1.0)
        and np.isnan([found.se, found.low, found.high]).all()
        and not excludes_zero(found)
    )


def test_blocks_shrink_until_there_are_twenty():
    assert (
        blocks(400, 8).max() == 49
        and blocks(100, 50).max() == 19
        and blocks(7, 16).tolist() == [0, 1, 2, 3, 4, 5, 6]
    )
    assert effective_block_size(100, 50) == 5


@pytest.mark.parametrize("degrees_of_freedom", [4, 5, 9, 40, 1000])
def test_student_t_is_the_exact_quantile(degrees_of_freedom):
    """The expansion of Abramowitz and Stegun 26.7.5 is within 0.5 % of it."""
    z, f = 1.959964, degrees_of_freedom
    expansion = z + (z**3 + z) / 4 / f + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / f**2
    expansion += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / f**3
    assert (
        student_t(f)
        == pytest.approx(stats.t(f).ppf(0.975), rel=1e-12)
        == pytest.approx(expansion, rel=5e-3)
    )


def test_verdict_compares_the_interval_with_zero():
    assert [verdict(*bounds, "above", "below") for bounds in ((1, 2), (-2, -1), (-1, 1))] == [
        "above",
        "below",
        "not distinguishable",
    ]
    assert (
        verdict(None, 1, "above", "below")
        == verdict(math.nan, 1, "above", "below")
        == "no interval, so no verdict"
    )
