import re

import numpy as np
import pytest
import torch

from dnadiff.report.suite import page_of, section_of, write_suite
from dnadiff.supervised.items import Items, Prediction
from dnadiff.supervised.study import compare


def study(name: str, classes: list[str]) -> dict:
    draws, size = np.random.default_rng(0), 90
    labels = torch.arange(size) % len(classes)
    items = Items(
        torch.zeros(size, 1, dtype=torch.uint8), torch.ones(size, dtype=torch.int64), labels
    )
    predictions = {}
    for model, worth in (("GC <alone>", 0.5), ("CNN", 1.5), ("fine-tuned", 2.0)):
        logits = torch.from_numpy(
            draws.normal(size=(size, len(classes)))
        ) + worth * torch.nn.functional.one_hot(labels, len(classes))
        predictions[model] = [Prediction(logits.log_softmax(-1), 1.0, [{"chosen": {"lr": 1e-3}}])]
    subsets = {
        "inside pretraining": np.arange(size) < 10,
        "outside pretraining": np.arange(size) >= 10,
    }
    compared = compare(predictions, items, [("fine-tuned", "CNN")], subsets)
    parts = {part: dict.fromkeys(classes, 30) for part in ("train", "valid", "test")}
    task = {
        "name": name,
        "classes": classes,
        "items": parts,
        "tested": size,
        "stranded": False,
        "protocol": "fixed",
        "chance": 1 / len(classes),
    }
    return {
        "counterpart": "Caduceus MDLM",
        "task": task,
        **compared,
        "notes": {"path": "/home/someone/table.csv"},
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    studies = [study("human_nontata_promoters", ["0", "1"]), study("my <own>", ["x", "y", "z"])]
    path = write_suite(
        tmp_path_factory.mktemp("page") / "report.html",
        studies,
        ["python -m dnadiff.finetune task=x"],
    )
    return path.read_text()


def test_published_accuracy_is_always_shown_with_its_training_size(page):
    assert "Caduceus MDLM 0.940 ± 0.007 (27,097)" in page and "CNN 0.861 ± 0.009 (27,097)" in page
    assert page.count("27,097") == 4  # twice in the table, twice at the bars
    assert "Trained on 120 sequences" in page and "Trained on 180 sequences" in page


def test_the_page_has_every_picture_and_escapes_names(page):
    assert page.count("<figure") == 2 * 3
    for text in (
        "ROC curves, first seed",
        "ROC curves of fine-tuned, each class against the rest",
        "lr 0.001",
        "inside pretraining",
        "The model with the highest test metric: ",
    ):
        assert text in page
    assert "<own>" not in page and "<alone>" not in page and "someone" not in page
    assert not re.search(r"(src|href)=\"http", page)


def test_the_page_of_one_task_begins_with_its_best_model_and_pictures():
    result = study("mine", ["x", "y"]) | {"warning": "something"}
    page = page_of([result])
    name = max(result["models"], key=lambda model: result["models"][model]["accuracy"])
    best = result["models"][name]
    interval = f"{best['low']:.3f} .. {best['high']:.3f}"
    assert page.sentence == (
        f"Warning: mine: something. {name} has the highest accuracy: {best['accuracy']:.3f} "
        f"(95 % interval: {interval}) on 90 test sequences."
    )
    names = [picture.name for picture in page.pictures]
    assert names == ["task_1_metric", "task_1_differences", "task_1_roc"]
    matrices = [part for part in page.sections[0].parts if getattr(part, "head", "")][:2]
    assert all(table.head == ["true class", "x", "y"] for table in matrices)
    counts = best["confusion"][0]
    assert matrices[0].rows[0][1] == f"{counts[0]:,.0f} ({100 * counts[0] / sum(counts):.0f} %)"


def test_an_unpublished_network_has_no_published_counterpart(tmp_path):
    page = write_suite(
        tmp_path / "r.html", [study("human_nontata_promoters", ["0", "1"]) | {"counterpart": None}]
    ).read_text()
    assert "Caduceus MDLM" not in page and "CNN 0.861 ± 0.009 (27,097)" in page


def test_bars_of_published_accuracies_are_labeled():
    result = study("human_nontata_promoters", ["0", "1"])
    spec = section_of(result, "t").parts[0].content.to_dict(validate=False)
    (bars,) = spec["datasets"].values()
    assert {row["model"]: row["kind"] for row in bars} == {
        "fine-tuned": "trained network",
        "CNN": "baseline or frozen features",
        "GC <alone>": "baseline or frozen features",
        "CNN (27,097)": "published",
        "Caduceus MDLM (27,097)": "published",
    }
    assert [row["test accuracy"] for row in bars[3:]] == [0.861, 0.94]


def test_a_page_says_where_there_is_no_verdict_or_no_interval(tmp_path):
    result = study("mine", ["x", "y"])
    (difference,) = result["differences"]
    assert difference["verdict"] == "one run, no verdict"
    text = write_suite(tmp_path / "one.html", [result]).read_text()
    assert "one run, no verdict" in text and "other seeds may differ" in text
    difference |= {"low": None, "high": None, "p_value": None}
    for model in result["models"].values():
        model |= {"low": None, "high": None}
    text = write_suite(tmp_path / "few.html", [result]).read_text()
    assert text.count("too few items") == 5  # the sentence, three models and a difference
    difference |= {"low": 0.1, "high": 0.2, "p_value": 0.0012, "verdict": "better"}
    result["task"]["p_value_test"] = "sign-flip test"  # as earlier versions wrote them
    text = write_suite(tmp_path / "old.html", [result]).read_text()
    assert "p, sign-flip test" in text and "0.0012" in text and "better" in text


def test_a_page_without_studies_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to report"):
        write_suite(tmp_path / "r.html", [])


def test_a_regression_shows_predicted_against_measured_values(tmp_path):
    import torch

    from dnadiff.supervised.targets import RegressionTarget

    random = np.random.default_rng(0)
    labels = torch.from_numpy(random.normal(size=(40, 1))).float()
    items = Items(torch.full((40, 4), 7, dtype=torch.uint8), torch.full((40,), 4), labels)
    runs = {
        name: [Prediction((labels + noise * torch.randn(40, 1)).double(), 1.0, [{}])]
        for name, noise in (("fine-tuned", 0.1), ("x", 2.0))
    }
    target = RegressionTarget(["expression"], transform="log2")
    compared = compare(runs, items, [("fine-tuned", "x")], None, target)
    task = {
        "name": "t",
        "classes": ["expression"],
        "items": {"train": {"sequences": 9}, "valid": {"sequences": 1}},
        "tested": 40,
    }
    task |= {
        "stranded": True,
        "protocol": "fixed",
        "chance": 0.0,
        "metric": "spearman",
        "shown": ["pearson", "r2"],
    }
    task |= {"target": target.summary, "p_value_test": "bootstrap"}
    text = write_suite(tmp_path / "report.html", [{"task": task, **compared}]).read_text()
    assert (
        "Predicted against measured log2(expression) of fine-tuned on t." in text
        and "p, bootstrap" in text
    )
    assert (
        "Spearman" in text
        and "Pearson" in text
        and "Accuracy" not in text
        and "ROC" not in text
        and "Classification" not in text
    )
