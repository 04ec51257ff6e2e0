import pytest

from dnadiff.downstream.published_results import (
    SUITE_HEADER,
    num_training_sequences,
    published_accuracies,
    published_counterpart,
    published_model_of,
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
    assert (known.model, known.accuracy, known.train) == ("Caduceus MDLM", 0.940, 27097)
    assert published_counterpart("human_nontata_promoters", "CNN", None).accuracy == 0.861
    assert (
        published_counterpart("human_nontata_promoters", "scratch", "Caduceus MDLM") is None
        and published_counterpart("my own", "CNN", None) is None
    )
    assert len(published_accuracies("human_ocr_ensembl")) == 9


def test_the_table_of_all_tasks_has_a_row_for_each_model():
    rows = suite_rows([study("human_ocr_ensembl"), study("mine")])
    assert [(row[0], row[4]) for row in rows] == [
        ("human_ocr_ensembl", "fine-tuned"),
        ("human_ocr_ensembl", "GC alone"),
        ("mine", "fine-tuned"),
        ("mine", "GC alone"),
    ]
    assert rows[0][1:4] == ("55", "15", "0.667") and rows[0][7] == "0.020"
    assert {len(row) for row in rows} == {len(SUITE_HEADER)}
    assert rows[0][-2:] == ("Caduceus MDLM 0.823 (139,804)", "+0.077") and rows[1][-2:] == rows[2][-2:] == ("-", "-")


def test_with_folds_everything_is_trained_on():
    assert num_training_sequences(study("x")) == 55 and num_training_sequences(study("x", "kfold")) == 70


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
def test_a_fine_tuned_network_is_held_against_its_own_kind_alone(backbone, objective, model):
    found = published_counterpart("human_ocr_ensembl", "fine-tuned", published_model_of(backbone, objective))
    assert (found and found.model) == model
