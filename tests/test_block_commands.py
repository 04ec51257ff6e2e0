"""Every command with a model that was trained in blocks."""

import csv
import json
import math

import numpy as np
import pytest
import torch

from dnadiff import load
from dnadiff.diffusion.denoiser import BlockDenoiser


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small Caduceus trained in blocks of 4 for a few steps on a sequence of period seven, and
    its evaluation."""
    from dnadiff import evaluate
    from dnadiff.train import train

    folder = tmp_path_factory.mktemp("blocks")
    (folder / "tiny.fa").write_text(">one\n" + "ACGTTGA" * 860 + "\n")
    args = [
        "data=fasta",
        f"data.path={folder / 'tiny.fa'}",
        "data.length=64",
        "data.batch_size=8",
        "trainer.val_check_interval=20",
    ]
    args += [
        "backbone.d_model=16",
        "backbone.n_layers=1",
        "objective=block_mdlm",
        "objective.block_size=4",
        "optimizer.lr=1e-2",
    ]
    args += ["trainer.max_steps=40", "trainer.accelerator=cpu", "data.max_valid_windows=4"]
    train.start([*args, f"hydra.run.dir={folder / 'run'}"])
    options = [
        f"checkpoint={folder / 'run'}",
        f"output={folder / 'run' / 'evaluate.json'}",
        "part=valid",
        "num_draws=4",
    ]
    evaluate.evaluate.start(options, folder / "run")
    return folder / "run"


def test_the_evaluation_is_of_blocks(run):
    found = json.loads((run / "evaluate.json").read_text())
    assert found["protocol"].startswith(
        "NELBO, count form in blocks of b = 4 tokens, 4 stratified draws"
    )
    table = found["code_length"]
    assert table["length"] == 4 and [row["groups"] for row in table["rows"]] == [1, 2, 4]
    assert table["applies_to"].startswith("each block of sampler=block")
    assert sum(table["h"]["bits"]) / 4 == pytest.approx(found["groups"]["all"]["bits"], rel=1e-6)
    # The period has seven letters: with four to the left all is known, and only a first block is
    # not.
    assert table["alone_bits"] > table["h0_bits"] + 0.3
    assert table["rows"][-1]["uniform"]["lost_structure"] == pytest.approx(0, abs=1e-9)
    cost = table["rows"][0]["uniform"]
    assert cost["lost_structure"] == pytest.approx(
        (cost["bits"] - table["nelbo_bits"]) / (table["alone_bits"] - table["nelbo_bits"]), rel=1e-6
    )


def test_sampling_takes_the_groups_of_a_block_from_the_evaluation(cli, run, tmp_path):
    other = ("sample", f"checkpoint={run}", "sampler=grouped", "num_samples=2", "output=x.fa")
    status, _, err = cli(*other)
    assert status != 0 and "set sampler=block" in err
    status, _, err = cli(
        "sample", f"checkpoint={run}", "num_samples=3", "length=150", "output=x.fa"
    )
    assert status == 0, err
    assert "lose at most 2 % of the structure, by evaluate.json" in err
    settings = json.loads((tmp_path / "x.fa.json").read_text())
    assert settings["sampler_settings"]["block_size"] == 4 and settings["sampler_settings"][
        "sampler"
    ]["num_groups"] in (1, 2, 3, 4)
    text = "".join(line for line in (tmp_path / "x.fa").read_text().splitlines() if line[0] != ">")
    assert len(text) == 450 and set(text) == set("ACGT")


def test_templates_have_weights(cli, run, tmp_path):
    (tmp_path / "t.fa").write_text(">t\nNNNNNACGTTNNNNNGATTACA\n")
    status, _, err = cli(
        "sample",
        f"checkpoint={run}",
        "sampler=block",
        "template=t.fa",
        "num_samples=4",
        "output=x.fa",
    )
    assert status == 0, err
    lines = (tmp_path / "x.fa").read_text().splitlines()
    assert all(line[5:10] == "ACGTT" and line[15:] == "GATTACA" for line in lines if line[0] != ">")
    assert all("log_weight=" in line for line in lines if line[0] == ">")
    assert (
        "does not see fixed tokens to the right" in err
        and "one for each token that is fixed in a later block" in err
    )


def test_scores_are_those_of_the_evaluation_and_files_are_restored(cli, run, tmp_path):
    (tmp_path / "x.fa").write_text(">a\n" + "ACGTTGA" * 30 + "\n>b\nACGNNTGATTACA\n")
    status, _, err = cli("score", f"checkpoint={run}", "input=x.fa", "output=s.tsv", "num_draws=16")
    assert status == 0, err
    with (tmp_path / "s.tsv").open() as file:
        first, second = csv.DictReader(file, delimiter="\t")
    assert (
        float(first["bits_per_base"]) < 1.5 < float(second["bits_per_base"])
        and second["counted"] == "11"
    )
    model = load(run)
    assert model.nll(["ACGTTGA" * 30], num_draws=64)[0] / math.log(2) == pytest.approx(
        float(first["bits_per_base"]), abs=0.1
    )
    pytest.importorskip("constriction")
    status, _, err = cli(
        "compress", f"checkpoint={run}", "input=x.fa", "output=x.dnd", "num_groups=4", "threads=1"
    )
    assert status == 0, err
    status, _, err = cli("decompress", f"checkpoint={run}", "input=x.dnd", "output=y.fa")
    assert status == 0, err
    assert (tmp_path / "y.fa").read_bytes() == (tmp_path / "x.fa").read_bytes()


def test_variants_have_the_difference_of_the_bounds(run):
    genome = "ACGTTGA" * 20
    model = load(run)
    found = model.variants(
        [("one", 71, "A", "C"), ("one", 72, "C", "CA")], genome={"one": genome}, window=64
    )
    assert (found["SE"] > 0).all() and (found["LLR"] < -1).all() and found["entropy"].isna().all()
    denoiser = model.denoiser
    assert isinstance(denoiser, BlockDenoiser)


def test_embeddings_are_those_of_blocks(run):
    model, text = load(run), "ACGTTGAACGTTGA"
    found = model.embed([text], pool="none", stranded=True)[0]
    ids = torch.from_numpy(model.tokenizer.encode(text))[None].long()
    with torch.no_grad():
        expected = model.denoiser.backbone.block_features(ids, ids, 4)[0][0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("evaluate", ["conjoin=true"], "conjoin=true needs"),
        ("evaluate", ["protocol=mdlm"], "protocol"),
        (
            "score",
            ["input=x.fa", "output=s.tsv", "per_base=i.bedgraph"],
            "the information of each base needs a model that sees both sides of it",
        ),
        (
            "variants",
            ["saturate=a:30-31", "genome=x.fa", "output=v.tsv", "num_draws=1"],
            "num_draws 1 must be even and at least 2",
        ),
        ("sample", ["sampler=ar", "num_samples=1", "output=z.fa"], "set sampler=block"),
        (
            "sample",
            ["sampler=block", "sampler.block_size=5", "num_samples=1", "output=z.fa"],
            "sampler.block_size 5 is not that of the model",
        ),
        (
            "sample",
            ["sampler=block", "sampler.sampler.num_groups=5", "num_samples=1", "output=z.fa"],
            "num_groups 5 is larger than the length 4",
        ),
        (
            "train",
            ["data=fasta", "data.path=x.fa", "objective=block_mdlm", "objective.block_size=0"],
            "objective.block_size",
        ),
        (
            "train",
            ["data=fasta", "data.path=x.fa", "objective=block_mdlm", "objective.block_size=2000"],
            "objective.block_size 2000 is more than the 512 tokens",
        ),
        (
            "train",
            ["objective=block_mdlm", "backbone.time_conditioning=true"],
            "set backbone.time_conditioning=false",
        ),
        (
            "train",
            ["data=fasta", "data.path=x.fa", "objective=block_mdlm", "backbone=mamba"],
            "BlockMDLM does not fit backbone Mamba",
        ),
        (
            "train",
            ["data=fasta", "data.path=x.fa", "objective=block_mdlm", "backbone=caduceus_ps"],
            "both strands",
        ),
        (
            "train",
            ["data=fasta", "data.path=x.fa", "objective=block_mdlm", "backbone.scan=mamba_ssm"],
            "mamba_ssm",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(cli, run, tmp_path, command, options, message):
    (tmp_path / "x.fa").write_text(">a\n" + "ACGTTGA" * 300 + "\n")
    checkpoint = [] if command == "train" else [f"checkpoint={run}"]
    status, _, err = cli(command, *checkpoint, *options)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status != 0 and len(lines) == 1 and message in lines[0], err


def test_an_error_in_blocks_comes_before_the_run_folder(cli, tmp_path, monkeypatch):
    # The first pass read the sequence as a whole, which a network trained in blocks never does
    # again.
    from dnadiff.networks.backbone.caduceus import Caduceus

    def fails(*args):
        raise ValueError("blocks cannot be read here")

    monkeypatch.setattr(Caduceus, "block_features", fails)
    (tmp_path / "x.fa").write_text(">a\n" + "ACGTTGA" * 800 + "\n")
    options = [
        "data=fasta",
        "data.path=x.fa",
        "data.length=64",
        "backbone.d_model=8",
        "backbone.n_layers=1",
        "objective=block_mdlm",
    ]
    status, _, err = cli("train", *options, "hydra.run.dir=out", "trainer.accelerator=cpu")
    assert status != 0 and "blocks cannot be read here" in err
    assert not (tmp_path / "out").exists()
