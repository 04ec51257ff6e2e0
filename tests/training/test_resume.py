"""A run is resumed only on the sequence that it was trained on."""

import json

import torch

import dnadiff


def test_a_changed_genome_is_refused(cli, train_args, tiny_fasta, tmp_path):
    assert cli("train", *train_args("dit", 2))[0] == 0
    tiny_fasta.write_text(tiny_fasta.read_text().replace("ACGTTGA", "ACCTTGA"))  # same names and lengths, so the same split
    status, _, err = cli("train", *train_args("dit", 4, "resume=true"))
    last = err.strip().splitlines()[-1]
    assert status == 1 and last.startswith("error: ") and "was trained on other sequence than tiny.fa has now" in last
    assert not (tmp_path / "run" / "metrics.json").read_text().count('"step": 4')


def test_a_run_of_an_older_version_is_resumed_with_a_warning(cli, train_args, tmp_path):
    assert cli("train", *train_args("dit", 2))[0] == 0
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=False)
    del content["hyper_parameters"]["digest"]
    torch.save(content, path)
    status, _, err = cli("train", *train_args("dit", 4, "resume=true"))
    assert status == 0 and "does not record which sequence it was trained on" in err


def test_overwriting_a_run_removes_its_evaluation(cli, train_args, tmp_path):
    assert cli("train", *train_args("dit", 2))[0] == 0
    run = tmp_path / "run"
    assert cli("evaluate", "checkpoint=run", "num_draws=2", "orders=[]", "output=run/evaluate.json")[0] == 0
    old = json.loads((run / "evaluate.json").read_text())
    (run / "checkpoints" / "step_1.ckpt").write_bytes((run / "checkpoints" / "best.ckpt").read_bytes())
    assert cli("train", *train_args("dit", 2, "overwrite=true", "seed=2"))[0] == 0
    assert {p.name for p in run.iterdir()} == {"config.yaml", "tokenizer.json", "metrics.csv", "metrics.json", "checkpoints"}
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    (run / "evaluate.json").write_text(json.dumps(old))  # of the same step and name, and of other weights
    assert dnadiff.load(run, "cpu").stored_curve.curve(64) is None
