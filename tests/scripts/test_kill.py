"""A run that is killed and resumed ends with the same weights as an uninterrupted run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill.py"


@pytest.mark.parametrize(
    "options",
    [
        ["--kills=2"],
        pytest.param(["--kills=20"], marks=pytest.mark.slow),
        pytest.param(["--kills=5", "--workers=2"], marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_with_the_same_weights(options):
    run = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{options[0].partition('=')[2]} kills in" in done.stdout and "bit-identical" in done.stdout
