"""The command line `predict`, from the run of `finetune` that saves the networks."""

import csv
import functools
import gzip
import hashlib
import json
import math
import os
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file

import dnadiff
from dnadiff import finetune
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.table import has_page_checksums
from dnadiff.formats.tracks import mean_coverage
from dnadiff.jobs.journal import ResumableOutput
from dnadiff.options.command import compose
from dnadiff.supervised import predictions
from dnadiff.supervised.ensemble import Query, chunks
from dnadiff.supervised.finetuning import print_tables
from dnadiff.supervised.predictions import window_bounds
from dnadiff.weights.loaded import build_denoiser

DIT = (
    "backbone=dit",
    "backbone.d_model=16",
    "backbone.n_heads=2",
    "backbone.n_layers=1",
    "data.length=40",
)
SETTINGS = (
    "epochs=2",
    "batch_size=8",
    "lr=0.01",
    "lr_scratch=0.01",
    "kmer=1",
    "scratch=false",
    "accelerator=cpu",
)


def write_table(path: Path, rows) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("sequence", "label", "split"), *rows])


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A checkpoint, a table with its own split, and the run folder of two seeds fine-tuned on
    it."""
    folder, random = tmp_path_factory.mktemp("predict"), np.random.default_rng(0)
    config = compose("train", list(DIT))
    torch.manual_seed(0)
    state = {
        f"denoiser.{name}": tensor
        for name, tensor in build_denoiser(config, DNATokenizer())[0].state_dict().items()
    }
    described = {"config": config, "tokenizer": DNATokenizer().config()}
    torch.save(
        {"state_dict": state, "hyper_parameters": described, "global_step": 7}, folder / "tiny.ckpt"
    )
    rows = []
    for i in range(150):
        share = [0.3, 0.2, 0.2, 0.3] if i % 2 else [0.2, 0.3, 0.3, 0.2]
        letters = random.choice(list("ACGT"), random.integers(20, 41), p=share)
        rows.append(
            ("".join(letters), "poor" if i % 2 else "rich", "test" if i % 3 == 0 else "train")
        )
    write_table(folder / "table.csv", rows)
    write_table(folder / "test.csv", [row for row in rows if row[2] == "test"])
    run_finetune(folder, folder / "run", "seeds=2")
    return folder


def run_finetune(world: Path, run_dir: Path, *overrides: str) -> None:
    task = ("task=csv", f"task.path={world / 'table.csv'}", "task.split_column=split", *SETTINGS)
    os.environ.pop("HYDRA_FULL_ERROR", None)
    finetune.main(
        [f"checkpoint={world / 'tiny.ckpt'}", f"hydra.run.dir={run_dir}", *task, *overrides],
    )


@pytest.fixture
def predict(cli, world):
    """predict("input=x.fa") -> (exit status, output, errors)."""
    return lambda *args: cli("predict", f"checkpoint={world / 'run'}", "accelerator=cpu", *args)


def rows_of(path: Path) -> list[dict[str, str]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def test_predictions_of_the_test_items_reproduce_the_reported_metrics_exactly(
    predict, world, tmp_path
):
    status, out, err = predict(f"input={world / 'test.csv'}", "label_column=label", "output=p.tsv")
    assert status == 0, err
    reported = json.loads((world / "run" / "finetune.json").read_text())["models"]["combination"]
    content = json.loads((tmp_path / "p.tsv.json").read_text())
    found = content["metrics"]["each_seed"]
    assert 0.5 < reported["accuracy"] < 1  # neither trivial
    assert found["accuracy"]["per_seed"] == reported["per_seed"]
    for name in ("accuracy", "mcc", "auroc", "f1", "auprc"):
        assert (
            found[name]["per_seed"] == reported["metrics"][name]["per_seed"]
            and found[name]["value"] == reported["metrics"][name]["value"]
        )
    saved = [
        json.loads((world / "run" / "models" / f"seed_{seed}" / "model.json").read_text())
        for seed in (1, 2)
    ]
    assert [one["metrics"]["accuracy"] for one in saved] == reported["per_seed"] and saved[0][
        "batch_size"
    ] == 32
    assert f"{reported['accuracy']:.4f}" in out and "AUROC" in out
    rows = rows_of(tmp_path / "p.tsv")
    assert len(rows) == content["predictions"] == 50 and sum(content["predicted"].values()) == 50
    right = [row["predicted"] == row["label"] for row in rows]
    assert content["metrics"]["averaged"]["accuracy"]["value"] == pytest.approx(np.mean(right))


def test_the_object_of_load_gives_the_numbers_of_the_table(predict, world, tmp_path, capfd):
    letters = [row["sequence"] for row in csv.DictReader((world / "test.csv").open())]
    assert (
        predict(
            f"input={world / 'test.csv'}", "per_seed=true", "name_column=split", "output=p.tsv"
        )[0]
        == 0
    )
    rows = rows_of(tmp_path / "p.tsv")
    model = dnadiff.load(world / "run", device="cpu")
    found = model.predict(letters, progress=True)
    assert "predict 100%" in capfd.readouterr().err
    assert (
        model.classes == ("poor", "rich") and model.seeds == (1, 2) and "seeds 1, 2" in repr(model)
    )
    assert [row["predicted"] for row in rows] == found.predicted and {
        row["name"] for row in rows
    } == {"test"}
    of_seeds = [
        [[np.float32(row[f"log_p_{c}_seed_{s}"]) for c in model.classes] for row in rows]
        for s in model.seeds
    ]
    np.testing.assert_array_equal(np.array(of_seeds), found.each_seed)
    np.testing.assert_allclose(
        [[float(row[f"p_{c}"]) for c in model.classes] for row in rows], found.probs, rtol=1e-5
    )
    np.testing.assert_allclose([float(row["spread"]) for row in rows], found.spread, atol=1e-5)
    np.testing.assert_allclose(
        found.probs[:3], model.predict(letters[:3], batch_size=1).probs, atol=1e-6
    )
    frame = found.to_frame()
    assert list(frame.predicted) == found.predicted and list(frame.columns) == [
        "predicted",
        *(f"p_{name}" for name in found.names),
        "spread",
    ]


def test_long_records_are_cut_into_windows_and_written_as_a_track(predict, world, tmp_path):
    letters = "".join(np.random.default_rng(1).choice(list("ACGTN"), 103))
    (tmp_path / "x.fa").write_text(f">one\n{letters}\n>two some words\n{letters[:17].lower()}\n")
    args = (
        "input=x.fa",
        "window=30",
        "stride=20",
        "track=t.bedgraph",
        "track_class=rich",
        "output=p.tsv.gz",
    )
    status, out, err = predict(*args)
    assert status == 0, err
    rows = rows_of(tmp_path / "p.tsv.gz")
    places = [(row["name"], int(row["start"]), int(row["end"])) for row in rows]
    assert places == [
        ("one", 0, 30),
        ("one", 20, 50),
        ("one", 40, 70),
        ("one", 60, 90),
        ("one", 73, 103),
        ("two", 0, 17),
    ]
    model = dnadiff.load(world / "run", device="cpu")
    alone = model.predict([letters[start:end] for _, start, end in places]).probs[:, 1]
    np.testing.assert_allclose([float(row["p_rich"]) for row in rows], alone, atol=1e-6)
    track = np.full(120, np.nan)
    for line in (tmp_path / "t.bedgraph").read_text().splitlines():
        chrom, start, end, value = line.split("\t")
        where = slice(int(start), int(end)) if chrom == "one" else slice(103, 103 + int(end))
        assert np.isnan(track[where]).all()
        track[where] = float(value)
    for base in range(103):
        covering = [
            p
            for p, (name, start, end) in zip(alone, places)
            if name == "one" and start <= base < end
        ]
        assert track[base] == pytest.approx(np.mean(covering), abs=1e-5)
    assert track[103:] == pytest.approx(alone[-1], abs=1e-5) and "p.tsv.gz and t.bedgraph" in out


def test_regions_have_genome_coordinates_in_the_table_and_the_track(predict, world, tmp_path):
    genome = "AACCGGTTACGT"
    (tmp_path / "g.fa").write_text(f">c1\nTTTT\n>c2\n{genome}\n")
    (tmp_path / "r.bed").write_text("c2\t1\t9\tgene\t0\t-\nc2\t6\t12\tb\t0\t.\nc1\t0\t4\tc\t0\t.\n")
    args = ("genome=g.fa", "regions=r.bed", "window=4", "stride=3", "track_class=rich")
    status, _, err = predict(*args, "track=t.bedgraph", "output=p.tsv", "report=p.html")
    assert status == 0, err
    page = (tmp_path / "p.html").read_text()
    assert "6 predictions: " in page and "probability of rich" in page
    rows = rows_of(tmp_path / "p.tsv")
    assert list(rows[0])[:6] == ["chrom", "start", "end", "strand", "name", "length"]
    places = [(row["chrom"], int(row["start"]), int(row["end"]), row["strand"]) for row in rows]
    assert places == [  # windows of a region on strand - begin at its end in the genome
        ("c2", 5, 9, "-"),
        ("c2", 2, 6, "-"),
        ("c2", 1, 5, "-"),
        ("c2", 6, 10, "."),
        ("c2", 8, 12, "."),
        ("c1", 0, 4, "."),
    ]
    model = dnadiff.load(world / "run", device="cpu")
    turned = {"A": "T", "C": "G", "G": "C", "T": "A"}
    letters = [
        "".join(turned[base] for base in genome[start:end][::-1])
        if strand == "-"
        else {"c1": "TTTT", "c2": genome}[chrom][start:end]
        for chrom, start, end, strand in places
    ]
    probs = model.predict(letters).probs[:, 1]
    np.testing.assert_allclose([float(row["p_rich"]) for row in rows], probs, atol=1e-6)
    lines = [line.split("\t") for line in (tmp_path / "t.bedgraph").read_text().splitlines()]
    found = {(c, i): float(v) for c, a, b, v in lines for i in range(int(a), int(b))}
    assert [(c, int(a)) for c, a, _, _ in lines] == sorted((c, int(a)) for c, a, _, _ in lines)
    for chrom, size in (("c1", 4), ("c2", 12)):
        for base in range(size):
            covering = [p for (c, a, b, _), p in zip(places, probs) if c == chrom and a <= base < b]
            assert bool(covering) == ((chrom, base) in found)
            if covering:
                assert found[chrom, base] == pytest.approx(np.mean(covering), abs=1e-5)
    pyBigWig = pytest.importorskip("pyBigWig", reason="extra tracks: pyBigWig is not installed")
    status, _, err = predict(*args, "track=t.bw", "output=q.tsv")
    assert status == 0, err
    with closing(pyBigWig.open(str(tmp_path / "t.bw"))) as track:
        assert track.chroms() == {"c1": 4, "c2": 12}
        values = {(c, i): v for c in track.chroms() for i, v in enumerate(track.values(c, 0, 4))}
    for (chrom, base), value in values.items():
        assert math.isnan(value) == ((chrom, base) not in found)
        assert math.isnan(value) or value == pytest.approx(found[chrom, base], rel=1e-5)


def test_windows_of_n_have_no_prediction_and_enter_neither_counts_nor_tracks(
    predict, world, tmp_path
):
    random = np.random.default_rng(5)
    left, right = ("".join(random.choice(list("ACGT"), 80)) for _ in range(2))
    (tmp_path / "x.fa").write_text(f">c1\n{left}{'N' * 120}{right}\n>gap\n{'n' * 50}\n")
    args = ("input=x.fa", "window=40", "stride=40", "per_seed=true")
    track = ("track=t.bedgraph", "track_class=rich")
    status, out, err = predict(*args, *track, "output=p.tsv")
    assert status == 0 and "5 of 9 windows have no known base (all N) and no prediction" in err
    rows = rows_of(tmp_path / "p.tsv")
    gaps = [row for row in rows if row["predicted"] == "nan"]
    assert [(row["name"], row["start"]) for row in gaps] == [
        ("c1", "80"),
        ("c1", "120"),
        ("c1", "160"),
        ("gap", "0"),
        ("gap", "10"),
    ]
    numbers = [cell for row in gaps for name, cell in row.items() if name[:2] in ("p_", "lo", "sp")]
    assert set(numbers) == {"nan"}
    content = json.loads((tmp_path / "p.tsv.json").read_text())
    assert (content["predictions"], content["without_known_base"]) == (9, 5)
    assert sum(content["predicted"].values()) == 4 and "100.0 %" not in out.replace("4  100.0", "")
    places = [line.split("\t") for line in (tmp_path / "t.bedgraph").read_text().splitlines()]
    assert [(c, int(s), int(e)) for c, s, e, _ in places] == [
        ("c1", start, start + 40) for start in (0, 40, 200, 240)
    ]
    assert predict(*args, "output=p.parquet")[0] == 0
    stored = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert (
        stored.column("predicted").null_count == 5
        and np.isnan(stored.column("p_rich").to_numpy()).sum() == 5
    )


def test_rows_of_n_do_not_change_the_metrics(predict, world, tmp_path):
    rows = [
        [row[key] for key in ("sequence", "label", "split")]
        for row in csv.DictReader((world / "test.csv").open())
    ]
    for name, written in (("a", rows), ("b", [["N" * 30, "rich", "test"], *rows])):
        write_table(tmp_path / f"{name}.csv", written)
        assert predict(f"input={name}.csv", "label_column=label", f"output={name}.tsv")[0] == 0
    alone, with_gap = (
        json.loads((tmp_path / f"{name}.tsv.json").read_text()) for name in ("a", "b")
    )
    assert with_gap["predictions"] == alone["predictions"] + 1
    assert with_gap["predicted"] == alone["predicted"]
    for key in ("each_seed", "averaged"):
        found, expected = (each["metrics"][key]["auroc"]["value"] for each in (with_gap, alone))
        assert found == pytest.approx(expected)
    write_table(tmp_path / "n.csv", [["N" * 30, "rich", "test"]] * 3)
    status, out, _ = predict("input=n.csv", "label_column=label", "output=n.tsv")
    assert status == 0 and "nan %" in out
    assert json.loads((tmp_path / "n.tsv.json").read_text())["metrics"] is None


def test_python_predicts_nothing_for_a_sequence_of_n(world, caplog):
    model = dnadiff.load(world / "run", device="cpu")
    found = model.predict(["ACGTTGA" * 4, "NNNN", "NNNA"])
    assert np.isnan(found.probs).all(1).tolist() == [False, True, False]
    assert found.labels[1] == -1 and np.isnan(found.predicted[1]) and np.isnan(found.spread[1])
    assert found.to_frame().predicted.isna().tolist() == [False, True, False]
    assert sum(found.tally().values()) == 2
    assert caplog.messages == [
        "1 of 3 sequences have no known base (all N) and no prediction (nan)"
    ]


def test_windows_cover_every_base_and_start_at_multiples_of_the_stride():
    for length, window, stride in (
        (10, 4, 2),
        (11, 4, 3),
        (9, 4, 4),
        (4, 4, 1),
        (3, 4, 1),
        (12, 5, None),
        (9, None, None),
    ):
        bounds = list(window_bounds(length, window, stride))
        assert {base for start, end in bounds for base in range(start, end)} == set(
            range(length)
        ) and bounds == sorted(set(bounds))
        assert all(end - start == min(window or length, length) for start, end in bounds)
        assert all(start % (stride or window or 1) == 0 for start, _ in bounds[:-1])


def test_the_mean_of_overlapping_intervals():
    assert list(
        mean_coverage(np.array([0, 2, 8]), np.array([4, 6, 9]), np.array([1.0, 2.0, 5.0]))
    ) == [
        (0, 2, 1.0),
        (2, 4, 1.5),
        (4, 6, 2.0),
        (8, 9, 5.0),
    ]


def test_a_mean_of_small_probabilities_has_no_rounding_errors_of_large_ones():
    start = np.array([0, 100, 200, 300, 700])
    value = np.array([0.3, 0.1, 1e-20, 1e-18, 1e-30])
    expected = [
        (0, 100, 0.3),
        (100, 200, 0.2),
        (200, 300, 0.05),
        (300, 400, 5.05e-19),
        (400, 500, 1e-18),
        (700, 900, 1e-30),
    ]
    found = list(mean_coverage(start, start + 200, value))
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert np.allclose([one[2] for one in found], [one[2] for one in expected], rtol=1e-12, atol=0)


def test_chunks_bound_the_padded_size_and_can_be_resumed_at_each_of_them():
    queries = [Query(str(n), 0, n, np.zeros(n, np.uint8)) for n in (3, 5, 1, 30, 2, 2, 9)]
    found = list(chunks(queries, size=10))
    assert [[len(q.ids) for q in chunk] for chunk in found] == [[3, 5], [1], [30], [2, 2], [9]]
    done = 0
    for number, chunk in enumerate(found):
        assert list(chunks(queries, done, size=10)) == found[number:]
        done += len(chunk)


@pytest.mark.parametrize("name", ["p.tsv.gz", "p.parquet"])
def test_a_killed_command_resumes_to_the_same_bytes(predict, world, tmp_path, monkeypatch, name):
    monkeypatch.setattr(chunks, "__defaults__", (0, 400))
    args = (
        f"input={world / 'test.csv'}",
        "label_column=label",
        "track=t.bedgraph",
        "track_class=poor",
        f"output={name}",
    )
    files = (name, f"{name}.json", "t.bedgraph")
    assert predict(*args)[0] == 0
    expected = [(tmp_path / file).read_bytes() for file in files]
    if name.endswith(".parquet"):
        metadata = pyarrow.parquet.read_metadata(tmp_path / name)
        assert has_page_checksums(tmp_path / name, metadata, range(metadata.num_columns))
        assert pyarrow.parquet.read_table(tmp_path / name).column("label").to_pylist() == [
            row["label"] for row in csv.DictReader((world / "test.csv").open())
        ]
    append, finish, calls = ResumableOutput.append, ResumableOutput.finish, []

    def fail(self, *args, **notes):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(self, *args, **notes)

    monkeypatch.setattr(ResumableOutput, "append", fail)
    for file in files:
        (tmp_path / file).unlink()
    assert predict(*args)[0] == 130
    status, _, err = predict(*args)
    assert status == 1 and "is unfinished" in err and "set resume=true" in err
    assert predict(*args, "window=30", "resume=true")[0] == 1  # other settings
    monkeypatch.setattr(ResumableOutput, "append", append)
    monkeypatch.setattr(
        ResumableOutput, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert predict(*args, "resume=true")[0] == 130
    monkeypatch.setattr(ResumableOutput, "finish", finish)
    status, _, err = predict(*args, "resume=true")
    assert status == 0 and "resuming after" in err
    assert [(tmp_path / file).read_bytes() for file in files] == expected
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    status, out, _ = predict(*args, "resume=true")
    assert (
        status == 0
        and "is complete already" in out
        and [(tmp_path / file).read_bytes() for file in files] == expected
    )
    assert predict(*args, "window=30", "resume=true")[0] == 1  # other settings
    assert (
        predict(*args, "track_class=rich", "resume=true")[0] == 1
    )  # the track is of another class
    assert (
        predict(*args, f"track={tmp_path / 't.bedgraph'}", "resume=true")[0] == 0
    )  # the same file
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "t.bedgraph", tmp_path / "other")
    status, _, err = predict(*args, "track=other/t.bedgraph", "resume=true")
    assert status == 1 and "the track other/t.bedgraph is missing or of another class" in err
    (tmp_path / "t.bedgraph").unlink()
    assert predict(*args, "resume=true")[0] == 1  # the track is missing
    (tmp_path / name).write_bytes(expected[0] + b" ")
    (tmp_path / "t.bedgraph").write_bytes(expected[2])
    assert predict(*args, "resume=true")[0] == 1  # changed since
    assert predict(*args, "overwrite=true")[0] == 0


def test_a_process_that_is_killed_before_it_writes_the_json_file_is_completed(
    predict, world, tmp_path, monkeypatch
):
    args = (f"input={world / 'test.csv'}", "output=p.tsv")
    assert predict(*args)[0] == 0
    expected = (tmp_path / "p.tsv.json").read_bytes()
    table = hashlib.sha256((tmp_path / "p.tsv").read_bytes()).hexdigest()
    assert json.loads(expected)["sha256"] == table
    (tmp_path / "p.tsv.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(
            "dnadiff.jobs.runner.write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert predict(*args, "overwrite=true")[0] == 130
    assert predict(*args)[0] == 1 and predict(*args, "resume=true")[0] == 0
    assert (tmp_path / "p.tsv.json").read_bytes() == expected
    status, _, err = predict(*args, "track=t.bdg", "track_class=poor", "resume=true")
    assert status == 1 and not (tmp_path / "t.bdg").exists()
    assert "p.tsv is complete, but the track t.bdg is missing or of another class or run" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["input=absent.fa"], "input: absent.fa does not exist"),
        (
            ["input=x.fa", "output=p.csv"],
            "output p.csv is the name of another kind of file; give one that ends in .tsv",
        ),
        (
            ["input=x.fa", "label_column=label"],
            "input x.fa is FASTA, and sequence_column, name_column and label_column are of tables",
        ),
        (
            ["input=x.fa", "name_column=name"],
            "input x.fa is FASTA, and sequence_column, name_column and label_column are of tables",
        ),
        (["input=letters.fa"], "letter 'X' at column 3 is not a nucleotide"),
        (
            ["input=letters.csv"],
            "letters.csv: line 3: letter 'X' at position 2 is not a nucleotide",
        ),
        (
            ["input=letters.csv", "sequence_column=seq"],
            "no column 'seq'; its columns are sequence, label: set sequence_column to one of",
        ),
        (
            ["input=labels.csv", "label_column=label"],
            "labels.csv: line 3 has 'medium' in column 'label', and the classes of this model are",
        ),
        (["input=header.csv"], "header.csv has a header and no rows"),
        (["input=empty.csv"], "empty.csv: line 2 has nothing in column 'sequence'"),
        (
            ["input=long.fa"],
            "record a has 41 bases, more than the 40 that this network accepts; set window=40 or "
            "less",
        ),
        (["input=long.fa", "window=41"], "set window=40 or less"),
        (["input=x.fa", "stride=3"], "stride=3 needs window="),
        (
            ["input=x.fa", "track=t.bedgraph", "track_class=x"],
            "track_class 'x' is not predicted by this model; set it to 'poor', 'rich'",
        ),
        (["input=x.fa", "track_class=rich"], "track_class=rich needs track="),
        (
            ["input=x.fa", "track=q.tsv", "track_class=rich", "output=q.tsv"],
            "track q.tsv has an unknown extension",
        ),
        (["input=x.fa", "output=x.tsv"], "x.tsv exists; set overwrite=true"),
        (["input=x.fa", "track=x.bdg", "track_class=rich"], "x.bdg exists; set overwrite=true"),
        (["input=x.fa", "resume=true"], "resume=true needs output="),
        (
            ["input=x.fa", "track=t.wig", "track_class=rich"],
            "track t.wig has an unknown extension; known are .bedgraph",
        ),
        (["input=x.fa", "output=p.tsv"], "p.tsv.json exists; set overwrite=true"),
        (
            ["input=names.csv", "name_column=name", "track=t.bdg", "track_class=rich"],
            "names.csv has several records of the name a_b, which would overlap in the track; set "
            "name_column to a column of distinct names",
        ),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(predict, tmp_path, args, message):
    for name, text in {
        "x.fa": ">a\nACGT\n",
        "letters.fa": ">a\nACXT\n",
        "letters.csv": "sequence,label\nACGT,rich\nAXGT,rich\n",
        "labels.csv": "sequence,label\nACGT,rich\nACGT,medium\n",
        "header.csv": "sequence,label\n",
        "empty.csv": "sequence,label\n,rich\n",
        "long.fa": f">a\n{'A' * 41}\n",
        "x.tsv": "",
        "x.bdg": "",
        "p.tsv.json": "{}",
        "names.csv": "sequence,name\nACGT,a b\nACGT,c\nACGT,a_b\n",
    }.items():
        (tmp_path / name).write_text(text)
    before = {path.name for path in tmp_path.iterdir()}
    status, _, err = predict(*args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_windows_of_one_record_and_repeated_names_without_a_track_are_not_refused(
    predict, tmp_path
):
    (tmp_path / "x.csv").write_text("sequence,name\nACGTACGTAC,a\nACGT,b\n")
    status, _, err = predict(
        "input=x.csv",
        "name_column=name",
        "window=4",
        "stride=2",
        "track=t.bdg.gz",
        "track_class=rich",
        "output=p.tsv",
    )
    assert (
        status == 0 and (tmp_path / "t.bdg.gz").is_file() and len(rows_of(tmp_path / "p.tsv")) == 5
    ), err
    (tmp_path / "x.csv").write_text("sequence,name\nACGTACGTAC,a\nACGT,a\n")
    assert predict("input=x.csv", "name_column=name", "output=p.tsv", "overwrite=true")[0] == 0


def test_a_bundled_model_is_no_fine_tuned_run(cli, tmp_path):
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    status, _, err = cli("predict", "checkpoint=ecoli", "input=x.fa")
    assert status == 1 and "ecoli is not a fine-tuned run" in err and "give the run folder" in err


def test_a_pretrained_run_is_refused_by_predict_and_a_fine_tuned_one_by_the_other_commands(
    cli, world, trained, tmp_path
):
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    status, _, err = cli("predict", f"checkpoint={trained}", "input=x.fa")
    line = err.strip().splitlines()[-1]
    assert (
        status == 1
        and "is not a fine-tuned run" in line
        and "fine-tune it first" in line
        and "score or embed" in line
    )
    run = world / "run"
    for name, *args in (
        ("sample", f"checkpoint={run}"),
        ("score", f"checkpoint={run}", "input=x.fa"),
        ("evaluate", f"checkpoint={run}"),
        ("finetune", f"checkpoint={run}"),
        ("compare", f"a={trained}", f"b={run}"),
        ("train", f"init_from={run}"),
    ):
        status, _, err = cli(name, *args)
        line = err.strip().splitlines()[-1]
        assert (
            status == 1
            and f"is a fine-tuned run, whose networks are classifiers, and {name} needs" in line
            and "dnadiff.predict" in line
        )


def test_a_missing_or_damaged_network_is_trained_again_and_an_intact_one_is_reused(world, tmp_path):
    shutil.copytree(world / "run", tmp_path / "run")
    expected = (world / "run" / "models" / "seed_2" / "model.safetensors").read_bytes()
    stored = {
        path.name.split("-s")[1][0]: path
        for path in (tmp_path / "run" / "results" / "table").glob("combination-*.safetensors")
    }
    assert stored.keys() == {"1", "2"}
    written = {seed: path.stat().st_mtime_ns for seed, path in stored.items()}
    results = f"results={tmp_path / 'run' / 'results'}"
    run_finetune(world, tmp_path / "again", "seeds=2", results)
    weights = Path("models", "seed_2", "model.safetensors")
    assert (tmp_path / "again" / weights).read_bytes() == expected
    assert written == {seed: path.stat().st_mtime_ns for seed, path in stored.items()}
    stored["2"].write_bytes(expected[:-1])
    run_finetune(world, tmp_path / "damaged", "seeds=2", results)
    assert (tmp_path / "damaged" / weights).read_bytes() == expected
    assert written["1"] == stored["1"].stat().st_mtime_ns < stored["2"].stat().st_mtime_ns
    run_finetune(
        world, tmp_path / "damaged", "seeds=1", results, "overwrite=true"
    )  # the second seed is of an earlier run
    assert [path.name for path in (tmp_path / "damaged" / "models").iterdir()] == ["seed_1"]


def test_networks_from_scratch_are_saved_on_request_and_those_of_folds_are_not(
    world, tmp_path, capsys
):
    quick = (
        "seeds=1",
        "epochs=1",
        "fine_tune=false",
        "scratch=true",
        "save_models=[fine-tuned,scratch]",
    )
    run_finetune(world, tmp_path / "scratch", *quick, "batch_size=[16,32]")
    model = dnadiff.load(tmp_path / "scratch" / "models" / "scratch", device="cpu")
    result = json.loads((tmp_path / "scratch" / "finetune.json").read_text())["models"]["scratch"]
    assert (
        model.seeds == (1,)
        and model.batch_size == 4 * result["found"][0][0]["chosen"]["batch_size"]
    )
    capsys.readouterr()
    run_finetune(
        world,
        tmp_path / "folds",
        *quick,
        "scratch=false",
        "save_models=[fine-tuned]",
        "task.folds=5",
    )
    assert (
        "no network is saved with task.folds" in capsys.readouterr().err
        and not (tmp_path / "folds" / "models").exists()
    )


@pytest.mark.parametrize("head", ["auto", pytest.param("conv", marks=pytest.mark.slow)])
def test_a_saved_network_has_the_head_that_validation_chose(cli, world, tmp_path, head):
    run_finetune(
        world,
        tmp_path / "run",
        f"head={head}",
        "seeds=1",
        "inputs.one_hot=true",
        "head.dropout=0.3" if head == "conv" else "patience=1",
    )
    result = json.loads((tmp_path / "run" / "finetune.json").read_text())["models"]["fine-tuned"]
    found = result["found"][0][0]
    if head == "auto":
        assert {one["head"] for one in found["tried"]} == {
            "mean",
            "attention",
            "conv",
        }  # flatten takes one length
        best = max(found["tried"], key=lambda one: (one["valid_accuracy"], -one["valid_loss"]))
        assert (
            found["chosen"]["head"] == best["head"]
            and best["head"] in found["head"]["_target_"].lower()
        )
    else:
        assert found["head"]["dropout"] == 0.3
    saved = json.loads((tmp_path / "run" / "models" / "seed_1" / "model.json").read_text())
    assert saved["head"] == found["head"] and saved["inputs"] == {
        "layers": [],
        "one_hot": True,
        "length": False,
    }
    args = (
        f"checkpoint={tmp_path / 'run'}",
        "accelerator=cpu",
        f"input={world / 'test.csv'}",
        "label_column=label",
        "output=p.tsv",
    )
    assert cli("predict", *args)[0] == 0
    predicted = json.loads((tmp_path / "p.tsv.json").read_text())
    assert (
        predicted["metrics"]["each_seed"]["accuracy"]["per_seed"] == result["per_seed"]
        and predicted["head_inputs"] == saved["inputs"]
    )


def test_a_head_that_reads_the_length_is_reported(cli, world, tmp_path, capfd):
    run_finetune(world, tmp_path / "run", "seeds=1", "epochs=1", "inputs.length=true")
    assert (
        "the heads of the networks also read the bases, the length, which can reveal the class"
        in capfd.readouterr().out
    )
    expected = {"layers": [], "one_hot": True, "length": True}
    assert json.loads((tmp_path / "run" / "finetune.json").read_text())["inputs"] == expected
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    assert (
        cli(
            "predict",
            f"checkpoint={tmp_path / 'run'}",
            "accelerator=cpu",
            "input=x.fa",
            "output=p.tsv",
        )[0]
        == 0
    )
    assert json.loads((tmp_path / "p.tsv.json").read_text())["head_inputs"] == expected
    result = json.loads((world / "run" / "finetune.json").read_text())
    print_tables(
        [result | {"inputs": {"layers": [], "one_hot": False, "length": False}}], is_suite=False
    )
    assert "also read" not in capfd.readouterr().out


def test_a_network_that_was_trained_with_an_adapter_is_saved_and_predicts_like_any_other(
    cli, world, tmp_path
):
    run_finetune(
        world, tmp_path / "run", "seeds=1", "adapter=lora", "adapter.rank=2", "freeze=none"
    )
    saved = json.loads((tmp_path / "run" / "models" / "seed_1" / "model.json").read_text())
    assert saved["settings"]["adapter"] == {"LoRA": {"rank": 2, "alpha": 16.0}}
    names = {
        path: set(load_file(path / "model.safetensors"))
        for path in (world / "run/models/seed_1", tmp_path / "run/models/seed_1")
    }
    assert len({frozenset(keys) for keys in names.values()}) == 1  # plain weights
    args = (
        f"checkpoint={tmp_path / 'run'}",
        "accelerator=cpu",
        f"input={world / 'test.csv'}",
        "label_column=label",
        "output=p.tsv",
    )
    assert cli("predict", *args)[0] == 0
    metrics = json.loads((tmp_path / "p.tsv.json").read_text())["metrics"]["each_seed"]
    result = json.loads((tmp_path / "run" / "finetune.json").read_text())["models"]["fine-tuned"]
    assert metrics["accuracy"]["per_seed"] == result["per_seed"]


def test_flatten_is_refused_for_sequences_of_several_lengths(world, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run_finetune(world, tmp_path / "run", "head=flatten")
    err = capsys.readouterr().err
    assert (
        "error: head=flatten is for sequences of one length, and these have 20 to 40 bases" in err
        and not (tmp_path / "run").exists()
    )


def test_a_head_of_one_length_names_the_sequence_of_another_before_any_work(cli, world, tmp_path):
    with open(world / "table.csv", newline="") as file:
        rows = [(row["sequence"][:20], row["label"], row["split"]) for row in csv.DictReader(file)]
    write_table(tmp_path / "table.csv", rows)
    run_finetune(
        world,
        tmp_path / "run",
        "head=flatten",
        "seeds=1",
        "epochs=1",
        f"task.path={tmp_path / 'table.csv'}",
    )
    for letters, got, *window in (
        ("ACGT", "record b has 4 bases"),
        ("A" * 21, "record b has 21 bases"),
        ("A" * 21, "record a has a window of 10 bases", "window=10"),
    ):
        (tmp_path / "x.fa").write_text(f">a\n{'ACGT' * 5}\n>b\n{letters}\n")
        status, _, err = cli(
            "predict",
            f"checkpoint={tmp_path / 'run'}",
            "accelerator=cpu",
            "input=x.fa",
            "output=p.tsv",
            *window,
        )
        remedy = (
            "set window=20" if len(letters) > 4 else "remove it, or fine-tune with head=attention"
        )
        expected = (
            f"x.fa: {got}, and the head of this classifier accepts only sequences of 20; {remedy}"
        )
        assert status == 1 and expected in err.strip().splitlines()[-1] and "model:" not in err
        assert not list(tmp_path.glob("*p.tsv*"))


def test_merged_shards_are_the_bytes_of_one_run(predict, cli, monkeypatch, tmp_path):
    random = np.random.default_rng(1)
    sizes = random.integers(20, 90, 25)
    (tmp_path / "x.fa").write_text(
        "".join(f">r{i}\n{''.join(random.choice(list('ACGT'), n))}\n" for i, n in enumerate(sizes))
    )
    monkeypatch.setattr(predictions, "chunks", functools.partial(chunks, size=300))
    args = ("input=x.fa", "window=24", "stride=8", "track_class=rich")
    outputs = {
        folder: (f"output={folder}/p.tsv.gz", f"track={folder}/p.bedgraph")
        for folder in ("whole", "parts")
    }
    assert predict(*args, *outputs["whole"])[0] == 0
    for number in (3, 1, 2):
        status, _, err = predict(*args, *outputs["parts"], f"shard={number}/3")
        assert status == 0, err
    status, _, err = cli("merge", "output=parts/p.tsv.gz")
    assert status == 0, err
    for name in ("p.tsv.gz", "p.bedgraph"):
        assert (tmp_path / "parts" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes(), name
