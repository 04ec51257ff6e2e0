"""Models of other noise than masks through the commands: train, evaluate, score and sample."""

import json

import pytest
import torch

from dnadiff.formats.sequences import read_sequences

SETTINGS = {
    "hybrid": ["process=hybrid", "objective.weighting=dynamic"],
    "steps": ["process=uniform", "objective.num_steps=8"],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_model_is_trained_evaluated_scored_and_sampled(name, train_args, cli, tmp_path):
    args = train_args("dit", 2, "objective=bound", *SETTINGS[name], "trainer.val_check_interval=2")
    status, _, err = cli("train", *args)
    assert status == 0, err
    status, out, err = cli("evaluate", "checkpoint=run", "num_draws=4", "orders=[0]", "output=e")
    assert status == 0, err
    found = json.loads((tmp_path / "e").read_text())["groups"]["all"]
    assert "bound of the objective" in out and 1 < found["bits"] < 6 and found["se_mc"] > 0
    (tmp_path / "x.fa").write_text(">a\nACGTTGACCA\n>b\nGGGGNCCCC\n")
    status, _, err = cli("score", "checkpoint=run", "input=x.fa", "output=s.tsv", "num_draws=8")
    assert status == 0, err
    rows = [line.split("\t") for line in (tmp_path / "s.tsv").read_text().splitlines()[1:]]
    assert [(row[0], row[2]) for row in rows] == [("a", "10"), ("b", "8")]
    assert all(0 < float(row[4]) < 10 for row in rows)
    sample = ["sample", "checkpoint=run", "num_samples=2", "length=12", "sampler.num_steps=8"]
    status, _, err = cli(*sample, "sampler=reverse", "output=y.fa")
    assert status == 0, err
    texts = [record.sequence.decode() for record in read_sequences(str(tmp_path / "y.fa"))]
    assert len(texts) == 2 and all(set(text) <= set("ACGT") for text in texts)
    status, out, err = cli("info", "checkpoint=run")
    assert status == 0, err
    assert "hybrid noise" in out if name == "hybrid" else "LogLinear, uniform noise" in out
    assert "sampling that revises tokens, infilling, editing" in out


def test_the_spindle_counts_the_tokens_of_its_own_training_data(train_args, cli, tmp_path):
    from dnadiff.weights import checkpoint

    spindle = ("objective=bound", "process=spindle")
    assert cli("train", *train_args("dit", 1, *spindle))[0] == 0
    (tmp_path / "a.fa").write_text(">a\n" + "AAAAAAAC" * 300 + "\n")
    data = ("data=fasta", f"data.path={tmp_path / 'a.fa'}")
    args = train_args("dit", 1, *spindle, "init_from=run", "hydra.run.dir=tuned", data=data)
    status, _, err = cli("train", *[a for a in args if "backbone" not in a])
    assert status == 0, err
    first, tuned = (checkpoint.load(tmp_path / name).process for name in ("run", "tuned"))
    a, c, g, t = (float(tuned.information[i]) for i in tuned.vocab.emitted)
    assert max(a, t) < 0.1 and min(c, g) > 0.4  # of both strands
    assert not torch.equal(first.information, tuned.information)


def test_what_needs_masks_says_which_process_has_them(train_args, cli):
    status, _, err = cli("train", *train_args("dit", 1, "objective=mdlm", "process=hybrid"))
    assert status == 1 and "objective MDLM needs an absorbing process" in err
    assert "hybrid noise" in err and "Traceback" not in err
    given = ["objective=bound", "objective.weighting=dynamic"]
    status, _, err = cli("train", *train_args("dit", 1, *given))
    assert status == 1 and "objective.weighting=dynamic does not fit an absorbing process" in err
