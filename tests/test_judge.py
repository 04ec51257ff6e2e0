"""`python -m dnadiff.judge` from files to the table."""

import json

import numpy as np
import pytest


@pytest.fixture
def fasta(tmp_path):
    def write(name, number, length, letters="ACGT", seed=0):
        rng = np.random.default_rng(seed)
        text = "".join(f">s{i}\n{''.join(rng.choice(list(letters), size=length))}\n" for i in range(number))
        (tmp_path / name).write_text(text)
        return name

    return write


def test_samples_are_compared_with_the_held_out_part(cli, trained, fasta, tmp_path):
    fasta("x.fa", 12, 24)
    status, out, err = cli("judge", "samples=x.fa", f"checkpoint={trained}", "output=j.json", "num_splits=20", "order=2")
    assert status == 0, err
    found = json.loads((tmp_path / "j.json").read_text())
    assert "3-mers, Jensen-Shannon" in out and (tmp_path / "j.png").is_file()
    assert found["findings"]["js_3"]["verdict"] == "farther than real windows" and found["num_compared"] == 12
    assert found["findings"]["seen"]["samples"] == 0 and found["findings"]["seen"]["floor"] == 100  # a genome of one repeat
    assert found["real"]["data"]["split_hash"] and found["length"] == 24


def test_samples_are_compared_with_a_file(cli, fasta, tmp_path):
    fasta("x.fa", 12, 30)
    fasta("y.fa", 3, 305, seed=1)
    status, _, err = cli("judge", "samples=x.fa", "real=y.fa", "output=j.json", "num_splits=20", "order=2")
    assert status == 0, err
    found = json.loads((tmp_path / "j.json").read_text())
    assert found["real"]["number"] == 30 and "seen" not in found["findings"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["samples=x.fa"], "give checkpoint=RUN, whose held-out part is read, data=, or real=y.fa"),
        (["samples=x.fa", "real=few.fa"], "12 samples and 3 real windows are too few"),
        (["samples=x.fa", "real=short.fa"], "no window of 24 bases"),
        (["samples=mixed.fa", "real=x.fa"], "records have 24 to 30 bases"),
        (["samples=protein.fa", "real=x.fa"], "is not a nucleotide"),
        (["samples=tiny.fa", "checkpoint={run}"], "shorter than the 24-mers"),
        (["samples=long.fa", "checkpoint={run}"], "has no interval of 700 bases"),
        (["samples=x.fa", "checkpoint={run}", "part=train"], "part 'train' is not held out"),
        (["checkpoint={run}"], "samples is missing: give samples=..."),
        (["samples=x.fa", "checkpoint={run}", "num_splits=2"], "num_splits 2 must be an integer of at least 20"),
    ],
)
def test_invalid_input_gives_a_one_line_error(cli, trained, fasta, tmp_path, args, message):
    for name, number, length in (("x.fa", 12, 24), ("few.fa", 3, 24), ("short.fa", 9, 10), ("tiny.fa", 12, 10), ("long.fa", 12, 700)):
        fasta(name, number, length)
    (tmp_path / "mixed.fa").write_text((tmp_path / "x.fa").read_text() + ">z\n" + "ACGTTG" * 5 + "\n")
    (tmp_path / "protein.fa").write_text(">a\nACGTEFACGTACGTACGTACGTACGT\n")
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli("judge", *(a.format(run=trained) for a in args))
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before


def test_the_json_file_is_written_last_so_that_an_interrupted_command_can_be_started_again(cli, fasta, tmp_path, monkeypatch):
    fasta("x.fa", 12, 30)
    fasta("y.fa", 3, 305, seed=1)
    monkeypatch.setattr("dnadiff.metrics.sample_quality._NUM_SLOW", 3)
    monkeypatch.setattr("dnadiff.report.figures.save", lambda *args: (_ for _ in ()).throw(OSError("interrupted")))
    status, _, err = cli("judge", "samples=x.fa", "real=y.fa", "output=j.json", "num_splits=20", "order=2")
    assert status == 1 and "interrupted" in err and not (tmp_path / "j.json").exists()
