"""Golden results: how cases are read and results compared; and that keys, columns, names and
integers of every documented command are those of golden.json."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "scripts" / "golden.py"
spec = importlib.util.spec_from_file_location("golden", PATH)
golden = sys.modules["golden"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)

CASES = """
# A comment.
$SMALL = num_draws=2
  length=8
a/one: score $SMALL output=$OUT/s.tsv
b/two: from a/one
  && merge output='$OUT/s.tsv' hydra.run.dir=x
"""


def test_cases_have_their_words_and_what_they_need():
    cases = golden.read_cases(CASES)
    assert cases["a/one"].commands == (
        ("score", "num_draws=2", "length=8", "output=a/one/s.tsv", "hydra.run.dir=a/one/folder"),
    )
    assert cases["b/two"].needs == ("a/one",)
    assert cases["b/two"].commands[1] == ("merge", "output=b/two/s.tsv", "hydra.run.dir=x")
    assert golden.with_needs(cases, ["b/two"]) == ["a/one", "b/two"]


def test_a_case_has_another_digest_if_one_that_it_needs_has_other_words():
    first, second = (golden.read_cases(text) for text in (CASES, CASES.replace("=8", "=9")))
    assert all(first[name].digest != second[name].digest for name in first)


def test_every_documented_command_is_covered():
    commands = {
        words[words[0] == "interrupted"]
        for case in golden.read_cases(golden.LISTED.read_text()).values()
        for words in case.commands
        if words
    }
    pages = [PATH.parents[1] / "README.md", *(PATH.parents[1] / "docs").glob("*.md")]
    named = {
        line.split()[2].removeprefix("dnadiff.")
        for page in pages
        for line in page.read_text().splitlines()
        if line.strip().startswith("python -m dnadiff.")
    }
    assert named and named <= commands


def test_times_are_left_out_and_numbers_are_not(tmp_path):
    (tmp_path / "a.json").write_text('{"seconds": 1, "n": [2, {"x": 0.5}]}')
    found = golden.contents(tmp_path / "a.json", {})
    assert found == {
        " keys": "seconds, n",
        "n length": 2,
        "n[0]": 2,
        "n[1] keys": "x",
        "n[1].x": 0.5,
    }
    assert golden.printed_text("took 3.2 s\nx  5", {}) == ["took TIME", "x 5"]


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, False),
        (float("nan"), float("nan"), True),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0]), np.array([1.5]), False),
        (np.array([1.0]), np.array([1.0], np.float32), False),
    ],
)
def test_values_are_equal_with_their_type(a, b, equal):
    assert golden.same(a, b) == equal


@pytest.mark.slow
def test_keys_columns_names_and_integers_are_those_of_golden_json(tmp_path):
    run = [sys.executable, str(PATH), "--jobs", "2", "--cache", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
