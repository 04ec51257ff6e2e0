import csv
import json
import math
import re

import numpy as np
import pytest
import torch

from dnadiff.data.records import padded_batches, pieces
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics import scores
from dnadiff.genomics.information import by_length
from dnadiff.jobs.journal import ResumableOutput
from dnadiff.score import score
from dnadiff.supervised.items import Items, strand_batches
from dnadiff.weights import checkpoint


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
    status, out, err = cli(
        "score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv", "num_draws=16"
    )
    assert status == 0, err
    found = rows(tmp_path / "s.tsv")
    assert list(found) == ["long", "short", "gaps", "unknown", "random"]
    assert [(r["length"], r["counted"]) for r in found.values()] == [
        ("210", "210"),
        ("12", "12"),
        ("21", "14"),
        ("4", "0"),
        ("25", "25"),
    ]
    for row in found.values():
        if row["name"] == "unknown":
            assert row["nats_per_base"] == row["se_mc"] == "nan" and float(row["total_bits"]) == 0
        else:
            nats = float(row["nats_per_base"])
            assert float(row["bits_per_base"]) == pytest.approx(nats / math.log(2), abs=1e-5)
            assert float(row["total_bits"]) == pytest.approx(
                nats / math.log(2) * int(row["counted"]), abs=1e-3
            )
            assert float(row["se_mc"]) > 0
    assert float(found["random"]["bits_per_base"]) > float(
        found["long"]["bits_per_base"]
    )  # the training genome repeats ACGTTGA
    about = json.loads((tmp_path / "s.tsv.json").read_text())
    for name, nats in (("-log p per base", "nats_per_base"), ("se_mc", "se_mc")):
        bits = about["bits_per_base" if nats == "nats_per_base" else "se_mc_bits"]
        assert bits == pytest.approx(about[nats] / math.log(2))
        assert re.search(rf"{name} +{bits:.4f} bits, {about[nats]:.4f} nats", out)
    assert list(about["columns"]) == list(found["long"]) and about["columns"]["se_mc"].endswith(
        "in nats"
    )
    assert "files are in s.tsv" in out


def test_the_command_is_a_function_that_returns_numbers_and_rows(
    trained, records, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = score(checkpoint=str(trained), input="x.fa", output="s.tsv", num_draws=2)
    assert found.content == json.loads((tmp_path / "s.tsv.json").read_text())
    assert found.settings["num_draws"] == 2 and list(found.frame.name)[:2] == ["long", "short"]


def test_a_file_without_a_countable_base_gets_its_nan_rows(cli, trained, tmp_path):
    (tmp_path / "n.fa").write_bytes(
        b"\xef\xbb\xbf>a\nNNNN\n>b\nRYN\n"
    )  # with a byte order mark, as `compress` reads too
    status, out, err = cli("score", f"checkpoint={trained}", "input=n.fa", "output=s.tsv")
    assert status == 0, err
    found = rows(tmp_path / "s.tsv")
    assert [found[name]["bits_per_base"] for name in "ab"] == ["nan", "nan"] and found["a"][
        "counted"
    ] == "0"
    assert "0 of 7" in out


def test_scores_do_not_depend_on_the_batch(cli, trained, records, tmp_path):
    for size in (1, 3, 32):
        assert (
            cli(
                "score",
                f"checkpoint={trained}",
                "input=x.fa",
                f"output={size}.tsv",
                f"batch_size={size}",
            )[0]
            == 0
        )
    one, *others = [rows(tmp_path / f"{size}.tsv") for size in (1, 3, 32)]
    for other in others:
        for name in ("long", "short", "gaps", "random"):
            assert float(other[name]["total_bits"]) == pytest.approx(
                float(one[name]["total_bits"]), rel=1e-4
            )


def test_the_score_of_a_short_record_is_its_exact_nelbo_within_the_error(
    cli, trained, records, tmp_path
):
    assert (
        cli("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv", "num_draws=256")[0] == 0
    )
    loaded = checkpoint.load(trained)
    ids = torch.from_numpy(loaded.tokenizer.encode("ACGTTGAACGTT")).long()[None]
    exact = float(likelihood.exact_nelbo(loaded.denoiser, loaded.process, ids))
    row = rows(tmp_path / "s.tsv")["short"]
    assert 12 * float(row["nats_per_base"]) == pytest.approx(
        exact, abs=4 * 12 * float(row["se_mc"]) + 1e-4
    )


def scored_at_once(folder, path, window, batch_size, num_draws, seed):
    """The table of a file whose windows are all in memory, sorted by length into batches."""
    model, records = checkpoint.load(folder), read_sequences(path)
    emitted = model.tokenizer.vocab.is_emitted()
    ids = [torch.from_numpy(model.tokenizer.encode(r.sequence)) for r in records]
    cuts = [
        p
        for p in list(pieces([len(x) for x in ids], window))
        if emitted[ids[p.record][p.start : p.end].long()].any()
    ]
    batches, order = [], []
    for number, tokens, valid in padded_batches(
        [ids[p.record][p.start : p.end] for p in cuts], batch_size, model.tokenizer.vocab.pad_id
    ):
        batches.append(
            likelihood.WindowBatch(
                tokens, {"all": emitted[tokens]}, valid, rows=torch.tensor(number)
            )
        )
        order += number
    result = likelihood.estimate(model.denoiser, model.process, batches, num_draws, seed, 1)
    nats, variance, counted = np.zeros((3, len(ids)))
    for total, values in (
        (nats, result.per_sequence()),
        (variance, result.variance_mc()),
        (counted, result.tokens["all"]),
    ):
        np.add.at(total, [cuts[i].record for i in order], values)
    lines = ["name\tlength\tcounted\tnats_per_base\tbits_per_base\tse_mc\ttotal_bits\n"]
    for r, n, v, c in zip(records, nats.tolist(), variance.tolist(), counted.tolist()):
        rates = (n / c, n / c / math.log(2), math.sqrt(v) / c) if c else [math.nan] * 3
        lines.append(
            "\t".join(
                [
                    r.name,
                    str(len(r.sequence)),
                    f"{c:.0f}",
                    *(f"{x:.6f}" for x in (*rates, n / math.log(2))),
                ]
            )
            + "\n"
        )
    return "".join(lines)


@pytest.mark.parametrize(("window", "batch_size"), [(64, 32), (10, 3)])
def test_the_table_is_that_of_all_windows_at_once(
    cli, trained, records, tmp_path, window, batch_size
):
    status, _, err = cli(
        "score",
        f"checkpoint={trained}",
        "input=x.fa",
        "output=s.tsv",
        f"window={window}",
        f"batch_size={batch_size}",
    )
    assert status == 0, err
    assert (tmp_path / "s.tsv").read_text() == scored_at_once(
        trained, records, window, batch_size, 8, 1
    )


def test_groups_of_windows_do_not_change_a_number(cli, trained, records, tmp_path):
    """512 windows are a group."""
    letters = "".join(np.random.default_rng(0).choice(list("ACGTN"), 5000))
    (tmp_path / "y.fa").write_text(f">a\n{letters[:900]}\n>b\n{letters}\n")
    args = ["window=8", "batch_size=32", "num_draws=2", "output=s.tsv"]
    status, _, err = cli("score", f"checkpoint={trained}", "input=y.fa", *args)
    assert status == 0, err
    found, expected = (
        [float(x) for line in text.splitlines()[1:] for x in line.split("\t")[1:]]
        for text in (
            (tmp_path / "s.tsv").read_text(),
            scored_at_once(trained, tmp_path / "y.fa", 8, 32, 2, 1),
        )
    )
    assert found == pytest.approx(expected, rel=1e-6, abs=2e-6)


def test_regions_are_scored_as_their_sequences(cli, trained, records, tmp_path):
    (tmp_path / "r.gtf").write_text(
        "long\tx\tCDS\t3\t42\t.\t-\t.\t\nrandom\tx\tgene\t1\t9\t.\t+\t.\t\n"
    )
    letters = read_sequences(records)[0].sequence.decode()[2:42]
    (tmp_path / "y.fa").write_text(f">long:3-42(-)\n{reverse_complement(letters)}\n")
    of_genome = ("genome=x.fa", "regions=r.gtf", "feature=CDS")
    for name, args in (
        ("a", of_genome),
        ("b", ("input=y.fa",)),
        ("c", ("genome=x.fa", "regions=long:3-42:-")),
    ):
        status, _, err = cli("score", f"checkpoint={trained}", *args, f"output={name}.tsv")
        assert status == 0, err
    assert (
        (tmp_path / "a.tsv").read_bytes()
        == (tmp_path / "b.tsv").read_bytes()
        == (tmp_path / "c.tsv").read_bytes()
    )


def test_a_spliced_transcript_is_scored_and_embedded_as_its_sequence(
    cli, trained, records, tmp_path
):
    (tmp_path / "t.bed").write_text("long\t2\t42\t.\t0\t-\t2\t42\t0\t2\t9,20\t0,20\n")
    letters = read_sequences(records)[0].sequence.decode()
    spliced = reverse_complement(letters[2:11] + letters[22:42])
    (tmp_path / "y.fa").write_text(f">long:3-42(-)\n{spliced}\n")
    of_genome = ("genome=x.fa", "regions=t.bed", "spliced=true")
    for name, args in (("a", of_genome), ("b", ("input=y.fa",))):
        for kind, output in (("score", f"{name}.tsv"), ("embed", f"{name}.npz")):
            status, _, err = cli(kind, f"checkpoint={trained}", *args, f"output={output}")
            assert status == 0, err
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "b.tsv").read_bytes()
    found, expected = (np.load(tmp_path / f"{name}.npz") for name in "ab")
    np.testing.assert_array_equal(found["embeddings"], expected["embeddings"])
    assert [found["start"][0], found["end"][0], found["strand"][0]] == [2, 42, "-"]
    status, _, err = cli(
        "score", f"checkpoint={trained}", *of_genome, "output=c.tsv", "per_base=c.bedgraph"
    )
    assert status == 1 and "not of spliced=true" in err and not (tmp_path / "c.tsv").exists()


def test_names_of_regions_are_the_last_column(cli, trained, records, tmp_path):
    (tmp_path / "r.gtf").write_text(
        'long\tx\tCDS\t3\t42\t.\t-\t.\tgene_id "thrA";\nrandom\tx\tCDS\t1\t9\t.\t+\t.\t\n'
    )
    (tmp_path / "r.bed").write_text("long\t2\t42\t.\t0\t-\nrandom\t0\t9\t.\t0\t+\n")
    for name, regions in (("named", "r.gtf"), ("unnamed", "r.bed")):
        status, _, err = cli(
            "score",
            f"checkpoint={trained}",
            "genome=x.fa",
            f"regions={regions}",
            f"output={name}.tsv",
        )
        assert status == 0, err
    named, unnamed = (
        (tmp_path / f"{name}.tsv").read_text().splitlines() for name in ("named", "unnamed")
    )
    assert named == [f"{line}\t{last}" for line, last in zip(unnamed, ("region_name", "thrA", ""))]


def test_other_settings_cannot_be_resumed(cli, trained, records, tmp_path, monkeypatch):
    def killed(self, convert):
        raise KeyboardInterrupt

    monkeypatch.setattr(ResumableOutput, "finish", killed)
    status, _, err = cli("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv")
    assert status == 130 and "to resume it: python -m dnadiff.score checkpoint=" in err
    assert "input=x.fa output=s.tsv resume=true" in err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    status, _, err = cli("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv")
    assert status == 1 and "s.tsv is unfinished (5 records); set resume=true" in err
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    status, _, err = cli(
        "score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv", "resume=true"
    )
    assert status == 1 and "s.tsv was started with input=" in err


def test_a_finished_table_of_other_settings_is_not_taken_for_this_one(
    cli, trained, records, tmp_path
):
    run = ("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv")
    assert cli(*run)[0] == 0
    about = json.loads((tmp_path / "s.tsv.json").read_text())
    assert about["records"] == 5 and about["settings"]["num_draws"] == 8
    before = (tmp_path / "s.tsv").read_bytes()
    status, out, err = cli(*run, "resume=true")
    assert status == 0 and "complete already" in out and "files are in" not in out
    for other in ("num_draws=4", "seed=2", "window=16"):
        status, _, err = cli(*run, other, "resume=true")
        assert (
            status == 1
            and "s.tsv exists, and s.tsv.json names other settings or bytes: start over" in err
        )
    assert (tmp_path / "s.tsv").read_bytes() == before
    (tmp_path / "s.tsv").write_text("changed\n")
    assert cli(*run, "resume=true")[0] == 1
    assert cli(*run, "resume=true", "overwrite=true")[0] == 0
    assert (tmp_path / "s.tsv").read_bytes() == before


def test_an_old_table_is_not_taken_for_a_new_one_that_was_killed_at_its_beginning(
    cli, trained, records, tmp_path, monkeypatch
):
    def killed(self, *args, **notes):
        raise KeyboardInterrupt

    (tmp_path / "s.tsv").write_text("of an earlier run\n")
    run = ("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv")
    monkeypatch.setattr(ResumableOutput, "append", killed)
    assert cli(*run, "overwrite=true")[0] == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert cli(*run, "resume=true")[0] == 0
    assert (tmp_path / "s.tsv").read_text().startswith("name\tlength")


def test_a_new_table_that_failed_at_its_beginning_can_be_started_again(
    cli, trained, records, tmp_path, monkeypatch
):
    run = ("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv")
    with monkeypatch.context() as patch:
        patch.setattr(
            scores.ScoreJob,
            "results",
            lambda *args: (_ for _ in ()).throw(RuntimeError("out of memory")),
        )
        assert cli(*run, "per_base=t.bedgraph")[0] == 1
    monkeypatch.chdir(tmp_path)
    assert cli(*run, "batch_size=1")[0] == 0
    assert not list(tmp_path.glob(".*"))


def test_a_table_of_an_earlier_version_and_files_of_others_are_kept(
    cli, trained, records, tmp_path
):
    run = ("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv")
    (tmp_path / "s.tsv").write_text("old")
    status, _, err = cli(*run, "resume=true")
    assert (
        status == 1
        and "s.tsv exists, and there is no s.tsv.json (earlier versions wrote none)" in err
    )
    (tmp_path / "s.tsv").rename(tmp_path / "s.tsv.json")
    status, _, err = cli(*run)
    assert (
        status == 1
        and "s.tsv.json exists" in err
        and (tmp_path / "s.tsv.json").read_text() == "old"
    )


def test_a_record_of_n_alone_has_no_mean(cli, trained, tmp_path):
    (tmp_path / "x.fa").write_text(">n\n" + "N" * 20 + "\n")
    assert cli("score", f"checkpoint={trained}", "input=x.fa", "output=s.tsv")[0] == 0
    about = json.loads((tmp_path / "s.tsv.json").read_text())
    assert about["counted"] == 0 and about["bits_per_base"] is None and about["se_mc_bits"] is None


def test_windows_are_few_equal_and_cover_everything():
    cuts = list(pieces([10, 3, 0, 8], 4))
    assert [tuple(c) for c in cuts] == [
        (0, 0, 3),
        (0, 3, 6),
        (0, 6, 10),
        (1, 0, 3),
        (3, 0, 4),
        (3, 4, 8),
    ]


def test_batches_are_padded_behind_and_say_so():
    sequences = [torch.arange(n) + 7 for n in (2, 4, 4, 1)]
    first, second = padded_batches(sequences, 2, 4)
    assert first.number == [1, 2] and first.valid is None
    assert second.number == [0, 3] and second.ids.tolist() == [[7, 8], [7, 4]]
    np.testing.assert_array_equal(second.valid, [[True, True], [True, False]])


def test_a_batch_is_bounded_by_its_tokens_also_beside_one_long_record():
    """One record of 200,000 bases and 18 of 24, which predict and embed padded to 3.8 million."""
    lengths = [24] * 9 + [200_000] + [24] * 9
    sequences = [torch.full((length,), 7, dtype=torch.uint8) for length in lengths]
    shapes = [tuple(ids.shape) for _, ids, _ in padded_batches(sequences, 32, 4)]
    assert shapes == [(1, 200_000), (18, 24)]
    assert [
        len(chosen) for chosen, *_ in by_length(sequences[9:10] * 3, 32, torch.device("cpu"))
    ] == [1, 1, 1]
    items = Items.from_sequences([s.numpy() for s in sequences], [0] * 19, 4)
    found = list(strand_batches(items, 32, DNATokenizer().vocab, True))
    assert [[tuple(b.ids.shape) for b in strands] for _, strands in found] == [
        [(18, 24)] * 2,
        [(1, 200_000)] * 2,
    ]
    assert torch.cat([number for number, _ in found]).tolist() == [*range(9), *range(10, 19), 9]


@pytest.mark.parametrize("command", ["score", "compress", "decompress"])
def test_help_is_for_newcomers(cli, command):
    status, out, _ = cli(command, "--help")
    assert (
        status == 0
        and f"python -m dnadiff.{command} checkpoint=RUN" in out
        and "_target_" not in out
    )


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
        (["input=x.fa", "resume=true"], "resume=true needs output="),
        (
            ["input=x.fa", "stranded=true"],
            "stranded is for the information content of each base; give per_base= too, or leave "
            "stranded out",
        ),
        (["input=x.fa", "spacing=8"], "spacing is for the information content of each base"),
        (["input=x.fa", "regions=long"], "regions 'long' needs genome=g.fa"),
        (["genome=x.fa"], "genome x.fa needs regions="),
        (["genome=x.fa", "regions=chr1:1-4"], "no record is called chr1"),
        (["genome=x.fa", "regions=short:1-40"], "ends beyond short"),
        (["input=x.fa", "per_base=x.wig"], "per_base x.wig has an unknown extension"),
        (
            ["input=x.fa", "per_base=x.bdg", "spacing=0"],
            "spacing 0 must be an integer of at least 1",
        ),
        (["input=x.fa", "output=x.bdg", "per_base=x.bdg"], "per_base and output are the same file"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(cli, trained, records, tmp_path, args, message):
    (tmp_path / "plain.fa").write_text("ACGT\n")
    (tmp_path / "twice.fa").write_text(">a\nACGT\n>a\nACGT\n")
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli("score", f"checkpoint={trained}", *args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before
