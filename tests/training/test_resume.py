"""A run is resumed only on the sequence that it was trained on."""

import torch


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
