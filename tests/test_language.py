"""The tree is written in plain technical English."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def structure():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists the files that git tracks")
def test_no_archaic_phrase_is_left(structure):
    assert not structure.archaic_phrases()


@pytest.mark.parametrize(
    "sentence",
    [
        "The recommended value can be amended.",
        "By the law of large numbers and the law of total variance the mean converges.",
        "Keywords of 3 papers; passwords of 8 letters.",
        "He goes on; the command goes on without it.",
    ],
)
def test_ordinary_words_are_not_reported(structure, sentence):
    assert not re.search(structure.ARCHAIC, sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "It was mended.",
        "The network is told the time.",
        "Train it anew.",
        "every number beside a floor",
        "words of 3 bases",
        "go on with a run",
    ],
)
def test_archaic_phrases_are_reported(structure, sentence):
    assert re.search(structure.ARCHAIC, sentence)
