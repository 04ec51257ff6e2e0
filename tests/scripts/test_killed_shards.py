"""A few shards of scripts/reliability/shards.py, a third of them killed."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "reliability" / "shards.py"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["score", "sample"])
def test_killed_shards_are_merged_to_the_bytes_of_one_run(python, command):
    process = python(SCRIPT, "--shards=4", f"--command={command}")
    assert process.wait() == 0, process.output + process.errors
    assert "equal True" in process.output or "skipped" in process.output
