"""Packing of many files: in several processes, and a killed call loses only what was in
progress."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dnadiff
from dnadiff.data.genome import packed
from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.packed import pack_all


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "dnadiff.store.cache._SETTLED", -1
    )  # files as old as these are not read again
    paths = [tmp_path / f"g{number}.fa" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_text(f">r{number}\n{'ACGT' * (number + 1)}\n>N{number}\nNNAC\n")
    return [str(path) for path in paths]


def test_files_are_packed_once_and_then_found(files, monkeypatch):
    first = [file.folder for file in pack_all(files)]
    monkeypatch.setattr(packed, "pack", None)  # packing again would fail
    monkeypatch.setattr(packed, "content_hash", None)
    assert [file.folder for file in pack_all(files)] == first and len(set(first)) == 40


def test_few_files_are_open_at_a_time(files, monkeypatch):
    monkeypatch.setattr("dnadiff.data.records.MAX_MAPPED", 4)
    monkeypatch.setattr(
        packed, "_mapped", packed.functools.lru_cache(maxsize=4)(packed._mapped.__wrapped__)
    )
    data = GenomeDataModule(
        files, length=4, batch_size=64, epoch_size=640, max_n=1.0, augment_rc=False
    )
    windows = data.train_windows()
    before = len(os.listdir("/dev/fd"))
    batch = windows.batch(0, 0, 640)
    assert len(os.listdir("/dev/fd")) - before <= 8
    record, start, _ = windows.places(0, np.arange(640))
    assert len(set(record.tolist())) > 40
    for row in range(0, 640, 37):
        assert (
            batch["ids"][row].tolist()
            == data.records[int(record[row])][start[row] : start[row] + 4].tolist()
        )


def test_runs_of_n_are_those_of_each_file(files):
    genome = Genome.open(files)
    rows = np.arange(len(genome.names))
    expected = [row["unknown"] for row in genome.rows]
    assert (
        genome.n_runs.count(rows, np.zeros_like(rows), np.array(genome.records.lengths)).tolist()
        == expected
        == [0, 2] * 40
    )


def test_a_bad_file_is_named_and_the_others_are_kept(files, tmp_path):
    with open(files[3], "w") as file:
        file.write(">r\nACGU!\n")
    with pytest.raises(ValueError, match=r"g3\.fa: line 2: record r: letter '!'"):
        list(pack_all(files))
    assert [packed.find_packed(path) is None for path in files[:4]] == [False, False, False, True]


@pytest.mark.slow
def test_an_error_of_a_process_is_that_of_the_file(files, monkeypatch):
    monkeypatch.setattr(packed, "_num_cores", lambda: 2)
    for number, content in ((3, ">r\nACGU!\n"), (5, "")):
        Path(files[number]).write_text(content)
    with pytest.raises(ValueError, match=r"g3\.fa: line 2: record r: letter '!'"):
        list(pack_all(files[2:6], 2))
    with pytest.raises(ValueError, match=r"g5\.fa is empty"):
        list(pack_all(files[4:6], 2))
    monkeypatch.setattr(
        packed, "_start", lambda: subprocess.Popen(["true"], stdin=-1, stdout=-1, text=True)
    )
    with pytest.raises(
        ValueError,
        match=r"g8\.fa: the process that packs it was killed; .* set data\.num_workers lower",
    ):
        list(pack_all(files[8:10], 2))


@pytest.mark.slow
def test_processes_pack_the_same_and_a_killed_call_is_continued(files, tmp_path):
    code = f"""
from dnadiff.data.genome import packed
packed._num_cores = lambda: 2
# A script needs no guard.
print(len({{str(file.folder) for file in packed.pack_all({files!r}, 2)}}), flush=True)
"""
    script = tmp_path / "pack.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(dnadiff.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, str(script)], env=environment)
    end = time.monotonic() + 60
    while (
        len(list((tmp_path / "cache").glob("genomes/*/index.json"))) < 3 and time.monotonic() < end
    ):
        time.sleep(0.01)
    process.kill()
    process.wait()
    time.sleep(1.5)  # the processes that packed end with it
    kept = {
        path.parent.name: path.stat().st_ino
        for path in (tmp_path / "cache").glob("genomes/*/index.json")
    }
    assert len(kept) >= 3
    again = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment
    )
    assert again.returncode == 0 and again.stdout == "40\n", again.stderr
    after = {
        path.parent.name: path.stat().st_ino
        for path in (tmp_path / "cache").glob("genomes/*/index.json")
    }
    assert len(after) == 40 and kept.items() <= after.items()
    assert Genome.open(files).records.lengths[:4] == [4, 4, 8, 4]
