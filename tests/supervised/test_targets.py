"""What a task predicts: reading, loss, predictions, and what is stored."""

import copy
import json
import logging
import math

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dnadiff.store.objects import build
from dnadiff.supervised.classes import ClassTarget, MultiLabelTarget
from dnadiff.supervised.labeled import KINDS, build_target
from dnadiff.supervised.metrics import log_odds
from dnadiff.supervised.targets import SEPARATOR, RegressionTarget, ValidScore

NAN = math.nan
LABELS = torch.tensor([[1.0, NAN], [3.0, 0.5], [NAN, 2.5]])


def fitted(**settings) -> RegressionTarget:
    return RegressionTarget(["a", "b"], **settings).fit(LABELS)


def test_values_are_standardized_by_the_training_items_that_have_one():
    target = fitted()
    assert (target.mean, target.std) == ((2.0, 1.5), (1.0, 1.0))
    loss = target.loss(
        torch.tensor([[0.0, 9.0], [2.0, 0.0]]), torch.tensor([[3.0, NAN], [3.0, 0.5]])
    )
    assert float(loss) == pytest.approx((1 + 1 + 1) / 3)
    huber = fitted(loss="huber").loss(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, NAN]]))
    assert float(huber) == pytest.approx(3 - 0.5)
    predictions = target.predictions([torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]])])
    assert predictions.tolist() == [[3.5, 1.5]]
    assert target.valid_score(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, NAN]])) == ValidScore(
        0.0, -1.0
    )
    assert (
        target.valid_score(torch.tensor([[NAN, 0.0]]), torch.tensor([[2.0, 1.0]])).negative_loss
        == -math.inf
    )


def test_predictions_are_averaged_as_values_or_as_probabilities():
    first, second, infinite = (
        torch.tensor([[0.0, 3.0]]),
        torch.tensor([[4.0, 1.0]]),
        torch.full((1, 2), math.inf),
    )
    assert fitted().averaged([first, second, infinite], [0.75, 0.25, 0.0]).tolist() == [[1.0, 2.5]]
    labels = MultiLabelTarget(["a", "b"])
    probs = labels.averaged([first, second, infinite], [0.75, 0.25, 0.0]).sigmoid()
    assert torch.allclose(probs, 0.75 * first.double().sigmoid() + 0.25 * second.double().sigmoid())
    assert labels.averaged([torch.tensor([[800.0, -800.0]])] * 2, [0.5, 0.5]).tolist() == [
        [800.0, -800.0]
    ]  # not rounded to 0 or 1


def test_only_classes_are_balanced():
    assert (
        ClassTarget(["a", "b"]).balanced(torch.tensor([0, 1, 1, 1])).settings()
        == ClassTarget(["a", "b"]).settings()
    )
    with pytest.raises(
        ValueError,
        match=r"class_weights=balanced expects a task of classes, got labels a, b; set "
        r"class_weights=none",
    ):
        MultiLabelTarget(["a", "b"]).balanced(torch.zeros(1, 2))


def test_missing_labels_have_no_gradient():
    for target in (
        fitted(),
        fitted(loss="huber"),
        RegressionTarget(["a", "b"], "poisson"),
        MultiLabelTarget(["a", "b"]),
    ):
        outputs = torch.zeros(2, 2, requires_grad=True)
        target.loss(outputs, torch.tensor([[NAN, 0.25], [0.75, NAN]])).backward()
        assert outputs.grad is not None and bool(
            (outputs.grad == 0).tolist() == [[True, False], [False, True]]
        )
        assert float(target.loss(outputs.detach(), torch.full((2, 2), NAN))) == 0


def test_counts_are_predicted_as_rates():
    target = RegressionTarget(["n"], "poisson").fit(torch.tensor([[0.0], [4.0]]))
    assert target.mean is None
    assert float(
        target.loss(torch.tensor([[math.log(4.0)]]), torch.tensor([[3.0]]))
    ) == pytest.approx(4 - 3 * math.log(4))
    assert target.predictions(
        [torch.tensor([[0.0]]), torch.tensor([[2.0]])]
    ).item() == pytest.approx(math.e)
    score = target.valid_score(torch.tensor([[4.0]]), torch.tensor([[3.0]]))
    assert -score.negative_loss == pytest.approx(4 - 3 * math.log(4), rel=1e-6)


def test_labels_are_transformed_and_predictions_transformed_back():
    target, labels = RegressionTarget(["a"], transform="log2").read(
        ["8", "0.5"], "t.csv", "column 'a'"
    )
    assert labels.tolist() == [[3], [-1]] and labels.dtype == np.float32
    found = target.predicted(np.array([[[3.0]], [[1.0]]], np.float32))
    assert (
        found.values.tolist() == [[4.0]]
        and found.spread.tolist() == [[6.0]]
        and found.combined.tolist() == [[2.0]]
    )
    assert (
        found.rows() == [["4", "6"]]
        and target.columns == ["predicted_a", "spread_a"]
        and target.seed_columns(2) == ["log2(a)_seed_2"]
    )
    assert np.isnan(target.predicted(found.each_seed[:1]).spread).all()


def test_a_label_is_0_or_1_and_predictions_are_probabilities():
    target, labels = MultiLabelTarget(["x", "y"]).read(
        [SEPARATOR.join(("1", "no")), SEPARATOR.join(("", "TRUE"))], "t", "x"
    )
    np.testing.assert_array_equal(labels, [[1, 0], [NAN, 1]])
    assert float(target.loss(torch.zeros(1, 2), torch.tensor([[1.0, NAN]]))) == pytest.approx(
        math.log(2)
    )
    found = target.predicted(np.log(np.array([[[3.0, 1.0]], [[1.0, 1.0]]])))  # odds 3 and 1
    np.testing.assert_allclose(found.values, [[(0.75 + 0.5) / 2, 0.5]])
    np.testing.assert_allclose(found.spread, [[0.25, 0]], atol=1e-12)
    assert target.predictions(
        [torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 2.0]])]
    ).tolist() == [[0.5, 2.0]]


@pytest.mark.parametrize(
    "target", [fitted(transform="log1p"), MultiLabelTarget(["a", "b"]), ClassTarget(["p", "q"])]
)
def test_a_target_is_the_same_after_storing_it(target):
    again = build(json.loads(json.dumps(target.settings())))
    assert (
        type(again) is type(target)
        and again.settings() == target.settings()
        and again.names == target.names
    )
    outputs = [torch.tensor([[0.5, -1.0]])]
    assert torch.equal(again.predictions(outputs), copy.deepcopy(target).predictions(outputs))


def test_the_log_odds_of_classes_are_compared_between_alleles():
    log_probs = np.log([[0.5, 0.25, 0.25]])
    np.testing.assert_allclose(
        ClassTarget("abc").contrast(torch.as_tensor(log_probs)), [[0, -np.log(3), -np.log(3)]]
    )
    sure = torch.tensor([[0.0, -50.0, -60.0], [-60.0, 0.0, -50.0]])  # 1 - p is rounded to 0
    expected = [50 - np.log1p(np.exp(-10)), -50, -60]
    np.testing.assert_allclose(
        log_odds(sure.double()), [expected, [expected[i] for i in (2, 0, 1)]], rtol=1e-12
    )


def test_the_log_odds_of_many_classes_are_computed_in_linear_memory():
    log_probs = torch.zeros(40, 300).log_softmax(-1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        log_odds(log_probs)
    largest = max(event.self_cpu_memory_usage for event in found.events())
    assert 0 < largest <= 2 * log_probs.nbytes


@pytest.mark.parametrize(
    ("kind", "settings", "cells", "message"),
    [
        (
            "regression",
            {},
            ["1", "strong"],
            "t.csv has 'strong' in column 'a', and a regression expects a number; correct it, set "
            "label_column",
        ),
        (
            "regression",
            {"transform": "log1p"},
            ["1", "-1"],
            "task.transform=log1p with task.loss=mse takes a number above -1",
        ),
        (
            "regression",
            {"loss": "poisson"},
            ["1", "-2"],
            "task.loss=poisson takes a number of at least 0",
        ),
        ("regression", {}, ["inf", "1"], "takes a finite number"),
        ("regression", {}, ["-1e39", "1"], "takes a finite number up to 3.4e+38"),
        ("multilabel", {}, ["1", "2"], "has '2' in column 'a', and a label is 0 or 1"),
        (
            "classification",
            {},
            ["a", "a"],
            "t.csv has one class, 'a', in column 'a'; classification needs two or more",
        ),
        (
            "classification",
            {},
            [f"{i / 7:.3f}" for i in range(60)],
            "has 60 different numbers such as 0.000 in column 'a', and classification",
        ),
    ],
)
def test_labels_that_do_not_fit_are_named(kind, settings, cells, message):
    with pytest.raises(ValueError, match=r"t\.csv") as error:
        build_target(kind, ["a"], **settings).read(cells, "t.csv", "column 'a'")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [[NAN], [NAN]],
            "t.csv has no value in column 'a' of its training items; add some, or set "
            "task.label_column",
        ),
        (
            [[2.5], [NAN], [2.5]],
            "t.csv has the same value, 2.5, in column 'a' of all 2 training items that have one",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_labels_that_cannot_be_learned_from_are_named(kind, labels, message):
    with pytest.raises(ValueError, match=r"t\.csv") as error:
        build_target(kind, ["a"]).fit(torch.tensor(labels), "t.csv")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("regresion", ["a"]),
            "task.kind 'regresion' is not known; set it to classification, regression, multilabel",
        ),
        (
            ("classification", ["a"], "mse"),
            "task.loss=mse belongs to task.kind=regression, and task.kind is classification",
        ),
        (
            ("multilabel", ["a"], None, "log2"),
            "task.transform=log2 belongs to task.kind=regression",
        ),
        (
            ("regression", ["a"], "mae"),
            "task.loss 'mae' is not known; set it to mse, poisson, huber",
        ),
        (
            ("regression", ["a"], None, "sqrt"),
            "task.transform 'sqrt' is not known; set it to none, log1p, log2",
        ),
        (("regression", ["a"], "poisson", "log1p"), "task.loss=poisson is for counts"),
        (
            ("classification", ["a", "b"]),
            "task.label_column names 2 columns and task.kind=classification takes one",
        ),
        (("regression", ["a", "a"]), "must name distinct columns"),
    ],
)
def test_a_target_that_does_not_exist_is_refused(args, message):
    with pytest.raises(ValueError, match="task") as error:
        build_target(*args)
    assert message in str(error.value)


def test_every_kind_has_a_target_of_its_own():
    assert [target.primary for target in KINDS.values()] == [
        *("accuracy", "spearman", "auroc", "spearman"),
    ]
    assert [build_target(kind, ["a"]).num_outputs for kind in KINDS] == [1] * 4


def test_two_different_values_look_like_classes(caplog):
    with caplog.at_level("WARNING", logger="dnadiff"):
        RegressionTarget(["a"]).read(["0", "1", "", "1"], "t.csv", "column 'a'")
        assert caplog.messages == [
            "t.csv: column 'a' holds 0 and 1 alone; for two classes set task.kind=classification"
        ]
        RegressionTarget(["a"]).read(["0", "1", "2"], "t.csv", "column 'a'")
    assert len(caplog.messages) == 1


def test_values_that_are_too_close_for_32_bits_are_reported(caplog):
    target = RegressionTarget(["y"])
    with caplog.at_level(logging.WARNING, logger="dnadiff"):
        target.as_array([(value,) for value in np.random.default_rng(0).uniform(8, 16, 5000)])
        target.as_array([(7.0,), (7.0,), (NAN,)])
        assert not caplog.messages
        target.as_array([(1e8 + value,) for value in range(200)])
    assert caplog.messages == [
        "column 'y': 32 bits round values as large as 1e+08 to multiples of 8, and their standard "
        "deviation is 57.7343; "
        "subtract a constant from the column"
    ]


def test_the_epoch_is_chosen_by_the_accuracy_with_the_weights_of_the_loss():
    log_probs, labels = torch.tensor([[0.75, 0.25]] * 4).log(), torch.tensor([0, 0, 0, 1])
    plain = ClassTarget(["a", "b"])
    assert plain.valid_score(log_probs, labels).accuracy == 0.75
    balanced = plain.balanced(labels)
    score = balanced.valid_score(log_probs, labels)
    assert score.accuracy == pytest.approx(0.5)
    assert plain.record(score).keys() == {"valid_accuracy", "valid_loss"}
    assert balanced.record(score) == {
        "valid_weighted_accuracy": score.accuracy,
        "valid_loss": -score.negative_loss,
    }
    always_rare = plain.balanced(labels).valid_score(torch.tensor([[0.45, 0.55]] * 4).log(), labels)
    assert (
        always_rare.accuracy == pytest.approx(0.5) and always_rare > score
    )  # a tie, which the weighted loss breaks
