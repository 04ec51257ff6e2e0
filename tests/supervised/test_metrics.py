import tracemalloc

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn import metrics as published

from dnadiff.supervised import metrics
from dnadiff.supervised.metrics import (
    METRICS,
    ScoredPredictions,
    estimate,
    metric_values,
    roc_curves,
    summarize_metrics,
)


def predictions(num_classes: int, number: int = 300) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(num_classes)
    labels = random.integers(0, num_classes, number)
    logits = (
        random.normal(size=(number, num_classes)).round(1) + np.eye(num_classes)[labels]
    )  # rounded: ties occur
    return logits - np.log(np.exp(logits).sum(1, keepdims=True)), labels


@pytest.mark.parametrize("num_classes", [2, 3])
def test_metrics_of_chosen_items_equal_scikit_learn(num_classes):
    log_probs, labels = predictions(num_classes)
    scored, probs = (
        ScoredPredictions(log_probs, labels),
        np.exp(log_probs).round(9),
    )  # ties stay ties
    for chosen in (np.ones(300, bool), np.random.default_rng(0).random(300) < 0.6):
        w = chosen * 1.0
        truth, score = (
            (labels, probs[:, 1]) if num_classes == 2 else (np.eye(num_classes)[labels], probs)
        )
        average = {"average": "macro"}
        expected = {
            metrics.accuracy: published.accuracy_score(labels, scored.predicted, sample_weight=w),
            metrics.mcc: published.matthews_corrcoef(labels, scored.predicted, sample_weight=w),
            metrics.f1: published.f1_score(labels, scored.predicted, sample_weight=w, **average),
            METRICS["auroc"]: published.roc_auc_score(truth, score, sample_weight=w, **average),
            METRICS["auprc"]: published.average_precision_score(
                truth, score, sample_weight=w, **average
            ),
        }
        for metric, value in expected.items():
            assert metric(scored, chosen) == pytest.approx(value, abs=1e-9)


def test_calibration_error_of_a_confident_model_is_its_error_rate():
    log_probs = np.log(np.array([[1 - 1e-12, 1e-12]] * 10))
    assert metric_values(ScoredPredictions(log_probs, np.array([0] * 7 + [1] * 3)), METRICS)[
        "calibration_error"
    ] == pytest.approx(0.3)


def test_a_constant_model_is_at_chance():
    found = metric_values(
        ScoredPredictions(np.log(np.full((8, 2), 0.5)), np.array([0, 1] * 4)), METRICS
    )
    assert (found["accuracy"], found["mcc"], found["auroc"], found["auprc"]) == (0.5, 0.0, 0.5, 0.5)


def test_a_summary_has_the_exact_interval_and_spread_is_max_minus_min():
    def right(count: int) -> ScoredPredictions:
        return ScoredPredictions(
            np.log(np.where(np.arange(400)[:, None] < count, [[0.9, 0.1]], [[0.1, 0.9]])),
            np.zeros(400, int),
        )

    found = summarize_metrics([right(300)], METRICS)["accuracy"]
    exact = scipy.stats.binomtest(300, 400).proportion_ci()
    assert (found["low"], found["high"]) == pytest.approx((exact.low, exact.high))
    several = summarize_metrics([right(280), right(320)], METRICS)["accuracy"]
    assert (several["value"], several["spread"]) == (pytest.approx(0.75), pytest.approx(0.1))
    half = scipy.stats.t.ppf(0.975, 1) * 0.05  # of two seeds, and a little more for the items
    assert 0.75 - 1.01 * half < several["low"] < 0.75 - half and several["high"] == 1.0
    assert summarize_metrics([right(300)], METRICS)["auroc"]["low"] is None


def test_confusion_has_true_classes_as_rows():
    log_probs = np.log([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8]])
    assert ScoredPredictions(log_probs, np.array([0, 0, 1])).confusion().tolist() == [
        [1, 1],
        [0, 1],
    ]


def test_rankings_are_averaged_over_folds():
    labels, folds = np.array([0, 1, 0, 1, 1, 0, 1]), np.array([0, 0, 0, 0, 1, 1, 2])
    probs = np.array(
        [0.1, 0.4, 0.2, 0.3, 0.9, 0.8, 0.5]
    )  # perfect within the folds of two classes, not in all
    log_probs = np.log(np.stack([1 - probs, probs], 1))
    found = metric_values(ScoredPredictions(log_probs, labels, folds), METRICS)
    assert (
        found["auroc"] == found["auprc"] == 1.0
        and metric_values(ScoredPredictions(log_probs, labels), METRICS)["auroc"] < 1
    )
    assert (
        found["accuracy"]
        == metric_values(ScoredPredictions(log_probs, labels), METRICS)["accuracy"]
    )
    # The second fold has one class.
    chosen = np.array([True, True, True, True, True, False, True])
    assert METRICS["auroc"](ScoredPredictions(log_probs, labels, folds), chosen) == 1.0
    chosen[:4] = False
    assert np.isnan(METRICS["auroc"](ScoredPredictions(log_probs, labels, folds), chosen))


def test_classes_that_a_fold_lacks_are_averaged_over_the_others():
    random = np.random.default_rng(0)
    folds = np.arange(300) % 5
    labels = np.where(
        folds < 2, np.arange(300) // 5 % 3, np.arange(300) // 5 % 2
    )  # the third class is in two folds only
    log_probs = np.log(random.dirichlet([1, 1, 1], 300) + 0.5 * np.eye(3)[labels]) - np.log(1.5)
    found = summarize_metrics([ScoredPredictions(log_probs, labels, folds)], METRICS)
    each = [
        (rows, ScoredPredictions(log_probs[rows], labels[rows]))
        for rows in (np.flatnonzero(folds == n) for n in range(5))
    ]
    areas = np.array(
        [
            published.roc_auc_score(labels[rows] == c, np.exp(one.predictions)[:, c])
            if (labels[rows] == c).any()
            else np.nan
            for rows, one in each
            for c in range(3)
        ]
    )
    assert found["auroc"]["value"] == pytest.approx(np.nanmean(areas.reshape(5, 3), 0).mean())
    assert all(
        found[name]["low"] < found[name]["value"] < found[name]["high"]
        for name in ("auroc", "auprc", "accuracy")
    )


def test_intervals_stay_in_the_range_of_the_metric():
    labels, groups = np.arange(120) % 2, np.arange(120) // 24
    right = np.where(np.arange(120) < 3, 1 - labels, labels)  # all errors in one of five groups
    log_probs = np.log(0.9 * np.eye(2)[right] + 0.05)
    found = summarize_metrics([ScoredPredictions(log_probs, labels)], METRICS, groups=groups)
    biased = found.pop("calibration_error")
    assert biased["low"] is None and biased["value"] > 0
    for name, one in found.items():
        assert METRICS[name].low <= one["low"] <= one["high"] <= METRICS[name].high
    run = [ScoredPredictions(log_probs, labels)]
    wide = estimate(METRICS["accuracy"], run, groups=groups).interval()
    alone = estimate(METRICS["accuracy"], run).interval()
    assert wide[0] < alone[0] and alone[1] < wide[1] <= 1
    few = estimate(METRICS["accuracy"], run, groups=groups // 2)
    assert few.interval() == (None, None)  # three groups


def test_area_under_roc_curves_equals_auroc():
    draws = np.random.default_rng(2)
    for classes in (2, 3):
        scored = ScoredPredictions(
            np.log(draws.dirichlet(np.ones(classes), 400)), draws.integers(0, classes, 400)
        )
        curves = roc_curves(scored, max_points=500)
        assert len(curves) == (1 if classes == 2 else 3)
        areas = [published.auc(curve["false"], curve["true"]) for curve in curves]
        assert np.mean(areas) == pytest.approx(metric_values(scored, METRICS)["auroc"], abs=1e-4)
        assert all(
            len(curve["true"]) <= 101 and curve["true"][-1] == curve["false"][-1] == 1
            for curve in roc_curves(scored)
        )


@pytest.mark.parametrize("classes", [2, 3])
def test_confident_predictions_are_ranked_where_their_probabilities_are_rounded_to_one(classes):
    logits = torch.zeros(41, classes)
    logits[:, 1] = torch.arange(41) + 30.0
    logits[40] = 50.0 * torch.eye(classes)[-1]
    log_probs, labels = (
        logits.log_softmax(-1).numpy(),
        np.array([0] * 20 + [1] * 20 + [classes - 1]),
    )
    assert len(set(np.exp(log_probs[:40, 1].astype(np.float64)))) == 1
    assert METRICS["auroc"](ScoredPredictions(log_probs, labels), np.ones(41, bool)) == 1


def test_a_class_without_items_leaves_areas_undefined():
    log_probs, labels = predictions(3)
    lacking = ScoredPredictions(log_probs[labels != 2], labels[labels != 2])
    for name in ("auroc", "auprc"):
        assert np.isnan(METRICS[name](ScoredPredictions(log_probs, labels), labels != 2))
        assert np.isnan(metric_values(lacking, METRICS)[name])


def test_150_classes_need_little_memory():
    log_probs, labels = predictions(150, 2000)
    scored, chosen = (
        ScoredPredictions(log_probs, labels),
        np.random.default_rng(0).random(2000) < 0.9,
    )
    tracemalloc.start()
    found = scored.confusion(chosen), METRICS["auroc"](scored, chosen)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8
    expected = published.confusion_matrix(
        labels[chosen], scored.predicted[chosen], labels=range(150)
    )
    assert np.array_equal(found[0], expected)
