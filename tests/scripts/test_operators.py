"""The benchmarks of a training step on a CPU: their accounting, and that they run."""

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"
sys.path.append(str(SCRIPTS))  # as for a program: scripts import modules of their folder


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def probes(names):
    """Measurements that take no time."""
    return {name: (lambda: time.sleep(1e-5), 1e3) for name in names}


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_operator_has_a_limit_and_the_shares_add_up_to_the_step(one_thread):
    operators = script("operators")
    rates = ["product", "exp", *(f"copy {level}" for level in operators.LEVELS)]
    found = operators.table(
        argparse.Namespace(size="16x1", batch=2, length=40, threads=1, seconds=0.0), probes(rates)
    )
    assert all(row["limit"] > 0 and row["ms"] > 0 for row in found["operators"])
    assert sum(row["share"] for row in found["operators"]) + found["step"]["rest"] == pytest.approx(
        1
    )
    assert operators.markdown([found, found]).count("\n| ") == len(found["operators"]) + 1


def test_the_parts_of_a_forward_pass_add_up_to_it(one_thread):
    long_window = script("long_window")
    rates = ["product", "exp", "copy L2", "copy L3", "copy memory"]
    found = long_window.measured(
        argparse.Namespace(size="16x1", length=40, seconds=0.0), 1, probes(rates)
    )
    assert [row["calls"] for row in found["operators"]] == [1, 1, 2, 1, 1, 2, 1] and found[
        "seconds"
    ] > 0
    assert sum(row["share"] for row in found["operators"]) + found["rest"] == pytest.approx(1)
    flops = sum(
        row["calls"] * (row["MFLOP"] + 14 * row["Mexp"]) * 1e6 for row in found["operators"]
    )
    assert found["arithmetic_seconds"] == pytest.approx(flops / found["rates"]["product"])
    assert long_window.markdown([found, found]).count("\n| ") == len(found["operators"]) + 2


@pytest.mark.parametrize("causal", [False, True])
def test_a_step_of_the_comparison_runs(causal):
    script("against").training_step(16, 1, 2, 20, causal)()
