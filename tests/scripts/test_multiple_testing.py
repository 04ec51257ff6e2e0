import re
from pathlib import Path

import multiple_testing
import pytest
from multiple_testing import Difference, benjamini_hochberg, count, holm, p_value, sentence

RESULTS = Path(__file__).parents[2] / "genomic_benchmarks" / "results" / "linear_probes.md"


def test_p_values_are_those_of_the_normal_distribution():
    assert p_value(Difference(1.959964, 0.0, 2 * 1.959964)) == pytest.approx(0.05, abs=1e-6)
    assert p_value(Difference(0.0, -1.0, 1.0)) == 1 and p_value(Difference(0.0, 0.0, 0.0)) == 1


def test_corrections_of_a_textbook_example():
    # Benjamini and Hochberg 1995, section 3.2: 15 p-values; their procedure rejects 4, Bonferroni's
    # and Holm's 3
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    assert sum(benjamini_hochberg(p)) == 4 and sum(holm(p)) == 3
    shuffled = p[::-1]
    assert (
        benjamini_hochberg(shuffled) == benjamini_hochberg(p)[::-1]
        and holm(shuffled) == holm(p)[::-1]
    )
    assert (
        holm([0.04, 0.01]) == [True, True]
        and holm([0.04, 0.03]) == [False, False]
        and benjamini_hochberg([0.04, 0.03]) == [True, True]
    )


def test_counts_have_signs():
    found = count(
        [
            Difference(0.1, 0.08, 0.12),
            Difference(-0.1, -0.12, -0.08),
            Difference(0.01, 0.0005, 0.0195),
            Difference(0.0, -0.1, 0.1),
        ]
    )
    assert found == (4, (2, 1), (1, 1), (1, 1))


def test_the_committed_table_states_the_counts_of_its_52_intervals():
    text = RESULTS.read_text(encoding="utf-8")
    rows = [
        line.split("|")
        for line in text.splitlines()
        if line.startswith("| ") and "untrained" not in line
    ]
    every = [
        Difference(*map(read, re.findall(r"[+-]\d\.\d{3}", cell)))
        for row in rows
        for cell in row[7:9]
    ]
    assert len(every) == 52 and sentence(every) in text
    assert multiple_testing.count(every)[1:] == ((15, 1), (13, 0), (14, 0))


def read(number):
    return (
        float(number) if float(number) else -1e-9 * (number[0] == "-")
    )  # -0.000 is below 0, +0.000 may be 0
