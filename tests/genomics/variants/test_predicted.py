"""Variants under a fine-tuned run, whose head may take only sequences of one length."""

import gzip
import json
import random

import numpy as np
import pytest
import torch

import dnadiff
import dnadiff.plot
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.regions import Row
from dnadiff.genomics.variants.effects import PREDICTED_COLUMNS, PredictedEffect
from dnadiff.genomics.variants.work import writer_of
from dnadiff.networks.backbone.dit import DiT
from dnadiff.supervised import saved
from dnadiff.supervised.classifier import MEAN_HEAD, Classifier, HeadInputs, build_classifier
from dnadiff.supervised.saved import write_weights

DNA, LENGTH = DNATokenizer(), 16
NETWORK = {"d_model": 16, "n_layers": 1, "n_heads": 2, "cond_dim": 8, "max_length": LENGTH}
FLATTEN_HEAD = {
    "_target_": "dnadiff.supervised.heads.FlattenHead",
    "channels": 2,
    "hidden": 4,
}
TABLE = (
    "chrom\tpos\tref\talt\nlong\t20\tT\tA\nshort\t3\tG\tA,GT\n"
    "same\t3\tG\tC\nsame\t3\tGT\tG\nlong\t1\tA\tC\n"
)
SKIPPED = "the record is too short for a head of fixed length"


@pytest.fixture
def fine_tuned(tmp_path):
    """fine_tuned(head): arguments of the command with a saved classifier of two classes, a genome,
    and variants at the ends of its records."""

    def save(head, stranded=False):
        torch.manual_seed(0)
        backbone = DiT(DNA.vocab, **NETWORK)
        made = build_classifier(backbone, head, HeadInputs(), 2, LENGTH, stranded)
        about = {
            "name": "x",
            "classes": ["a", "b"],
            "stranded": stranded,
            "layer": None,
            "head": head,
            "seeds": [1],
            "batch_size": 2,
        }
        about |= {
            "network": {"_target_": "dnadiff.networks.backbone.dit.DiT", **NETWORK},
            "tokenizer": DNA.config(),
            "metrics": {},
            "settings": {},
        }
        about |= {"task": {"name": "t", "longest": LENGTH}, "pretrained": {}}
        saved.save(
            tmp_path / "run" / "models", 1, write_weights(tmp_path / "w.safetensors", made), about
        )
        (tmp_path / "g.fa").write_text(
            f">long\n{'ACGT' * 10}\n>short\nACGTACGTAC\n>same\n{'ACGT' * 4}\n"
        )
        (tmp_path / "x.tsv").write_text(TABLE)
        return ["checkpoint=run", "genome=g.fa", "vcf=x.tsv", "output=y.tsv", "accelerator=cpu"]

    return save


@pytest.mark.parametrize(
    ("head", "scored", "skipped"),
    [
        (FLATTEN_HEAD, ["long 20 A", "same 3 C", "long 1 C"], 3),
        (MEAN_HEAD, ["long 20 A", "short 3 A", "short 3 GT"], 0),
    ],
    ids=["flatten", "mean"],
)
def test_alleles_in_windows_that_the_head_does_not_take_are_skipped(
    fine_tuned, cli, tmp_path, head, scored, skipped
):
    status, out, err = cli("variants", *fine_tuned(head))
    assert status == 0, err
    rows = [line.split("\t") for line in (tmp_path / "y.tsv").read_text().splitlines()[1:]]
    assert [f"{row[0]} {row[1]} {row[4]}" for row in rows][:3] == scored and len(
        rows
    ) == 6 - skipped
    counts = json.loads((tmp_path / "y.tsv.json").read_text())["skipped"]
    assert counts == ({SKIPPED: skipped} if skipped else {}) and (
        f"skipped: {SKIPPED}" in out
    ) == bool(skipped)


def test_an_allele_longer_than_a_head_of_fixed_length_is_skipped(fine_tuned, cli, tmp_path):
    args = fine_tuned(FLATTEN_HEAD)
    (tmp_path / "x.tsv").write_text(f"{TABLE}long\t2\tC\tC{'A' * 17}\n")
    assert cli("variants", *args)[0] == 0
    assert (
        json.loads((tmp_path / "y.tsv.json").read_text())["skipped"][
            "longer than the window of 16 bases"
        ]
        == 1
    )


def test_the_class_and_the_scale_of_the_predictions_are_written(fine_tuned, cli, tmp_path):
    args = [argument for argument in fine_tuned(MEAN_HEAD) if not argument.startswith("output=")]
    (tmp_path / "x.tsv").write_text(f"{TABLE}long\t3\tG\tC\n")
    status, _, err = cli("variants", *args, "output=y.vcf.gz")
    assert (
        status == 0
        and "predictions are log-odds of class b" in err
        and "y.vcf.gz is not either and cannot be indexed" in err
    )
    settings = json.loads((tmp_path / "y.vcf.gz.json").read_text())["settings"]
    assert settings["target"] == "b" and settings["predicted"] == "log-odds of class b"
    with gzip.open(tmp_path / "y.vcf.gz", "rt") as file:
        assert 'Description="predicted_ALT - predicted_REF: log-odds of class b"' in file.read()


def test_small_predictions_keep_their_digits(tmp_path):
    effect = PredictedEffect(1.2345678e-6, 1.3e-6, 6.54322e-8, float("nan"))
    writer = writer_of(tmp_path / "y.tsv", PREDICTED_COLUMNS, False)
    cells = writer.rows([(Row("x", "chr1", 3, ".", "A", ("C",)), (effect,))]).decode().split()
    assert cells[5:] == ["1.23457e-06", "1.3e-06", "6.54322e-08", "."]


def test_the_batch_size_reaches_the_networks_and_is_a_setting(
    fine_tuned, cli, tmp_path, monkeypatch
):
    args, sizes, predict = fine_tuned(MEAN_HEAD), [], Classifier.predict
    monkeypatch.setattr(
        Classifier,
        "predict",
        lambda self, items, size, both: sizes.append(size) or predict(self, items, size, both),
    )
    assert cli("variants", *args, "batch_size=3")[0] == 0
    assert (
        set(sizes) == {3}
        and json.loads((tmp_path / "y.tsv.json").read_text())["settings"]["batch_size"] == 3
    )


def values_of(path):
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return {(int(row[1]), row[4]): [float(each) for each in row[5:8]] for row in rows}


@pytest.mark.parametrize("stranded", [True, False])
def test_a_stranded_run_reads_a_region_on_its_strand(fine_tuned, cli, tmp_path, stranded):
    letters = "".join(random.Random(4).choices("ACGT", k=60))
    args = [*fine_tuned(MEAN_HEAD, stranded)[:1], "accelerator=cpu", "window=15"]
    args += ["saturate=r.bed", "deletions=true"]
    (tmp_path / "g.fa").write_text(f">c\n{letters}\n")
    (tmp_path / "rc.fa").write_text(f">c\n{reverse_complement(letters)}\n")
    for strand, genome, (start, end) in (
        ("-", "g.fa", (20, 29)),
        ("+", "g.fa", (20, 29)),
        ("+", "rc.fa", (31, 40)),
    ):
        (tmp_path / "r.bed").write_text(f"c\t{start}\t{end}\tx\t0\t{strand}\n")
        output = f"{strand}{genome}.tsv"
        status, _, err = cli("variants", *args, f"genome={genome}", f"output={output}")
        assert status == 0 and ("read on strand + or that of a region" in err) == stranded, err
    minus, plus, mirrored = (
        values_of(tmp_path / name) for name in ("-g.fa.tsv", "+g.fa.tsv", "+rc.fa.tsv")
    )
    snvs = [key for key in minus if key[0] > 20 and letters[key[0] - 1] != key[1]]
    for pos, alt in snvs:
        other = mirrored[61 - pos, reverse_complement(alt)]
        assert minus[pos, alt] == pytest.approx(other, abs=1e-5)
    assert len(snvs) >= 27
    differ = max(abs(minus[key][0] - plus[key][0]) for key in snvs)
    assert differ > 1e-4 if stranded else differ == 0
    assert cli("variants", *args, "genome=rc.fa", "output=+g.fa.tsv", "resume=true")[0] == 1


def test_a_region_is_saturated_in_python(fine_tuned, cli, tmp_path):
    args = fine_tuned(FLATTEN_HEAD)
    args[2] = "saturate=long:15-20"
    assert cli("variants", *args, "deletions=true")[0] == 0
    model = dnadiff.load(tmp_path / "run")
    found = model.saturate("long:15-20", tmp_path / "g.fa", deletions=True)
    expected = values_of(tmp_path / "y.tsv")
    keys = list(zip(found["pos"], found["alt"]))
    assert keys == list(expected) and not any(found["reason"])
    values = found[["predicted_REF", "predicted_ALT", "difference"]].to_numpy()
    assert values == pytest.approx(np.array(list(expected.values())), abs=1e-5)
    skipped = model.saturate("short:2-3", tmp_path / "g.fa")
    assert {*skipped["reason"]} == {SKIPPED} and skipped["difference"].isna().all()
    assert dnadiff.plot.heat_map(found).shape == (1, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("L2=true", "L2 applies to a pretrained model"),
        ("dependency=d.tsv", "dependency applies to a pretrained model"),
        ("stranded=true", "stranded applies to a pretrained model"),
        ("sites_per_window=2", "sites_per_window applies to a pretrained model"),
        ("percentile=true", "percentile applies to a pretrained model"),
        ("calibrate_indels=true", "calibrate_indels applies to a pretrained model"),
    ],
)
def test_keys_of_pretrained_models_are_refused(fine_tuned, cli, tmp_path, given, message):
    status, _, err = cli("variants", *fine_tuned(MEAN_HEAD), given)
    assert (
        status == 1
        and f"{message}, and run is a fine-tuned run; leave {given.partition('=')[0]} out" in err
    )
    assert not (tmp_path / "y.tsv").exists()
