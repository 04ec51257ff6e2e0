"""`python -m dnadiff.judge` from files to the table."""

import json

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.judge import JudgeOptions
from dnadiff.judge import sources as find
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.options.command import compose
from dnadiff.weights.published import export_published


@pytest.fixture
def fasta(tmp_path):
    def write(name, number, length, letters="ACGT", seed=0):
        rng = np.random.default_rng(seed)
        text = "".join(
            f">s{i}\n{''.join(rng.choice(list(letters), size=length))}\n" for i in range(number)
        )
        (tmp_path / name).write_text(text)
        return name

    return write


def test_samples_are_compared_with_the_held_out_part(cli, trained, fasta, tmp_path):
    fasta("x.fa", 12, 24)
    status, out, err = cli(
        "judge",
        "samples=x.fa",
        f"checkpoint={trained}",
        "output=j.json",
        "num_splits=20",
        "order=2",
    )
    assert status == 0, err
    found = json.loads((tmp_path / "j.json").read_text())
    assert "3-mers, Jensen-Shannon" in out
    assert int.from_bytes((tmp_path / "j.png").read_bytes()[16:20]) == 1200  # pixels
    assert (
        found["findings"]["js_3"]["verdict"] == "farther than real windows"
        and found["num_compared"] == 12
    )
    assert (
        found["findings"]["seen"]["samples"] == 0 and found["findings"]["seen"]["baseline"] == 100
    )  # a genome of one repeat
    assert found["real"]["data"]["split_hash"] and found["length"] == 24


def test_samples_are_compared_with_a_file(cli, fasta, tmp_path):
    fasta("x.fa", 12, 30)
    fasta("y.fa", 3, 305, seed=1)
    status, _, err = cli(
        "judge", "samples=x.fa", "real=y.fa", "output=j.json", "num_splits=20", "order=2"
    )
    assert status == 0, err
    found = json.loads((tmp_path / "j.json").read_text())
    assert found["real"]["number"] == 30 and "seen" not in found["findings"]


def test_a_picture_of_that_name_is_not_replaced(cli, fasta, tmp_path):
    fasta("x.fa", 12, 30)
    fasta("y.fa", 3, 305, seed=1)
    (tmp_path / "j.png").write_text("kept")
    status, _, err = cli(
        "judge", "samples=x.fa", "real=y.fa", "output=j.json", "num_splits=20", "order=2"
    )
    assert status == 1 and "j.png exists; set overwrite=true" in err
    assert (tmp_path / "j.png").read_text() == "kept" and not (tmp_path / "j.json").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["samples=x.fa"], "give checkpoint=RUN, whose held-out part is read, data=, or real=y.fa"),
        (["samples=x.fa", "real=few.fa"], "12 samples and 3 real windows of 24 bases are too few"),
        (["samples=x.fa", "real=short.fa"], "no window of 24 bases"),
        (["samples=mixed.fa", "real=x.fa"], "records have 24 to 30 bases"),
        (["samples=protein.fa", "real=x.fa"], "is not a nucleotide"),
        (["samples=tiny.fa", "checkpoint={run}"], "shorter than the 24-mers"),
        (["samples=long.fa", "checkpoint={run}"], "has no interval of 700 bases"),
        (["samples=x.fa", "checkpoint={run}", "part=train"], "part 'train' is not held out"),
        (["checkpoint={run}"], "samples is missing: give samples=..."),
        (
            ["samples=x.fa", "checkpoint={run}", "num_splits=2"],
            "num_splits 2 must be an integer of at least 20",
        ),
    ],
)
def test_invalid_input_gives_a_one_line_error(cli, trained, fasta, tmp_path, args, message):
    for name, number, length in (
        ("x.fa", 12, 24),
        ("few.fa", 3, 24),
        ("short.fa", 9, 10),
        ("tiny.fa", 12, 10),
        ("long.fa", 12, 700),
    ):
        fasta(name, number, length)
    (tmp_path / "mixed.fa").write_text(
        (tmp_path / "x.fa").read_text() + ">z\n" + "ACGTTG" * 5 + "\n"
    )
    (tmp_path / "protein.fa").write_text(">a\nACGTEFACGTACGTACGTACGTACGT\n")
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli("judge", *(a.format(run=trained) for a in args))
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before


def test_nothing_is_written_by_a_command_that_is_interrupted_before_its_end(
    cli, fasta, tmp_path, monkeypatch
):
    fasta("x.fa", 12, 30)
    fasta("y.fa", 3, 305, seed=1)
    monkeypatch.setattr(
        "dnadiff.genomics.metrics.sample_quality.rendered",
        lambda *args: (_ for _ in ()).throw(OSError("interrupted")),
    )
    status, _, err = cli(
        "judge", "samples=x.fa", "real=y.fa", "output=j.json", "num_splits=20", "order=2"
    )
    assert status == 1 and "interrupted" in err and not list(tmp_path.glob("j.*"))


@pytest.fixture
def named(trained, fasta, tmp_path):
    """The data and the searched data of `judge` for a checkpoint, with or without data= of another
    file."""
    fasta("other.fa", 1, 4000, seed=5)
    other = compose(
        "evaluate",
        ["checkpoint=x", "data=fasta", f"data.path={tmp_path}/other.fa", "data.length=64"],
    )["data"]

    def sources(checkpoint=trained, data=other, real=None):
        checkpoint = None if checkpoint is None else str(checkpoint)
        return find(JudgeOptions(samples="x.fa", checkpoint=checkpoint, data=data, real=real))

    return sources


def test_copies_are_searched_for_in_the_training_part_of_the_model_and_not_in_other_data(named):
    data, searched = named()
    assert (data.name, searched.name) == ("other.fa", "tiny.fa")
    data, searched = named(data=None, real="other.fa")
    assert data is None and searched.name == "tiny.fa"
    data, searched = named(data=None)
    assert data is searched and data.name == "tiny.fa"
    data, searched = named(checkpoint=None)
    assert data is searched and data.name == "other.fa"


def test_copies_are_not_searched_for_in_data_that_the_model_was_not_trained_on(
    named, caplog, monkeypatch
):
    monkeypatch.setattr(
        "dnadiff.weights.loaded.run_data",
        lambda *_: (_ for _ in ()).throw(FileNotFoundError("tiny.fa does not exist")),
    )
    with caplog.at_level("INFO", "dnadiff"):
        assert named()[1] is None
    assert (
        "copies are not searched for, because the training data are not available: tiny.fa does "
        "not exist" in caplog.text
    )


def test_the_data_named_take_the_place_of_those_that_published_weights_do_not_record(
    named, tmp_path, caplog
):
    torch.manual_seed(0)
    export_published(Denoiser(Caduceus(DNATokenizer().vocab, 16, 1)), tmp_path / "caduceus")
    with caplog.at_level("INFO", "dnadiff"):
        data, searched = named(tmp_path / "caduceus")
        assert named(tmp_path / "caduceus", None, "other.fa") == (None, None)
    assert searched is data and data.name == "other.fa"
    assert (
        "does not record what it was trained on: copies are searched for in the training part of "
        "other.fa" in caplog.text
    )
    assert (
        "copies are not searched for, because the training data are not available: data is missing"
        in caplog.text
    )
