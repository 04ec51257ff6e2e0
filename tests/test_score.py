import csv
import math

import numpy as np
import pytest
import torch

from dnadiff import checkpoint, likelihood
from dnadiff.data.genome import pieces


def rows(path):
    with path.open() as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}


@pytest.fixture
def records(tmp_path):
    text = {
        "long": "ACGTTGA" * 30,
        "short": "acgttgaACGTT",
        "gaps": "ACGTTGANNNNACGTTGARYK",
        "unknown": "NNNN",
        "random": "GATTACAGGATCCATGCAAGTCAGT",
    }
    path = tmp_path / "x.fa"
    path.write_text("".join(f">{name} some words\n{sequence}\n" for name, sequence in text.items()))
    return path


def test_every_record_has_its_likelihood_and_its_error(cli, trained, records, tmp_path):
    status, out, err = cli("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv", "num_draws=16")
    assert status == 0, err
    found = rows(tmp_path / "s.tsv")
    assert list(found) == ["long", "short", "gaps", "unknown", "random"]
    assert [(r["length"], r["counted"]) for r in found.values()] == [("210", "210"), ("12", "12"), ("21", "14"), ("4", "0"), ("25", "25")]
    for row in found.values():
        if row["name"] == "unknown":
            assert row["nats_per_base"] == row["se_mc"] == "nan" and float(row["total_bits"]) == 0
        else:
            nats = float(row["nats_per_base"])
            assert float(row["bits_per_base"]) == pytest.approx(nats / math.log(2), abs=1e-5)
            assert float(row["total_bits"]) == pytest.approx(nats / math.log(2) * int(row["counted"]), abs=1e-3)
            assert float(row["se_mc"]) > 0
    assert float(found["random"]["bits_per_base"]) > float(found["long"]["bits_per_base"])  # the training genome repeats ACGTTGA
    assert "bits per base" in out and "files are in s.tsv" in out


def test_a_file_without_a_countable_base_gets_its_nan_rows(cli, trained, tmp_path):
    (tmp_path / "n.fa").write_bytes(b"\xef\xbb\xbf>a\nNNNN\n>b\nRYN\n")  # with a byte order mark, as `compress` reads too
    status, out, err = cli("score", f"checkpoint={trained}", "input=n.fa", "output=s.tsv")
    assert status == 0, err
    found = rows(tmp_path / "s.tsv")
    assert [found[name]["bits_per_base"] for name in "ab"] == ["nan", "nan"] and found["a"]["counted"] == "0"
    assert "0 of 7" in out


def test_scores_do_not_depend_on_the_batch(cli, trained, records, tmp_path):
    for size in (1, 3, 32):
        assert cli("score", f"checkpoint={trained}", "input=x.fa", f"output={size}.tsv", f"batch_size={size}")[0] == 0
    one, *others = [rows(tmp_path / f"{size}.tsv") for size in (1, 3, 32)]
    for other in others:
        for name in ("long", "short", "gaps", "random"):
            assert float(other[name]["total_bits"]) == pytest.approx(float(one[name]["total_bits"]), rel=1e-4)


def test_the_score_of_a_short_record_is_its_exact_nelbo_within_the_error(cli, trained, records, tmp_path):
    assert cli("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv", "num_draws=256")[0] == 0
    loaded = checkpoint.load(trained)
    ids = torch.from_numpy(loaded.tokenizer.encode("ACGTTGAACGTT")).long()[None]
    exact = float(likelihood.exact_nelbo(loaded.denoiser, loaded.process, ids))
    row = rows(tmp_path / "s.tsv")["short"]
    assert 12 * float(row["nats_per_base"]) == pytest.approx(exact, abs=4 * 12 * float(row["se_mc"]) + 1e-4)


def test_windows_are_few_equal_and_cover_everything():
    cuts = pieces.cut([10, 3, 0, 8], 4)
    assert [tuple(c) for c in cuts] == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3), (3, 0, 4), (3, 4, 8)]
    with pytest.raises(ValueError, match="window 0 must be an integer of at least 1"):
        pieces.cut([3], 0)


def test_batches_are_padded_behind_and_say_so():
    sequences = [torch.arange(n) + 7 for n in (2, 4, 4, 1)]
    first, second = pieces.batches(sequences, 2, 4)
    assert first.number == [1, 2] and first.valid is None
    assert second.number == [0, 3] and second.ids.tolist() == [[7, 8], [7, 4]]
    np.testing.assert_array_equal(second.valid, [[True, True], [True, False]])


@pytest.mark.parametrize("command", ["score", "compress", "decompress"])
def test_help_is_for_newcomers(cli, command):
    status, out, _ = cli(command, "--help")
    assert status == 0 and f"python -m dnadiff.{command} checkpoint=RUN" in out and "_target_" not in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["input=none.fa"], "none.fa does not exist"),
        (["input=plain.fa"], "plain.fa is not FASTA"),
        ([], "input is missing: give input=..."),
        (["input=x.fa", "num_draws=few"], "num_draws 'few' must be an integer"),
        (["input=x.fa", "num_draws=3"], "num_draws 3 must be even"),
        (["input=x.fa", "seed=abc"], "seed 'abc' must be an integer"),
        (["input=twice.fa"], "has the name of an earlier record"),
        (["input=x.fa", "window=0"], "window 0 must be an integer of at least 1"),
        (["input=x.fa", "batch_size=0"], "batch_size 0 must be an integer of at least 1"),
        (["input=x.fa", "output=x.fa"], "x.fa exists; set overwrite=true"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(cli, trained, records, tmp_path, args, message):
    (tmp_path / "plain.fa").write_text("ACGT\n")
    (tmp_path / "twice.fa").write_text(">a\nACGT\n>a\nACGT\n")
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli("score", f"checkpoint={trained}", *args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before
