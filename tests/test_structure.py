"""The limits of scripts/structure.py hold."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="compares the files that git tracks")
def test_the_structure_of_the_package_keeps_its_limits(monkeypatch):
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
    structure = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, structure)  # dataclasses look their module up
    spec.loader.exec_module(structure)
    numbers = structure.measure(ROOT / "dnadiff")
    assert not structure.exceeded(numbers), {name: numbers[name] for name in structure.exceeded(numbers)}
