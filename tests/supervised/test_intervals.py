"""Intervals of accuracy, of paired differences and of other metrics, and p-values that agree."""

import math

import numpy as np
import pytest
import scipy.stats
from scipy.stats import binom, norm

from dnadiff.supervised.intervals import (
    LEVEL,
    Estimate,
    clopper_pearson,
    interval_text,
    of_correct,
    of_folds,
    of_replicates,
    tango,
)
from dnadiff.supervised.metrics import METRICS, REGRESSION_METRICS, ScoredPredictions, ScoredValues
from dnadiff.supervised.metrics import estimate as estimate_of


def between_seeds(values) -> list[tuple[float, int]]:
    """The variance of the mean of several runs, and its degrees of freedom."""
    count = len(values)
    return [(np.var(values, ddof=1) / count, count - 1)] if count > 1 else []


def of_correct_rows(first: np.ndarray, second: np.ndarray | None = None) -> Estimate:
    """The accuracy of rows (R, S) of correct predictions, or the difference of two models."""
    models = [
        [ScoredPredictions(np.log([[0.9, 0.1]] * len(row)), 1 - row.astype(int)) for row in rows]
        for rows in (first, second)
        if rows is not None
    ]
    return estimate_of(METRICS["accuracy"], *models)


@pytest.mark.parametrize("total", [1, 5, 16, 32, 100, 300])
def test_the_exact_interval_of_an_accuracy_covers_every_probability(total):
    right = np.arange(total + 1)
    low, high = np.array([clopper_pearson(k, total) for k in right]).T
    p = np.linspace(0, 1, 1001)[:, None]
    covered = (binom.pmf(right, total, p) * (low <= p) * (p <= high)).sum(1)
    assert covered.min() >= 0.95


def test_clopper_pearson_has_the_published_ends():
    """R's binom.test, and scipy."""
    assert clopper_pearson(32, 32) == (pytest.approx(0.8911188), 1.0)
    for right, total in ((0, 7), (3, 12), (99, 100)):
        exact = scipy.stats.binomtest(right, total).proportion_ci()
        assert clopper_pearson(right, total) == pytest.approx((exact.low, exact.high))


def test_an_accuracy_of_1_of_32_items_has_an_interval():
    found = of_correct_rows(np.ones((1, 32), bool))
    assert found.value == 1 and found.interval() == (pytest.approx(0.8911188), 1.0)


@pytest.mark.parametrize(
    ("first", "second", "total", "ends"),
    [
        (1, 7, 21, (-0.517, -0.026)),  # Fagerland, Lydersen and Laake 2014, table V
        (0, 0, 44, (-0.0803, 0.0803)),  # z^2 / (n + z^2)
    ],
)
def test_the_score_interval_of_a_difference_has_the_published_ends(first, second, total, ends):
    assert tango(first, second, total) == pytest.approx(ends, abs=5e-4)
    assert tango(second, first, total) == pytest.approx([-end for end in reversed(ends)], abs=5e-4)


def test_the_score_interval_is_where_the_constrained_likelihood_gives_the_quantile():
    """The variance under a difference, from a maximum over a grid instead of a formula."""
    first, second, total = 9, 4, 60
    q = np.linspace(1e-6, 0.5, 200_001)  # the probability that only the second is right
    for end, sign in zip(tango(first, second, total), (1, -1)):
        p = q + end
        rest = 1 - p - q
        inside = (p > 0) & (rest > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            likelihood = (
                first * np.log(p) + second * np.log(q) + (total - first - second) * np.log(rest)
            )
        best = q[np.where(inside, likelihood, -np.inf).argmax()]
        score = (first - second - total * end) / math.sqrt(total * (2 * best + end * (1 - end)))
        assert score == pytest.approx(sign * norm.isf(0.025), abs=1e-3)


def test_the_p_value_of_one_run_each_is_mcnemars():
    first, second = np.ones((1, 100), bool), np.ones((1, 100), bool)
    first[0, :3] = second[0, 3:17] = False
    assert of_correct_rows(first, second).p_value() == pytest.approx(
        2 * norm.sf(11 / math.sqrt(17)), rel=1e-6
    )
    assert of_correct_rows(first, first).p_value() == 1


def test_a_difference_of_0_of_grouped_items_has_the_p_value_1():
    both = np.array([1.0, -1.0, 0.0, 0.0] * 25)
    ends = of_correct(both, np.arange(100) // 2, is_difference=True)
    assert Estimate(0.0, [0.0], ends).p_value() == pytest.approx(1)


def test_p_values_are_below_5_percent_exactly_if_the_interval_excludes_0():
    random, sides = np.random.default_rng(0), [0, 0]
    for _ in range(150):
        size, runs = int(random.integers(10, 300)), random.integers(1, 5, 2)
        hard = random.random(size)
        first, second = (
            hard < random.normal(0.75 + 0.1 * random.random(), 0.03, (count, 1)) for count in runs
        )
        found = of_correct_rows(first, second)
        low, high = found.interval()
        excludes = low > 0 or high < 0
        sides[excludes] += 1
        assert (found.p_value() < LEVEL) == excludes
        assert -1 <= low <= found.value <= high <= 1
    assert min(sides) > 20
    # What is printed for accuracies of .83, .79 and .85 against a fixed .80.
    y = np.random.default_rng(3).random(2000)
    found = of_correct_rows(y < np.array([[0.83], [0.79], [0.85]]), y[None] < 0.8)
    assert found.interval()[0] < 0 < found.interval()[1] and found.p_value() > 0.2


def test_p_values_of_other_metrics_agree_with_their_intervals():
    random, seen = np.random.default_rng(1), set()
    for _ in range(20):
        labels = random.standard_normal((120, 1))
        runs = [
            [ScoredValues(labels + scale * random.standard_normal((120, 1)), labels)]
            for scale in (1.0, random.uniform(1.0, 1.6))
        ]
        found = estimate_of(REGRESSION_METRICS["spearman"], *runs)
        low, high = found.interval()
        seen.add(excludes := low > 0 or high < 0)
        assert (found.p_value() < LEVEL) == excludes and -2 <= low < high <= 2
    assert seen == {True, False}


def test_seeds_alone_give_the_t_test():
    values = [0.8, 0.83, 0.79]
    found = Estimate(
        np.mean(values), values, lambda level: (np.mean(values),) * 2, between_seeds(values)
    )
    exact = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert found.interval() == pytest.approx(exact)


@pytest.mark.parametrize("dominating", ["seeds", "items", "neither"])
@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("others", ["runs", "fixed"])
def test_equal_models_are_rarely_called_different(dominating, count, others):
    """300 studies each; docs/results/intervals.md has 2,000."""
    between, own, flipped = {
        "seeds": (0.02, 0.0, 0.0),
        "items": (0.0, 0.2, 0.01),
        "neither": (0.008, 0.1, 0.04),
    }[dominating]
    random, wrong, size = np.random.default_rng(count), 0, 1000

    def runs(hard: np.ndarray, number: int, between: float) -> np.ndarray:
        return (hard < random.normal(0.8, between, (number, 1))) ^ (
            random.random((number, size)) < flipped
        )

    for _ in range(300):
        hard = random.random(size)
        a = runs(hard, count, between)
        other = np.where(random.random(size) < own, random.random(size), hard)
        b = runs(other, count, between) if others == "runs" else runs(other, 1, 0.0)
        means = a.mean(1), b.mean(1)
        low, high = Estimate(
            means[0].mean() - means[1].mean(),
            [],
            of_correct(a.mean(0) - b.mean(0), None, True),
            [each for one in means for each in between_seeds(one)],
        ).interval()
        wrong += low > 0 or high < 0
    assert wrong <= 26  # the 95 % limit of a binomial of 6 %


def test_a_table_says_that_there_are_too_few_items():
    random = np.random.default_rng(0)
    for size, text in ((99, "too few items"), (100, " .. ")):
        labels = random.integers(0, 2, size)
        run = ScoredPredictions(np.log(random.dirichlet([1, 1], size)), labels)
        for name in ("auroc", "auprc", "mcc", "f1"):
            found = estimate_of(METRICS[name], [run])
            assert text in interval_text(found.record()), name
            assert (found.p_value() is None) == (size < 100)
        biased = estimate_of(METRICS["calibration_error"], [run])
        assert interval_text(biased.record()) == "too few items" and biased.value > 0


def test_items_that_all_agree_have_no_interval_except_that_of_accuracy():
    labels = np.arange(200) % 2
    run = ScoredPredictions(np.log(0.8 * np.eye(2)[labels] + 0.1), labels)
    assert estimate_of(METRICS["accuracy"], [run]).interval()[0] == pytest.approx(0.98172, abs=1e-4)
    for name in ("auroc", "mcc", "f1", "auprc"):
        assert estimate_of(METRICS[name], [run]).interval() == (None, None)
    assert estimate_of(METRICS["auroc"], [run], [run]).interval() == (None, None)


def test_the_jackknife_of_a_mean_has_its_standard_error():
    values = np.random.default_rng(0).normal(size=(400, 1))
    found = estimate_of(REGRESSION_METRICS["mse"], [ScoredValues(values, np.zeros((400, 1)))])
    low, high = found.interval()
    se = (values**2).std(ddof=1) / 20
    assert math.sqrt(low * high) == pytest.approx(found.value)  # symmetric for the logarithm
    assert math.log(high / low) == pytest.approx(2 * 1.98 * se / found.value, rel=0.15)


def test_a_metric_that_few_items_decide_has_a_wider_interval():
    even, one = np.tile([0.9, 1.1], 100), np.ones(200)
    one[0] = 1 + math.sqrt(200) / 10
    widths = []
    for replicates in (even, one + 0.001 * even):
        low, high = of_replicates(1.0, replicates, None)(LEVEL)
        widths.append((high - low) / np.std(replicates))
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize("p", [0.6, 0.9, 0.97])
def test_intervals_of_areas_and_correlations_cover_the_true_value(p):
    """150 samples of 100 items; docs/results/intervals.md has more."""
    random, metrics = np.random.default_rng(0), ("auroc", "mcc", "spearman")
    covered = dict.fromkeys(metrics, 0)
    given = dict.fromkeys(metrics, 0)

    def sample(size: int) -> dict[str, ScoredValues]:
        labels, values = random.integers(0, 2, size), random.standard_normal(size)
        logit = norm.ppf(p) * (2 * labels - 1) + random.standard_normal(size)
        predicted = (2 * p - 1) * values + math.sqrt(1 - (2 * p - 1) ** 2) * random.standard_normal(
            size
        )
        classes = ScoredPredictions(-np.logaddexp(0, np.stack([logit, -logit], 1)), labels)
        of_values = ScoredValues(predicted[:, None], values[:, None])
        return {"auroc": classes, "mcc": classes, "spearman": of_values}

    every = METRICS | REGRESSION_METRICS
    true = {name: every[name](run, np.ones(200_000, bool)) for name, run in sample(200_000).items()}
    for _ in range(150):
        for name, run in sample(100).items():
            low, high = estimate_of(every[name], [run]).interval()
            given[name] += low is not None
            covered[name] += low is not None and low <= true[name] <= high
    assert all(covered[name] >= 0.9 * given[name] > 0.9 * 100 for name in metrics)


@pytest.mark.parametrize("number", [5, 20])
def test_intervals_over_few_groups_cover_the_true_value(number):
    random, covered, trials = np.random.default_rng(number), 0, 400
    groups = np.repeat(np.arange(number), 20)
    for _ in range(trials):
        chance = np.clip(0.7 + 0.15 * random.standard_normal(number), 0, 1)[groups]
        low, high = of_correct((random.random(len(groups)) < chance) * 1.0, groups, False)(LEVEL)
        covered += low <= 0.7 <= high
    assert covered / trials >= 0.93


def test_copies_of_items_do_not_narrow_the_interval_if_they_are_one_group():
    random = np.random.default_rng(0)
    right, other = random.random((2, 150)) < 0.7
    copies = np.repeat(np.arange(150), 9)
    for values, is_difference in ((right * 1.0, False), (right * 1.0 - other, True)):
        once = of_correct(values, None, is_difference)(LEVEL)
        grouped = of_correct(values[copies], copies, is_difference)(LEVEL)
        apart = of_correct(values[copies], None, is_difference)(LEVEL)
        assert grouped == pytest.approx(once, abs=0.005)
        assert apart[1] - apart[0] < 0.5 * (once[1] - once[0])
    run = ScoredValues(right[:, None] + random.random((150, 1)), other[:, None] * 1.0)
    many = ScoredValues(run.predictions[copies], run.labels[copies])
    spearman = REGRESSION_METRICS["spearman"]
    assert estimate_of(spearman, [many], groups=copies).interval() == pytest.approx(
        estimate_of(spearman, [run]).interval(), abs=0.01
    )


def test_a_hundred_thousand_items_are_quick_and_no_interval_leaves_its_range():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 100_000)
    run = ScoredPredictions(np.log(random.dirichlet([1, 1], 100_000)), labels)
    low, high = estimate_of(METRICS["auroc"], [run]).interval()
    assert 0.004 < high - low < 0.01
    close = np.ones((2, 40), bool)
    close[0, :20] = False  # two seeds, one at chance
    assert of_correct_rows(close).interval() == (0.0, 1.0)
    assert of_correct_rows(close, close[1:]).interval() == (-1.0, 1.0)


def test_folds_of_a_cross_validation_have_the_variance_of_correlated_scores():
    right = np.arange(100) % 10 < 7
    folds = np.arange(100) // 20
    correct = ScoredPredictions(np.log([[0.9, 0.1]] * 100), 1 - right.astype(int))
    plain, of_models = (
        estimate_of(METRICS["accuracy"], [correct if of is None else with_folds(correct, of)])
        for of in (None, folds)
    )
    assert of_folds(folds) == 1 + 5 / 4 and of_folds(None) == of_folds(folds * 0) == 1
    for end, wider in zip(plain.interval(), of_models.interval(), strict=True):
        assert wider - plain.value == pytest.approx(1.5 * (end - plain.value))


def with_folds(scored: ScoredPredictions, folds: np.ndarray) -> ScoredPredictions:
    return ScoredPredictions(scored.predictions, scored.labels, folds)


def test_intervals_of_a_cross_validation_hold_their_level_where_training_sets_matter():
    """The nearer of two class means in 10 dimensions, of which the first tells the classes apart;
    the truth is the mean accuracy over training sets of the same size."""
    random, size, hits, without = np.random.default_rng(0), 60, 0, 0

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % 2
        return random.standard_normal((count, 10)) + np.eye(10)[0] * labels[:, None], labels

    def correct(train: tuple, test: tuple) -> np.ndarray:
        (points, labels), (others, truth) = train, test
        low, high = (points[labels == number].mean(0) for number in (0, 1))
        return ((others - (low + high) / 2) @ (high - low) > 0) == truth

    true = np.mean([correct(draw(48), draw(2000)).mean() for _ in range(300)])
    folds = np.arange(size) // 2 % 5
    for _ in range(300):
        points, labels = draw(size)
        found = np.zeros(size, bool)
        for number in range(5):
            own = folds == number
            found[own] = correct((points[~own], labels[~own]), (points[own], labels[own]))
        scored = ScoredPredictions(np.log([[0.9, 0.1]] * size), 1 - found.astype(int), folds)
        low, high = estimate_of(METRICS["accuracy"], [scored]).interval()
        hits += low <= true <= high
        low, high = estimate_of(METRICS["accuracy"], [with_folds(scored, folds * 0)]).interval()
        without += low <= true <= high
    assert hits / 300 > 0.95 > 0.93 > without / 300
