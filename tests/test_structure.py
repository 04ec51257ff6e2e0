"""The size and shape of the code keep their limits, or approach them: no value rises more than 3 %
above its lowest."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def structure():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


def test_size_and_shape_keep_their_limits(structure):
    lowest = json.loads((ROOT / "tests" / "structure.json").read_text())
    assert not structure.exceeded(structure.measure(ROOT, tests=False)[0], lowest)


def test_imports_inside_functions_and_circles_are_counted(structure, tmp_path):
    package = tmp_path / "dnadiff"
    package.mkdir()
    (tmp_path / "configs").mkdir()
    for name, text in {
        "__init__": "",
        "a": "from dnadiff import b\n",
        "b": "def f():\n    from dnadiff.c import x\n    return x\n",
        "c": "import dnadiff.b\nx = 'twelve chars'  # not counted\n",
        "d": "from .a import b\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    numbers, names = structure.measure(tmp_path)
    assert names["files in circles of imports"] == ["dnadiff.b", "dnadiff.c"]
    assert names["longest chain of imports"] == ["dnadiff.d", "dnadiff.a", "dnadiff.b", "dnadiff.c"]
    assert numbers["imports inside functions"] == 1
    assert numbers["tokens of dnadiff"] == 4 + (5 + 6 + 2) + (4 + 3) + 5


def test_a_value_may_not_rise_until_its_limit_is_reached(structure):
    key = "files of dnadiff"
    assert not structure.exceeded({key: 412}, {key: 400})
    assert structure.exceeded({key: 413}, {key: 400})
    assert not structure.exceeded({key: 270}, {key: 100})


@pytest.mark.slow
def test_walks_go_through_few_files():
    walks = [sys.executable, ROOT / "scripts" / "walks.py"]
    done = subprocess.run(walks, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
