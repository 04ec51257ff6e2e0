import label_efficiency
import pytest


def piece(items, **models):
    rows = {
        name.replace("_", " "): {"value": sum(seeds) / len(seeds), "per_seed": seeds}
        for name, seeds in models.items()
    }
    return {
        "task": {
            "metric": "accuracy",
            "items": {"train": {"a": items // 2, "b": items - items // 2}},
        },
        "models": rows,
    }


@pytest.fixture
def pieces():
    return {
        "few-emp_h3-1000-full": piece(
            1000,
            **{"fine-tuned": [0.8, 0.9], "scratch": [0.6, 0.7], "6-mer logistic regression": [0.7]},
        ),
        "few-emp_h3-100-full": piece(100, **{"fine-tuned": [0.6, 0.7], "GC alone": [0.5]}),
        "few-emp_h3-100-lora": piece(
            100, **{"fine-tuned": [0.7, 0.7], "6-mer logistic regression": [0.7]}
        ),
        "few-ecoli_tss-all-full": piece(901, **{"6-mer ridge regression": [0.4]}),
        "few-ecoli_tss-all-probe": piece(
            901, **{"frozen + ridge regression": [0.3], "6-mer ridge regression": [0.4]}
        ),
        "set-emp_h3": piece(2000, **{"fine-tuned": [0.95]}),
    }


def test_points_are_ordered_by_the_items_that_a_model_was_trained_on(pieces):
    found = label_efficiency.curves(pieces)
    assert list(found) == ["emp_h3", "ecoli_tss"] and list(found["emp_h3"]) == [
        "fine-tuned",
        label_efficiency.ADAPTER,
        "scratch",
        "6-mers",
    ]
    assert [(p.items, p.value) for p in found["emp_h3"]["fine-tuned"]] == [
        (100, pytest.approx(0.65)),
        (1000, pytest.approx(0.85)),
    ]
    assert [(p.items, p.value) for p in found["emp_h3"][label_efficiency.ADAPTER]] == [
        (100, pytest.approx(0.7))
    ]
    assert [p.items for p in found["emp_h3"]["6-mers"]] == [1000] and [
        p.items for p in found["ecoli_tss"]["6-mers"]
    ] == [901]
    assert [p.value for p in found["ecoli_tss"]["frozen"]] == [0.3]


def test_the_picture_is_the_same_for_the_same_table(pieces, tmp_path):
    for name in "ab":
        label_efficiency.picture(pieces, tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    with pytest.raises(ValueError, match="no piece few-; run"):
        label_efficiency.picture({"set-emp_h3": pieces["set-emp_h3"]}, tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()
