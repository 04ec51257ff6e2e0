"""The command lines `finetune` and `predict` on values and on several labels."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff import finetune, predict
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.options.command import compose
from dnadiff.weights.loaded import build_denoiser

DIT = (
    "backbone=dit",
    "backbone.d_model=16",
    "backbone.n_heads=2",
    "backbone.n_layers=1",
    "data.length=40",
)
SETTINGS = ("epochs=3", "batch_size=8", "lr=0.01", "kmer=2", "accelerator=cpu")


def write(path: Path, header: list[str], rows: list[list]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_checkpoint(path: Path, tokenizer: DNATokenizer) -> None:
    hyper_parameters = {"config": compose("train", list(DIT)), "tokenizer": tokenizer.config()}
    torch.manual_seed(0)
    weights = build_denoiser(hyper_parameters["config"], tokenizer)[0].state_dict()
    renamed = {"denoiser." + name: weight for name, weight in weights.items()}
    torch.save(
        {"global_step": 7, "hyper_parameters": hyper_parameters, "state_dict": renamed}, path
    )


def run_finetune(world: Path, run_dir: Path, table: Path, *overrides: str) -> dict:
    os.environ.pop("HYDRA_FULL_ERROR", None)
    task = (
        f"checkpoint={world / 'tiny.ckpt'}",
        f"hydra.run.dir={run_dir}",
        "task=csv",
        f"task.path={table}",
        *SETTINGS,
    )
    finetune.main([*task, *overrides])
    return json.loads((run_dir / "finetune.json").read_text())


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A checkpoint, a table whose values follow the GC content, and regressions of two seeds
    fine-tuned on two of its columns."""
    folder, random, rows = tmp_path_factory.mktemp("targets"), np.random.default_rng(0), []
    write_checkpoint(folder / "tiny.ckpt", DNATokenizer())
    for i in range(120):
        letters = "".join(
            random.choice(list("ACGT"), random.integers(20, 41), p=random.dirichlet([3] * 4))
        )
        gc = sum(base in "GC" for base in letters) / len(letters)
        a, b = 2 ** (5 * gc + random.normal(0, 0.2)), "" if i % 5 == 0 else round(50 * gc, 2)
        rows.append(
            [
                letters,
                f"{a:.4f}",
                b,
                int(gc > 0.5),
                "NA" if i % 7 == 0 else int(gc < 0.6),
                "test" if i % 3 == 0 else "train",
            ]
        )
    header = ["sequence", "a", "b", "rich", "poor", "split"]
    write(folder / "table.csv", header, rows)
    write(folder / "test.csv", header, [row for row in rows if row[-1] == "test"])
    settings = (
        "task.kind=regression",
        "task.label_column=[a,b]",
        "task.split_column=split",
        "scratch=false",
        "seeds=2",
        "inputs.one_hot=false",
    )
    run_finetune(
        folder,
        folder / "run",
        folder / "table.csv",
        *settings,
        "probe=true",
        "task.transform=log2",
        "task.loss=huber",
    )
    return folder


def test_a_regression_is_compared_by_spearman_with_estimators_of_its_kind(world):
    result = json.loads((world / "run" / "finetune.json").read_text())
    tuned, bases, ridge = "fine-tuned", "small network on the bases", "2-mer ridge regression"
    frozen, untrained = "frozen + ridge regression", "untrained, frozen + ridge regression"
    average = "combination, 2 seeds averaged"
    names = ["combination", average, tuned, bases, ridge, frozen, untrained]
    assert (
        list(result["models"]) == names
        and result["task"]["metric"] == "spearman"
        and result["task"]["p_value_test"] == "from the interval"
    )
    assert [(d["a"], d["b"]) for d in result["differences"]] == [
        *(("combination", other) for other in (tuned, bases, ridge)),
        *((tuned, ridge), (frozen, untrained), (frozen, ridge), (tuned, bases)),
        *((average, "combination"), (average, ridge)),
    ]
    for name, model in result["models"].items():
        assert model["low"] is model["high"] is None and model["spearman"] > 0.5, name  # 40 items
        both = [model["metrics"][f"spearman of {column}"]["value"] for column in "ab"]
        assert (
            model["metrics"]["spearman"]["value"]
            == pytest.approx(np.mean(both))
            == model["spearman"]
        )
        assert all(
            {"valid_loss"} <= found.keys() for of_seed in model["found"] for found in of_seed
        )
    scatter = result["models"]["fine-tuned"]["scatter"]
    known = sum(row["b"] != "" for row in csv.DictReader((world / "test.csv").open()))
    assert [len(scatter[f"log2({column})"]["measured"]) for column in "ab"] == [40, known]
    rows = list(csv.DictReader((world / "run" / "results" / "results.csv").open()))
    assert {"spearman of a", "pearson", "r2", "mse"} <= rows[0].keys() and "accuracy" not in rows[0]
    assert (
        len(list((world / "run" / "results" / "table").glob("*.npz"))) == 11
    )  # missing labels do not look like other items


def test_the_target_is_stored_with_the_networks(world):
    about = json.loads((world / "run" / "models" / "seed_1" / "model.json").read_text())
    rows = [row for row in csv.DictReader((world / "table.csv").open()) if row["split"] == "train"]
    assert (
        about["target"]["names"] == about["classes"] == ["a", "b"]
        and about["target"]["transform"] == "log2"
    )
    model = dnadiff.load(world / "run", device="cpu")
    assert model.target.settings() == about["target"]
    values = np.log2([float(row["a"]) for row in rows])
    assert model.target.mean[0] == pytest.approx(
        values.mean(), abs=0.2
    )  # the validation part is not in it


def test_predictions_of_the_test_items_reproduce_the_reported_metrics(world, cli, tmp_path):
    args = (
        f"checkpoint={world / 'run'}",
        "accelerator=cpu",
        f"input={world / 'test.csv'}",
        "label_column=[a,b]",
    )
    status, out, err = cli("predict", *args, "track=t.bedgraph", "track_class=a", "output=p.tsv")
    assert status == 0, err
    reported = json.loads((world / "run" / "finetune.json").read_text())["models"]["combination"][
        "metrics"
    ]
    content = json.loads((tmp_path / "p.tsv.json").read_text())
    assert {name: each["per_seed"] for name, each in content["metrics"]["each_seed"].items()} == {
        name: pytest.approx(each["per_seed"], rel=1e-6) for name, each in reported.items()
    }
    assert "Spearman" in out and "mean prediction" in out and "averaged predictions" in out
    rows = list(csv.DictReader((tmp_path / "p.tsv").open(), delimiter="\t"))
    own = ["predicted_a", "spread_a", "predicted_b", "spread_b", "label_a", "label_b"]
    seeds = [f"log2({column})_seed_{seed}" for seed in (1, 2) for column in "ab"]
    assert list(rows[0]) == ["name", "length", *own, *seeds]
    assert {row["label_b"] for row in rows if row["label_b"] == "nan"} == {"nan"}
    letters = [row["sequence"] for row in csv.DictReader((world / "test.csv").open())]
    found = dnadiff.load(world / "run", device="cpu").predict(letters)
    np.testing.assert_allclose(
        [float(row["predicted_b"]) for row in rows], found.values[:, 1], rtol=1e-5
    )
    of_seeds = np.log2(
        [[2 ** float(row[f"log2(a)_seed_{seed}"]) for row in rows] for seed in (1, 2)]
    )
    np.testing.assert_allclose(found.values[:, 0], 2 ** of_seeds.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.spread[:, 0], np.ptp(2**of_seeds, axis=0), rtol=1e-3)
    track = (tmp_path / "t.bedgraph").read_text().splitlines()
    assert [line.split("\t")[3] for line in track] == [row["predicted_a"] for row in rows]


def test_a_regression_has_no_value_for_sequences_of_n(world, cli, tmp_path):
    (tmp_path / "x.fa").write_text(">one\nACGTTGACCA\n>gap\nNNNNN\n>two\nGGGTTGACCA\n")
    args = (f"checkpoint={world / 'run'}", "accelerator=cpu", "input=x.fa", "output=p.tsv")
    status, out, err = cli("predict", *args, "track=t.bedgraph", "track_class=b")
    assert status == 0 and "1 of 3 sequences have no known base" in err
    one, gap, two = csv.DictReader((tmp_path / "p.tsv").open(), delimiter="\t")
    assert list(gap.values()) == ["gap", "5", *["nan"] * 4]
    mean = (float(one["predicted_b"]) + float(two["predicted_b"])) / 2
    (shown,) = (float(line.split()[1]) for line in out.splitlines() if line.startswith("b "))
    assert shown == pytest.approx(mean, rel=1e-4)
    names = [line.split("\t")[0] for line in (tmp_path / "t.bedgraph").read_text().splitlines()]
    assert names == ["one", "two"]


def test_several_labels_are_compared_by_auroc(world, tmp_path, capsys):
    settings = (
        "task.kind=multilabel",
        "task.label_column=[rich,poor]",
        "scratch=false",
        "seeds=1",
        "task.split_column=split",
        "fine_tune=false",
    )
    classes = {
        "GCAlone": "dnadiff.supervised.baselines.GCAlone",
        "boosting": "dnadiff.supervised.baselines.KmerBoosting, k: 2, rounds: [5]",
    }
    baselines = [f"+baselines.{name}={{_target_: {target}}}" for name, target in classes.items()]
    result = run_finetune(
        world, tmp_path / "labels", world / "table.csv", *settings, *baselines, "neighbors=true"
    )
    assert (
        "2-mer logistic regression" in result["models"]
        and result["task"]["tested"] == 40
        and result["task"]["chance"] == 0.5
    )
    gc = result["models"]["GCAlone"]
    assert gc["auroc"] > 0.95 and set(gc["metrics"]) == {"auroc", "auprc"} | {
        f"{m} of {x}" for m in ("auroc", "auprc") for x in ("rich", "poor")
    }
    out = capsys.readouterr().out
    assert "AUROC on 40 test sequences of table, chance 0.500" in out and "average precision" in out


def test_the_recipe_trains_on_several_labels(world, tmp_path):
    settings = (
        "task.kind=multilabel",
        "task.label_column=[rich,poor]",
        "seeds=1",
        "save_models=[]",
        "task.split_column=split",
    )
    recipe = (
        "epochs=1",
        "lr=[1e-2,2e-2]",
        "lr_scratch=1e-2",
        "scratch=false",
        "mixup=0.4",
        "inputs.one_hot=true",
    )
    result = run_finetune(world, tmp_path / "recipe", world / "table.csv", *settings, *recipe)
    names = [
        "combination",
        "fine-tuned",
        "small network on the bases",
        "2-mer logistic regression",
    ]
    assert list(result["models"]) == names and all(
        "auroc" in model for model in result["models"].values()
    )
    (found,) = result["models"]["fine-tuned"]["found"][0]
    losses = [one["valid_loss"] for one in found["tried"]]
    assert len(losses) == 2 and found["valid_loss"] == min(losses) and "valid_accuracy" not in found
    (chosen,) = result["models"]["combination"]["found"][0]
    weights = [chosen["chosen"][f"weight of {name}"] for name in names[1:]]
    assert min(weights) >= 0 and "valid_loss" in chosen and chosen["chosen"]["lr"] in (0.01, 0.02)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["task.kind=regression", "task.label_column=sequence"],
            "in column 'sequence', and a regression expects a number",
        ),
        (["task.label_column=a"], "different numbers such as"),
        (["task.kind=multilabel", "task.label_column=a"], "and a label is 0 or 1"),
        (
            ["task.kind=regression", "task.label_column=a", "task.protocol=paper"],
            "task.protocol=paper is the published protocol",
        ),
        (
            ["task.kind=regression", "task.label_column=empty"],
            "has no value in column 'empty' of its training items",
        ),
        (
            ["task.kind=regression", "task.label_column=same"],
            "has the same value, 3, in column 'same'",
        ),
        (["task.kind=regression", "task.label_column=[a,nothing]"], "no column 'nothing'"),
        (
            ["task.kind=regression", "task.label_column=a", "class_weights=balanced"],
            "class_weights=balanced expects a task of classes, got regression of a, loss mse; set "
            "class_weights=none",
        ),
        (
            ["task.kind=ranking"],
            "task.kind 'ranking' is not known; set it to classification, regression, multilabel",
        ),
    ],
)
def test_bad_targets_get_one_line_and_leave_nothing(world, tmp_path, cli, overrides, message):
    rows = [[*row, "", 3] for row in csv.reader((world / "table.csv").open())][1:]
    table = write(
        tmp_path / "bad.csv", ["sequence", "a", "b", "rich", "poor", "split", "empty", "same"], rows
    )
    task = (
        f"checkpoint={world / 'tiny.ckpt'}",
        "task=csv",
        f"task.path={table}",
        "hydra.run.dir=out",
        *SETTINGS,
    )
    status, _, err = cli("finetune", *task, *overrides)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["label_column=a"], "label_column names 1 columns, and this model expects 2, for a, b"),
        (["label_column=[sequence,b]"], "in column 'sequence', and a regression expects a number"),
        (["track=t.bedgraph"], "track_class is missing; set it to 'a', 'b'"),
    ],
)
def test_bad_predictions_get_one_line(world, cli, overrides, message):
    args = (
        f"checkpoint={world / 'run'}",
        "accelerator=cpu",
        f"input={world / 'test.csv'}",
        "output=p.tsv",
    )
    status, _, err = cli("predict", *args, *overrides)
    assert status == 1 and message in err.strip().splitlines()[-1] and not Path("p.tsv").exists()


def test_the_effect_of_a_variant_is_the_difference_of_the_predictions(world, cli, tmp_path):
    letters = "".join(np.random.default_rng(3).choice(list("ACGT"), 200))
    (tmp_path / "g.fa").write_text(f">one\n{letters}\n")
    ref, alt = letters[100], "A" if letters[100] != "A" else "C"
    indel = f"one\t60\t{letters[59:62]}\t{letters[59]}"
    (tmp_path / "v.tsv").write_text(f"chrom\tpos\tref\talt\none\t101\t{ref}\t{alt}\n{indel}\n")
    args = (f"checkpoint={world / 'run'}", "accelerator=cpu", "genome=g.fa", "vcf=v.tsv")
    status, _, err = cli("variants", *args, "target=a", "output=e.tsv")
    assert status == 0, err
    rows = list(csv.DictReader((tmp_path / "e.tsv").open(), delimiter="\t"))
    assert (
        list(rows[0])[5:] == ["predicted_REF", "predicted_ALT", "difference", "SE_seeds"]
        and len(rows) == 2
    )
    model = dnadiff.load(world / "run", device="cpu")
    start = 101 - model.longest // 2 if model.longest % 2 else 100 - (model.longest - 1) // 2
    window = letters[start : start + model.longest]
    place = 100 - start
    found = (
        model.predict([window, window[:place] + alt + window[place + 1 :]])
        .each_seed[:, :, 0]
        .astype(float)
    )  # log2
    difference = found[:, 1] - found[:, 0]
    values = [*found.mean(0), difference.mean(), difference.std(ddof=1) / 2**0.5]
    np.testing.assert_allclose(
        [float(each) for each in list(rows[0].values())[5:]], values, atol=2e-5
    )
    status, _, err = cli("variants", *args, "output=f.vcf.gz")
    assert status == 1 and "target is missing; set it to 'a', 'b'" in err.strip().splitlines()[-1]
    status, _, err = cli("variants", *args, "target=b", "output=f.vcf")
    assert status == 0 and "##INFO=<ID=difference" in (tmp_path / "f.vcf").read_text()
    for override, message in (
        ("L2=true", "L2 applies to a pretrained model"),
        ("window=41", "a window of 41 bases, more than the 40"),
    ):
        status, _, err = cli("variants", *args, "target=a", "output=g.tsv", override)
        assert status == 1 and message in err.strip().splitlines()[-1]


def test_networks_of_few_items_predict_on_the_scale_of_their_own_items(world, cli, tmp_path):
    settings = (
        "task.kind=regression",
        "task.label_column=a",
        "task.split_column=split",
        "scratch=false",
        "seeds=2",
        "train_items=12",
    )
    result = run_finetune(world, tmp_path / "few", world / "table.csv", *settings, "epochs=1")
    about = [
        json.loads((tmp_path / "few" / "models" / f"seed_{seed}" / "model.json").read_text())
        for seed in (1, 2)
    ]
    assert about[0]["target"]["mean"] != about[1]["target"]["mean"]
    assert [one["task"]["items"]["train"] for one in about] == [{"sequences": 12}] * 2
    assert not any(
        "averaged" in name for name in result["models"]
    )  # two seeds together have seen up to 24 items
    status, _, err = cli(
        "predict",
        f"checkpoint={tmp_path / 'few'}",
        "accelerator=cpu",
        f"input={world / 'test.csv'}",
        "label_column=a",
    )
    assert status == 0, err
    (table,) = tmp_path.glob("runs/predict/*/predictions.tsv.json")
    found = json.loads(table.read_text())["metrics"]["each_seed"]["mse"]["per_seed"]
    assert found == pytest.approx(
        result["models"]["combination"]["metrics"]["mse"]["per_seed"], rel=1e-6
    )


def write_mixed(folder: Path) -> Path:
    """A table of a class, a value and a level that follow the GC content, some cells empty."""
    random, rows = np.random.default_rng(1), []
    for i in range(120):
        letters = "".join(
            random.choice(list("ACGT"), random.integers(20, 41), p=random.dirichlet([3] * 4))
        )
        gc = sum(base in "GC" for base in letters) / len(letters)
        level = int(np.digitize(gc + random.normal(0, 0.05), [0.35, 0.5, 0.65]))
        kind = "" if i % 6 == 0 else "rich" if gc > 0.5 else "poor"
        rows.append([letters, kind, "" if i % 5 == 0 else f"{5 * gc:.3f}", level])
    return write(folder / "mixed.csv", ["sequence", "kind", "activity", "bin"], rows)


QUICK = ("scratch=false", "seeds=2", "inputs.one_hot=false")


def test_levels_are_fine_tuned_and_predicted(world, tmp_path):
    table = write_mixed(tmp_path)
    of_levels = ("task.kind=ordinal", "task.label_column=bin")
    result = run_finetune(world, tmp_path / "run", table, *of_levels, *QUICK)
    assert result["task"]["metric"] == "spearman"
    model = result["models"]["fine-tuned"]
    assert model["spearman"] > 0.5 and len(model["confusion"]) == 4
    assert {"accuracy", "mse", "calibration_error"} <= model["metrics"].keys()
    predict.main(
        [
            f"checkpoint={tmp_path / 'run'}",
            f"input={table}",
            "label_column=bin",
            f"output={tmp_path / 'p.tsv'}",
            "accelerator=cpu",
        ]
    )
    rows = list(csv.DictReader((tmp_path / "p.tsv").open(), delimiter="\t"))
    probs = np.array([[float(row[f"p_{level}"]) for level in range(4)] for row in rows])
    expected = np.array([float(row["expected"]) for row in rows])
    assert expected == pytest.approx(probs @ np.arange(4), abs=1e-4)
    assert [row["label"] for row in rows[:3]] == [
        row["bin"] for row in list(csv.DictReader(table.open()))[:3]
    ]


def test_columns_of_several_kinds_are_fine_tuned_and_predicted(world, tmp_path):
    table = write_mixed(tmp_path)
    several = (
        "task.kind=[classification,regression,ordinal]",
        "task.label_column=[kind,activity,bin]",
        "task.loss_weights=[1,2,1]",
        "probe=true",
    )
    result = run_finetune(world, tmp_path / "run", table, *several, *QUICK)
    assert result["task"]["metric"] == "mean of the columns"
    names = ["accuracy of kind", "spearman of activity", "spearman of bin"]
    for model in result["models"].values():
        each = [model["metrics"][name]["value"] for name in names]
        assert model["mean of the columns"] == pytest.approx(np.mean(each)) and min(each) > 0.3
    model = dnadiff.load(tmp_path / "run", device="cpu")
    assert model.classes == ("kind_poor", "kind_rich", "activity", *(f"bin_{i}" for i in range(4)))
    predict.main(
        [
            f"checkpoint={tmp_path / 'run'}",
            f"input={table}",
            "label_column=[kind,activity,bin]",
            f"output={tmp_path / 'p.tsv'}",
            "accelerator=cpu",
        ]
    )
    rows = list(csv.DictReader((tmp_path / "p.tsv").open(), delimiter="\t"))
    known = list(csv.DictReader(table.open()))
    assert [row["label_kind"] for row in rows] == [row["kind"] or "nan" for row in known]
    probs = np.array(
        [[float(row[f"predicted_kind_{k}"]) for k in ("poor", "rich")] for row in rows]
    )
    assert probs.sum(1) == pytest.approx(np.ones(len(rows)), abs=1e-4)
    written = json.loads((tmp_path / "p.tsv.json").read_text())["metrics"]["averaged"]
    mine = np.array([row["kind"] == "rich" for row in known])
    has = np.array([row["kind"] != "" for row in known])
    right = (probs.argmax(1) == mine)[has].mean()
    assert written["accuracy of kind"]["value"] == pytest.approx(right)
