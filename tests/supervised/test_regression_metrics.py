"""Correlations and R2 of chosen items, against scipy and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from dnadiff.supervised.metrics import (
    LABEL_METRICS,
    REGRESSION_METRICS,
    ScoredValues,
    estimate,
    metric_values,
    named_metrics,
    summarize_metrics,
)


def values(count: int = 60, targets: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = random.integers(0, 9, (count, targets)).astype(float)
    return (labels + random.normal(0, 3, labels.shape)).round(), labels  # with ties


def by_library(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    return {
        "spearman": scipy.stats.spearmanr(predicted, measured).statistic,
        "pearson": scipy.stats.pearsonr(predicted, measured).statistic,
        "r2": sklearn.metrics.r2_score(measured, predicted),
        "mse": sklearn.metrics.mean_squared_error(measured, predicted),
    }


def of_chosen(predicted: np.ndarray, measured: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
    scored = ScoredValues(predicted, measured)
    return {
        name: [replace(metric, number=k)(scored, chosen) for k in range(measured.shape[1])]
        for name, metric in REGRESSION_METRICS.items()
    }


def test_metrics_of_chosen_items_equal_those_of_libraries():
    predicted, measured = values()
    for chosen in (np.ones(60, bool), np.random.default_rng(1).random(60) < 0.6):
        expected = by_library(predicted[chosen, 0], measured[chosen, 0])
        found = of_chosen(predicted, measured, chosen)
        assert {name: float(each[0]) for name, each in found.items()} == pytest.approx(
            expected, rel=1e-9
        )


def test_missing_labels_are_left_out_of_each_target():
    predicted, measured = values(targets=2)
    measured[::3, 0] = measured[1::4, 1] = np.nan
    found = of_chosen(predicted, measured, np.ones(60, bool))
    for k in (0, 1):
        known = np.isfinite(measured[:, k])
        expected = by_library(predicted[known, k], measured[known, k])
        assert {name: each[k] for name, each in found.items()} == pytest.approx(expected)


def test_a_constant_prediction_has_no_correlation_and_constant_labels_have_no_metric():
    predicted, measured = values()
    constant = np.full_like(predicted, 0.1)
    found = of_chosen(constant, measured, np.arange(60) % 3 > 0)
    assert found["spearman"] == found["pearson"] == [0] and found["r2"][0] < 0
    found = of_chosen(predicted, constant, np.arange(60) % 3 > 0)
    assert all(np.isnan(found[name]) for name in ("spearman", "pearson", "r2")) and np.isfinite(
        found["mse"]
    )


def test_several_targets_are_averaged_and_named():
    predicted, measured = values(targets=2)
    found = metric_values(
        ScoredValues(predicted, measured), named_metrics(["a", "b"], REGRESSION_METRICS)
    )
    assert len(found) == 12 and found["r2"] == pytest.approx(
        (found["r2 of a"] + found["r2 of b"]) / 2
    )
    assert found["spearman of b"] == pytest.approx(
        scipy.stats.spearmanr(predicted[:, 1], measured[:, 1]).statistic
    )
    assert list(named_metrics(["a"], REGRESSION_METRICS)) == ["spearman", "pearson", "r2", "mse"]


def test_the_interval_has_the_width_of_the_bootstrap_and_groups_widen_it():
    predicted, measured = values(300)
    spearman = named_metrics(["a"], REGRESSION_METRICS)["spearman"]
    found = estimate(spearman, [ScoredValues(predicted, measured)])
    assert found.value == pytest.approx(
        scipy.stats.spearmanr(predicted[:, 0], measured[:, 0]).statistic
    )
    random = np.random.default_rng(3)
    picks = [random.integers(0, 300, 300) for _ in range(400)]
    expected = np.std(
        [scipy.stats.spearmanr(predicted[i, 0], measured[i, 0]).statistic for i in picks]
    )
    low, high = found.interval()
    assert high - low == pytest.approx(2 * 1.97 * expected, rel=0.15)
    doubled = ScoredValues(np.repeat(predicted, 4, 0), np.repeat(measured, 4, 0))
    narrow = estimate(spearman, [doubled]).interval()
    assert narrow[1] - narrow[0] < 0.7 * (high - low)
    summary = summarize_metrics([ScoredValues(predicted, measured)], {"spearman": spearman})
    assert (summary["spearman"]["low"], summary["spearman"]["high"]) == (low, high)


def test_paired_differences_are_of_the_same_items():
    predicted, measured = values(200)
    spearman = named_metrics(["a"], REGRESSION_METRICS)["spearman"]
    good, same, bad = (
        ScoredValues(each, measured)
        for each in (measured + 0.1 * predicted, 3 * predicted + 1, predicted)
    )
    difference = estimate(spearman, [bad], [same])
    assert difference.value == 0 and difference.interval() == (None, None)  # all items agree
    assert difference.p_value() is None
    better = estimate(spearman, [good, good], [bad])
    assert better.interval()[0] > 0 and better.p_value() < 1e-6
    alone = [estimate(spearman, [each]).interval() for each in (good, bad)]
    near = ScoredValues(predicted + 0.1 * np.random.default_rng(0).normal(size=(200, 1)), measured)
    paired = estimate(spearman, [near], [bad]).interval()
    assert paired[1] - paired[0] < 0.3 * (alone[1][1] - alone[1][0])


def test_labels_are_scored_one_by_one():
    random = np.random.default_rng(0)
    log_odds, labels = random.normal(size=(80, 2)), random.integers(0, 2, (80, 2)).astype(float)
    labels[::5, 1] = np.nan
    found = metric_values(ScoredValues(log_odds, labels), named_metrics(["x", "y"], LABEL_METRICS))
    for k, name in enumerate("xy"):
        known = np.isfinite(labels[:, k])
        truth, score = labels[known, k], log_odds[known, k]
        assert found[f"auroc of {name}"] == pytest.approx(
            sklearn.metrics.roc_auc_score(truth, score)
        )
        assert found[f"auprc of {name}"] == pytest.approx(
            sklearn.metrics.average_precision_score(truth, score)
        )
    assert found["auroc"] == pytest.approx((found["auroc of x"] + found["auroc of y"]) / 2)
    empty = ScoredValues(log_odds, np.full((80, 2), np.nan))
    assert all(
        np.isnan(value)
        for value in metric_values(empty, named_metrics(["x", "y"], LABEL_METRICS)).values()
    )


def test_an_interval_needs_a_hundred_labeled_items_and_values_that_stay_defined():
    predicted, measured = values(120, targets=2)
    metrics = named_metrics(["a", "b"], REGRESSION_METRICS)
    measured[:21, 1] = np.nan
    found = summarize_metrics([ScoredValues(predicted, measured)], metrics)
    assert found["spearman"]["low"] is found["spearman of b"]["low"] is None
    assert found["spearman of a"]["low"] < found["spearman of a"]["high"]
    measured[:, 1] = np.arange(120) == 0  # one value for all without the first item
    found = summarize_metrics([ScoredValues(predicted, measured)], metrics)
    assert np.isfinite(found["spearman of b"]["value"]) and found["spearman of b"]["low"] is None


def test_folds_count_by_their_labeled_items():
    random = np.random.default_rng(0)
    labels, folds = random.standard_normal((203, 1)), np.repeat([0, 1], [100, 103])
    values = labels + random.standard_normal((203, 1))
    labels[:97] = np.nan  # three labeled items in the first fold
    values[97:100] = -labels[97:100]
    run = ScoredValues(values, labels, folds)
    each = [
        scipy.stats.spearmanr(values[rows, 0], labels[rows, 0]).statistic
        for rows in (slice(97, 100), slice(100, 203))
    ]
    assert each[0] == pytest.approx(-1) and metric_values(
        run, named_metrics(["y"], REGRESSION_METRICS)
    )["spearman"] == pytest.approx((3 * each[0] + 103 * each[1]) / 106)
