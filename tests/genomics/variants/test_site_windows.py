import itertools
import random

import pytest

from dnadiff.genomics.variants.methods import site_windows


def groups(positions, length, window, most):
    found = site_windows(
        [("one", position) for position in positions], {"one": length}, window, most
    )
    return [(each.start, each.end, each.sites) for each in found]


def test_a_run_of_sites_fills_every_window():
    assert groups(range(100, 116), 1000, 16, 4) == [
        (99 + i, 115 + i, (100 + i, 104 + i, 108 + i, 112 + i)) for i in range(4)
    ]


def test_a_site_alone_is_in_the_middle_of_its_window_as_without_sharing():
    for position in (0, 3, 500, 997, 999):
        alone = groups([position], 1000, 17, 1)
        assert groups([position], 1000, 17, 4) == alone
        start = min(max(position - 8, 0), 983)
        assert alone == [(start, start + 17, (position,))]


def test_sites_anywhere_share_a_window_if_they_are_far_enough_apart():
    found = groups(
        [103, 109, 111, 117, 140], 1000, 32, 4
    )  # at least 8 bases apart, and 3 from the ends of the window
    assert [sites for *_, sites in found] == [(103, 111), (109, 117), (140,)]
    assert [sites for *_, sites in groups([103, 111, 119, 127, 135], 1000, 32, 4)] == [
        (103, 111, 119, 127),
        (135,),
    ]


@pytest.mark.parametrize("length", [5, 15, 16, 40])
def test_the_spacing_holds_on_records_shorter_than_a_window(length):
    found = groups(range(length), length, 64, 4)
    assert all(b - a >= 16 for _, _, sites in found for a, b in itertools.pairwise(sites))
    assert {(start, end) for start, end, _ in found} == {(0, length)} and sum(
        len(sites) for *_, sites in found
    ) == length


def test_every_site_is_in_one_window_at_the_distance_that_was_chosen():
    draw = random.Random(0)
    for _ in range(200):
        length, window, most = draw.randint(1, 80), draw.randint(8, 40), draw.randint(1, 5)
        positions = sorted(draw.sample(range(length), draw.randint(1, length)))
        found = groups(positions, length, window, most)
        assert sorted(site for *_, sites in found for site in sites) == positions
        spacing = window // most
        for start, end, sites in found:
            assert (
                0 <= start <= sites[0]
                and sites[-1] < end <= length
                and end - start == min(window, length)
                and len(sites) <= most
            )
            assert all(b - a >= spacing for a, b in itertools.pairwise(sites))
            if len(sites) > 1:
                assert start == 0 or sites[0] - start >= (spacing - 1) // 2
                assert end == length or end - 1 - sites[-1] >= (spacing - 1) // 2
