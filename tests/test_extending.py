"""docs/extending.md is complete: its files, written to a folder, run by its own command lines."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my_project")
    for name, content in re.findall(r"```(?:python|yaml)\n# ([\w./]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(content)
    letters = random.Random(1)
    (folder / "phages.fa").write_text(">phage\n" + "".join(letters.choices("ACGT", k=6000)) + "\n")
    return folder


def run(project, line):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, *line.split()[1:]]
    return subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, check=False)


# Each line runs in its own process, forked from one that has imported what all need: imports are most of the time of such small runs.
FORK = """
import os, runpy, sys
import lightning, sklearn.linear_model
for line in sys.stdin.read().splitlines():
    if not os.fork():
        sys.argv = line.split()[2:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    if os.wait()[1]:
        sys.exit(f"failed: {line}")
"""


def test_its_command_lines_run(project):
    lines = re.search(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1].strip()
    assert all(line.startswith("python -m dnadiff.") for line in lines.splitlines())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", FORK], input=lines, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    records = (project / "x.fa").read_text().split(">")[1:]
    assert len(records) == 2 and all(len(record.split("\n")[1]) == 32 for record in records)
    content = json.loads((project / "x.fa.json").read_text())
    assert "LeftToRight" in json.dumps(content) or "left_to_right" in json.dumps(content)


def test_a_checkpoint_with_foreign_classes_needs_trust(project):
    done = run(project, "python -m dnadiff.evaluate checkpoint=run part=valid")
    assert done.returncode == 1 and "trust=[my_models]" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_wrong_key_is_one_line(project):
    done = run(project, "python -m dnadiff.train --config-dir configs data=phages backbone=conv backbone.kernel=5 hydra.run.dir=other")
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert "backbone.kernel" in done.stderr and "kernel_size" in done.stderr
