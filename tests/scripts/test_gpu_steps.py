"""The steps on a GPU, as they run on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = Path(__file__).parents[2] / "scripts" / "gpu" / "steps.py"


def run(folder, *names):
    only = [f"--only={name}" for name in names]
    done = subprocess.run(
        [sys.executable, STEPS, "--device=cpu", "--quick", f"--output={folder}", *only],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {
        path.stem: json.loads(path.read_text()) for path in (folder / "quick").glob("*.json")
    }, done.stdout


def test_outputs_of_the_published_networks_are_reproduced(tmp_path):
    found, out = run(tmp_path, "parity")
    assert len(found) == 8 and out.count("| parity-") == 8
    for name, row in found.items():
        assert (
            row["error"] < (1e-4 if name.endswith("float32") else 5e-2)
            and row["machine"]["card"] == "CPU"
        ), name


@pytest.mark.slow
def test_every_step_runs(tmp_path):
    found, _ = run(tmp_path)
    assert (
        found["curve-32-true"]["largest_difference"] == 0
        and len(found["curve-32-true"]["losses"]["cpu"]) == 3
    )
    assert {name.partition("-")[0] for name in found} == {
        "parity",
        "curve",
        "sampling",
        "long",
        "variants",
        "science",
    }
    assert all(
        found[f"science-{name}"]["groups"]["all"]["bits"] < 2.1 for name in ("mdlm", "ar", "block")
    )
