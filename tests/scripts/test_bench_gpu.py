"""The GPU benchmark survives failures of the GPU and of prebuilt extensions."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "scripts" / "bench"

SCRIPT = f"""
import os, signal, sys
sys.path.insert(0, {str(BENCH)!r})
from pathlib import Path
import reporting

if reporting.STATE not in os.environ:
    sys.exit(reporting.supervised(30))
report = reporting.Report(Path(sys.argv[1]), 30)
if report.begin("extensions"):
    os.kill(os.getpid(), signal.SIGSEGV)  # as a library built for another version of PyTorch might

def wrong():
    raise ValueError("of no use")

def unusable():
    reporting.alive = lambda: False
    raise RuntimeError("an illegal memory access was encountered")

report.cell("first", lambda: report.add("first of all", 1.0, "ms"), 1)
report.cell("wrong", wrong, 1)
report.cell("unusable", unusable, 1)
report.cell("second", lambda: report.add("second", report.first("first") + 1, "ms"), 1)
report.cell("late", lambda: report.add("late", 1.0, "ms"), 10000)
"""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in ("gpu", "measuring", "reporting", "published_wiring"):
        sys.modules.pop(name, None)


def test_a_cell_that_kills_its_process_or_the_gpu_costs_no_other_cell(tmp_path):
    script, rows = tmp_path / "bench.py", tmp_path / "rows.json"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, rows], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(rows.read_text(encoding="utf-8")) == [
        {"name": "extensions", "error": "the process ended"},
        {"name": "first of all", "value": 1.0, "unit": "ms"},
        {"name": "wrong", "error": "of no use"},
        {"name": "unusable", "error": "an illegal memory access was encountered"},
        {"name": "unusable", "error": "the process ended"},
        {"name": "second", "value": 2.0, "unit": "ms"},
    ]
    assert done.stdout.count("first of all") == 1 and "skipped: no time left" in done.stdout


def test_every_trial_of_tile_sizes_has_its_own_row(bench, monkeypatch):
    gpu, seen = bench("gpu"), []
    monkeypatch.setattr(
        gpu, "scan_rows", lambda machine, report, width, L, scans, tiles: seen.append((L, tiles))
    )
    gpu.tune(None, None)
    assert len(set(seen)) == len(seen) == 20


def test_it_starts_itself_again_under_supervision(bench, monkeypatch):
    gpu, minutes = bench("gpu"), []
    monkeypatch.delenv(gpu.STATE, raising=False)
    monkeypatch.setattr(gpu, "supervised", lambda limit: minutes.append(limit) or 5)
    with pytest.raises(SystemExit, match="5"):
        gpu.main(["--device=cpu", "--minutes=3"])
    assert minutes == [3.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_the_error_names_what_is_missing(bench, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench("gpu").main([])
    assert "--device cuda needs a CUDA device, and PyTorch finds none" in capsys.readouterr().err
