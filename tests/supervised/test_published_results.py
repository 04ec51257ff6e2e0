import csv

import pytest

from dnadiff.finetune import finetune
from dnadiff.store.objects import config_dir
from dnadiff.supervised.study import (
    PUBLISHED_MODELS,
    num_training_sequences,
    published_accuracies,
    published_counterpart,
    suite_rows,
)


def study(name: str, protocol: str = "fixed") -> dict:
    one = {
        "accuracy": 0.9,
        "low": 0.88,
        "high": 0.92,
        "per_seed": [0.89, 0.91],
        "metrics": {"mcc": {"value": 0.8}, "auroc": {"value": 0.95}},
    }
    items = {"train": {"a": 30, "b": 20}, "valid": {"a": 3, "b": 2}, "test": {"a": 10, "b": 5}}
    return {
        "task": {"name": name, "items": items, "tested": 15, "chance": 2 / 3, "protocol": protocol},
        "counterpart": "Caduceus MDLM",
        "models": {"fine-tuned": one, "GC alone": one},
    }


def test_a_published_number_always_comes_with_its_training_size():
    known = published_counterpart("human_nontata_promoters", "fine-tuned", "Caduceus MDLM")
    for combined in (
        "fine-tuned, 5 seeds averaged",
        "fine-tuned + 6-mers, stacked",
    ):  # of several models, not of one network
        assert published_counterpart("human_nontata_promoters", combined, "Caduceus MDLM") is None
    assert (known.model, known.accuracy, known.train) == ("Caduceus MDLM", 0.940, 27097)
    assert published_counterpart("human_nontata_promoters", "CNN", None).accuracy == 0.861
    assert (
        published_counterpart("human_nontata_promoters", "scratch", "Caduceus MDLM") is None
        and published_counterpart("my own", "CNN", None) is None
    )
    assert len(published_accuracies("human_ocr_ensembl")) == 9
    assert (
        known.text == "0.940 ± 0.007"
        and published_counterpart("human_nontata_promoters", "CNN", None).text == "0.861 ± 0.009"
    )


def test_the_table_of_all_tasks_has_a_row_for_each_model():
    header, *rows = suite_rows([study("human_ocr_ensembl"), study("mine")])
    assert [(row[0], row[4]) for row in rows] == [
        ("human_ocr_ensembl", "fine-tuned"),
        ("human_ocr_ensembl", "GC alone"),
        ("mine", "fine-tuned"),
        ("mine", "GC alone"),
    ]
    assert rows[0][1:4] == ("55", "15", "0.667") and rows[0][7] == "0.020"
    assert {len(row) for row in rows} == {len(header)}
    assert rows[0][-2:] == ("Caduceus MDLM 0.823 ± 0.008 (139,804)", "+0.077") and rows[1][
        -2:
    ] == rows[2][-2:] == ("-", "-")


def test_with_folds_all_sequences_count_as_training():
    assert (
        num_training_sequences(study("x")) == 55
        and num_training_sequences(study("x", "kfold")) == 70
    )


@pytest.mark.parametrize(
    "backbone, objective, model",
    [
        ("Caduceus", "MDLM", "Caduceus MDLM"),
        ("Caduceus", "MLM", "Caduceus MLM"),
        ("CaduceusPS", "MLM", "Caduceus-PS"),
        ("Mamba", "AR", "Mamba AR"),
        ("Caduceus", "SEDD", None),
        ("DiT", "MDLM", None),
    ],
)
def test_a_fine_tuned_network_is_compared_with_its_published_counterpart(
    backbone, objective, model
):
    found = published_counterpart(
        "human_ocr_ensembl", "fine-tuned", PUBLISHED_MODELS.get((backbone, objective))
    )
    assert (found and found.model) == model


def test_published_numbers_name_their_source_and_the_training_size_of_their_task():
    with (config_dir().parent / "genomic_benchmarks" / "published.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 * 9
    tasks = {row["task"] for row in rows}
    train = {
        task: finetune.compose(["checkpoint=x", f"task={task}", "task.path=x"]).task["expected"][
            "train"
        ]
        for task in tasks
    }
    for row in rows:
        assert 0.5 < float(row["accuracy"]) < 1
        assert row["source"]
        assert int(row["train"]) == train[row["task"]]
        assert 0 <= float(row["spread"]) < 0.13 and row["spread_kind"] == "max - min of 5 seeds"
    mdlm = {row["task"]: row for row in rows if row["model"] == "Caduceus MDLM"}
    assert (
        mdlm["human_nontata_promoters"]["accuracy"],
        mdlm["human_nontata_promoters"]["spread"],
    ) == (".940", ".007")
    assert float(mdlm["dummy_mouse_enhancers_ensembl"]["spread"]) == pytest.approx(0.029)
