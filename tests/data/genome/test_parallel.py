"""Packing of many files: in several processes, and a killed call loses only what was in
progress."""

import os
import signal
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
from dnadiff.data.records import MAX_MAPPED
from dnadiff.formats.sequences import SequenceFormat


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    return written(tmp_path, 40)


def written(folder, count):
    """Small genomes, older than the resolution of a time stamp, so that none is read again."""
    paths = [folder / f"g{number}.fa" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(f">r{number}\n{'ACGT' * (number + 1)}\n>N{number}\nNNAC\n")
    return [str(path) for path in paths]


def test_files_are_packed_once_and_then_found(files):
    time.sleep(2.1)  # files that have just been written may change again within their time stamp
    first = [file.folder for file in pack_all(files)]
    assert all(packed.find_packed(path) is not None for path in files)  # without reading it
    inodes = [folder.stat().st_ino for folder in first]
    assert [file.folder.stat().st_ino for file in pack_all(files)] == inodes
    assert len(set(first)) == 40


def test_few_files_are_open_at_a_time(files, tmp_path):
    files = written(tmp_path, 2 * MAX_MAPPED + 50)
    data = GenomeDataModule(
        files, length=4, batch_size=64, epoch_size=640, max_n=1.0, augment_rc=False
    )
    windows = data.train_windows()
    before = len(os.listdir("/dev/fd"))
    batch = windows.batch(0, 0, 640)
    assert len(os.listdir("/dev/fd")) - before <= 2 * MAX_MAPPED
    record, start, _ = windows.places(0, np.arange(640))
    assert len(set(record.tolist())) > 2 * MAX_MAPPED - 100
    for row in range(0, 640, 37):
        assert (
            batch["ids"][row].tolist()
            == data.records[int(record[row])][start[row] : start[row] + 4].tolist()
        )


def test_runs_of_n_are_those_of_each_file(files):
    genome = Genome(files)
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
    assert len(list((tmp_path / "cache" / "genomes").glob("*/index.json"))) == 3


class Killer(SequenceFormat):
    """A format whose reader is killed, as by a lack of memory."""

    starts = (b"KILL",)

    @classmethod
    def records(cls, path, content):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_an_error_of_a_process_is_that_of_the_file(files):
    for number, content in ((3, ">r\nACGU!\n"), (5, ""), (8, "KILL")):
        Path(files[number]).write_text(content)
    with pytest.raises(ValueError, match=r"g3\.fa: line 2: record r: letter '!'"):
        list(pack_all(files[2:6], 2))
    with pytest.raises(ValueError, match=r"g5\.fa is empty"):
        list(pack_all(files[4:6], 2))
    with pytest.raises(
        ValueError,
        match=r"g8\.fa: the process that packs it was killed; .* set data\.num_workers lower",
    ):
        list(pack_all(files[8:10], 2))


@pytest.mark.slow
def test_processes_pack_the_same_and_a_killed_call_is_continued(files, tmp_path):
    code = f"""
from dnadiff.data.genome import packed
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
    assert Genome(files).records.lengths[:4] == [4, 4, 8, 4]
