import json
import math

import pytest

from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.sequences import read_sequences


def test_fasta_out_is_labeled_wrapped_and_reproducible(cli, trained, tmp_path):
    args = [f"checkpoint={trained}", "num_samples=3", "length=70", "batch_size=2", "seed=9"]
    status, out, err = cli("sample", *args, "output=a.fa")
    assert status == 0, err
    assert cli("sample", *args, "output=b.fa")[0] == 0
    text = (tmp_path / "a.fa").read_text()
    assert text == (tmp_path / "b.fa").read_text()  # facts 22: same seed, same bytes
    lines = text.splitlines()
    assert lines[0] == ">sample_1 synthetic sampler=grouped calls=64 seed=9"
    assert [len(x) for x in lines[1:3]] == [60, 10]
    records = read_sequences(tmp_path / "a.fa")
    assert len(records) == 3 and all(set(r.sequence.decode()) <= set("ACGT") for r in records)
    assert "files are in a.fa" in out and "network calls" in out
    assert cli("sample", *args, "output=a.fa", "overwrite=true", "seed=10")[0] == 0
    assert (tmp_path / "a.fa").read_text() != text


def test_compressed_fasta(cli, trained, tmp_path):
    assert cli("sample", f"checkpoint={trained}", "num_samples=2", "output=a.fa.gz")[0] == 0
    assert [len(r.sequence) for r in read_sequences(tmp_path / "a.fa.gz")] == [64, 64]


def test_evaluation_stands_beside_markov_models(cli, trained, tmp_path):
    status, out, err = cli(
        "evaluate",
        f"checkpoint={trained}",
        "num_draws=4",
        "output=e.json",
        "orders=[0,3]",
        "block_size=2",
    )
    assert status == 0, err
    content = json.loads((tmp_path / "e.json").read_text())
    whole = content["groups"]["all"]
    assert whole["tokens"] == 602 and whole["bits"] == pytest.approx(whole["nll"] / math.log(2))
    assert (
        whole["se_mc"] > 0
        and whole["se_total"] > 0
        and whole["bits_low"] < whole["bits"] < whole["bits_high"]
    )
    # The tiny genome repeats itself: every held-out base lies in a 24-mer of the training part.
    assert "novel" not in content["groups"] and content["groups"]["repeated"]["tokens"] == 602
    order0, order3 = (m["groups"]["all"] for m in content["markov"])
    assert order3["bits"] < 0.3 < order0["bits"]
    assert order3["difference_bits"] == pytest.approx(whole["bits"] - order3["bits"])
    assert {"name", "split", "split_hash", "window", "n_policy"} <= content["data"].keys()
    assert "Markov order 3" in out and "worse" in out
    assert (
        cli("evaluate", f"checkpoint={trained}", "num_draws=4", "output=e.json")[0] == 1
    )  # exists


def test_evaluation_on_other_data(cli, trained, tmp_path):
    (tmp_path / "other.fa").write_text(">x\n" + reverse_complement("ACGTTGA" * 400) + "\n")
    args = [
        f"checkpoint={trained}",
        "data=fasta",
        "data.path=other.fa",
        "data.length=64",
        "num_draws=2",
        "orders=[]",
        "output=o.json",
    ]
    status, _, err = cli("evaluate", *args)
    assert status == 0, err
    assert json.loads((tmp_path / "o.json").read_text())["data"]["path"] == "other.fa"
