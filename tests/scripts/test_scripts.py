"""The scripts behind the tables of the documentation: their exact parts, and that they run."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name):
    sys.path.insert(
        0, str((SCRIPTS / name).parent)
    )  # as for a program: scripts import modules of their folder
    spec = importlib.util.spec_from_file_location(Path(name).stem, SCRIPTS / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(
        spec
    )  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def test_the_dit_benchmark_compares_gradients():
    bench = script("bench/dit_step")
    one = {"loss": 2.0, "gradients": {"a": [3.0, 1.0]}}
    assert bench.compare(one, {"loss": 2.0, "gradients": {"a": [3.0, 1.3]}}, 0.2) == pytest.approx(
        0.1
    )
    with pytest.raises(SystemExit, match=r"differ by 1\.0e-01"):
        bench.compare(one, {"loss": 2.0, "gradients": {"a": [3.0, 1.3]}}, 0.05)
    for broken in ([math.nan, math.nan], [3.0, math.inf]):
        with pytest.raises(SystemExit, match="differ by nan"):
            bench.compare({"loss": 2.0, "gradients": {"a": broken}}, one, 0.2)
    with pytest.raises(SystemExit, match="only one has gradients of b"):
        bench.compare(one, {"loss": 2.0, "gradients": {"a": [3.0, 1.0], "b": [1.0, 1.0]}}, 0.2)
    shape = bench.argparse.Namespace(size="tiny", n_layers=1, batch=1, length=10, vocab=100)
    products = (
        12 * 512**2 * 10 + 3 * 512 * 100
    )  # multiply-adds of the layer and of the head at three positions
    attention = 2 * 10 * 10 * 512  # of attention scores and of values
    assert bench.model_flops(shape, 3) == 6 * (products + attention)


def test_the_book_is_split_as_by_the_data_module(tmp_path):
    book = script("studies/war_and_peace")
    (tmp_path / "book.txt").write_text("".join(chr(97 + i % 26) for i in range(1000)))
    found = book.Book(tmp_path / "book.txt", "cpu")
    assert [len(found.parts[p][0]) for p in ("train", "test", "valid")] == [800, 100, 100]
    rows = found.batch(book.Size(length=5, batch=4), step=0, seed=1)
    assert rows.shape == (4, 5) and ((rows[:, 1:] - rows[:, :-1]) % 26 == 1).all()
    assert torch.equal(found.windows("valid", 30), found.parts["valid"][0][:90].view(3, 30))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "shows"),
    [
        ("studies/war_and_peace", ["--quick", "--output"], "test, best of these"),
        (
            "bench/dit_step",
            ["--size", "mini", "--vocab", "2000", "--length", "64", "--repeats", "1", "--json"],
            "loss and gradients differ by",
        ),
    ],
)
def test_scripts_for_text_run(name, arguments, shows, tmp_path, shared_data):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    data = (
        []
        if name.startswith("bench")
        else [
            "--data",
            str(shared_data / "text" / "war_and_peace.txt.gz"),
        ]
    )
    run = [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments, str(tmp_path / "out"), *data]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and shows in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("studies/systems", "| `mdlm` |"),
        ("studies/fine_tuning", "| fine-tuned, LoRA |"),
    ],
)
def test_studies_run_and_reuse_finished_pieces(name, shows, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick", "--output", str(tmp_path)]
    first = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert first.returncode == 0 and shows in first.stdout, first.stdout + first.stderr
    again = subprocess.run(
        [*run, "--table"], capture_output=True, text=True, check=True, env=environment
    )
    assert shows in again.stdout and "$ python" not in again.stdout


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu_and_writes_every_row(python, tmp_path):
    run = [
        SCRIPTS / "bench" / "gpu.py",
        "--device",
        "cpu",
        "--quick",
        "--json",
        tmp_path / "rows.json",
    ]
    process = python(
        *run, env=os.environ | {"DNADIFF_BENCH_STATE": str(tmp_path / "state")}
    )  # as a process that `supervised` starts
    assert process.wait() == 0 and "failed" not in process.output, process.output + process.errors
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert not [row for row in rows if "error" in row]
    errors = [row["value"] for row in rows if row["name"].startswith("error of")]
    assert len(errors) == 4 and max(errors) < 1e-5
    steps = [row for row in rows if row["name"].startswith("step")]
    # Not below 1: the limit is measured too, and on a busy machine in a worse moment.
    assert {row["name"].split()[3] for row in steps} == {"L128", "L512"} and all(
        0 < row["of_limit"] < math.inf for row in steps
    )
    assert [row for row in rows if row["name"].startswith("scan forward+backward")]


@pytest.mark.slow
def test_gpu_benchmark_starts_no_cell_after_its_time_limit(tmp_path):
    run = [
        sys.executable,
        str(SCRIPTS / "bench" / "gpu.py"),
        "--device",
        "cpu",
        "--quick",
        "--minutes",
        "0",
    ]
    done = subprocess.run(
        run, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert "skipped: no time left" in done.stdout and "tokens/s" not in done.stdout


def test_a_failed_cell_is_a_row_and_the_others_continue(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS / "bench"))
    report = script("bench/measuring").Report(tmp_path / "rows.json", minutes=1)
    report.cell("one", lambda: 1 / 0)
    report.cell("two", lambda: report.add("two", 2.0, "ms"))
    assert "division by zero" in capsys.readouterr().out
    assert [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())] == [
        "one",
        "two",
    ]
