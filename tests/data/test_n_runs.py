"""Counting N by prefix sums over runs, against counting letters."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff.data.records import Interval, NRuns, max_n_count

RECORDS = st.lists(st.text("AN", min_size=1, max_size=60), min_size=1, max_size=4)


def runs_of(texts):
    runs = [match.span() for match in re.finditer("N+", "|".join(texts))]  # no run crosses a border
    borders = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    shifted = [np.array(span) - np.searchsorted(borders, span[0], "right") + 1 for span in runs]
    return NRuns(np.array(shifted, np.int64).reshape(-1, 2), borders - np.arange(len(texts)))


@settings(max_examples=300)
@given(
    RECORDS,
    st.integers(1, 20),
    st.integers(0, 20),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_allowed_starts_are_exactly_those_with_few_n(texts, length, most, part):
    runs = runs_of(texts)
    for record, text in enumerate(texts):
        for start, end in ((0, len(text)), (min(part[0], len(text)), min(max(part), len(text)))):
            expected = [
                s for s in range(start, end - length + 1) if text[s : s + length].count("N") <= most
            ]
            ranges = runs.allowed(Interval(record, start, end), length, most)
            assert [s for first, after in ranges.tolist() for s in range(first, after)] == expected
            assert (ranges[1:, 0] > ranges[:-1, 1]).all()  # none touch


@given(RECORDS)
def test_counts_are_those_of_the_letters(texts):
    runs = runs_of(texts)
    for record, text in enumerate(texts):
        starts, ends = np.triu_indices(len(text) + 1)
        assert runs.count(record, starts, ends).tolist() == [
            text[a:b].count("N") for a, b in zip(starts, ends)
        ]


@pytest.mark.parametrize(
    ("share", "length", "most"),
    [(0.1, 1024, 102), (0.1, 10, 1), (0.29, 100, 29), (0.0, 50, 0), (0.7, 10, 7)],
)
def test_a_share_is_a_number_of_bases(share, length, most):
    assert max_n_count(share, length) == most
