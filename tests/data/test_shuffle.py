import numpy as np
import pytest

from dnadiff.data.windows import bits, shuffled, uniform


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_every_number_comes_once(size):
    for key in (0, 2**64 - 1):
        assert sorted(shuffled(key, np.arange(size), size).tolist()) == list(range(size))


def test_an_image_depends_on_key_and_index_alone():
    whole = shuffled(7, np.arange(1000), 1000)
    assert shuffled(7, np.array([3, 999]), 1000).tolist() == whole[[3, 999]].tolist()
    assert (shuffled(8, np.arange(1000), 1000) != whole).mean() > 0.9


@pytest.mark.slow
def test_orders_are_as_random_as_they_should_be():
    first = np.concatenate([shuffled(key, np.array([0]), 6) for key in range(6000)])
    assert (abs(np.bincount(first, minlength=6) - 1000) < 150).all()  # five standard deviations
    neighbors = np.diff(shuffled(1, np.arange(100_000), 100_000))
    assert (
        abs(np.corrcoef(neighbors[1:], neighbors[:-1])[0, 1] + 0.5) < 0.02
    )  # as of independent draws


def test_bits_are_fair_and_uniforms_fill_the_interval():
    drawn = bits(5, np.arange(20_000))
    for bit in range(64):
        assert abs(((drawn >> np.uint64(bit)) & np.uint64(1)).mean() - 0.5) < 0.02
    u = uniform(5, np.arange(20_000))
    assert (
        u.min() >= 0
        and u.max() < 1
        and abs(u.mean() - 0.5) < 0.01
        and abs(u.var() - 1 / 12) < 0.005
    )
