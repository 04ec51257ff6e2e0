import json

import numpy as np
import pytest

from dnadiff.genomics.metrics.memorization import TrainingIndex
from dnadiff.genomics.metrics.sample_quality import SampleQualityEvaluator


def random_windows(number, length, seed, probs=(0.3, 0.2, 0.2, 0.3)):
    return list(
        np.random.default_rng(seed).choice(4, size=(number, length), p=probs).astype(np.uint8)
    )


@pytest.fixture(scope="module")
def real():
    return random_windows(80, 120, 7)


def test_samples_of_the_same_source_are_within_the_baseline(real):
    found = SampleQualityEvaluator(random_windows(40, 120, 8), real, num_splits=40, order=2)()
    distances = [m for m in found.metrics if m.is_distance]
    assert sum(m.verdict == "as real windows" for m in found.metrics) >= len(found.metrics) - 2
    covered = [
        m.distance.low - m.distance.baseline
        <= m.distance.samples - m.distance.baseline
        <= m.distance.high - m.distance.baseline
        for m in distances
    ]
    assert np.mean(covered) > 0.8 and found.num_compared == 40
    json.dumps(found.content(), allow_nan=False)


def test_one_metric_in_twenty_is_outside_the_baseline_by_chance(real):
    # Without the correction for overlapping sets 27 % would be: sets that share windows vary less
    # than an independent one.
    evaluator, rng = (
        SampleQualityEvaluator(random_windows(40, 120, 8), real, order=2),
        np.random.default_rng(0),
    )
    found = [
        evaluator._value(
            ("mean", "mean", ""), np.mean, (rng.normal(size=40), rng.normal(size=80))
        ).verdict
        for _ in range(150)
    ]
    outside = np.mean([verdict != "as real windows" for verdict in found])
    assert 0.0 < outside < 0.05 + 4 * (0.05 * 0.95 / 150) ** 0.5


def test_one_distance_in_twenty_has_its_mutual_information_outside_the_range_by_chance():
    # Windows of several kinds have mutual information; without the correction 26 % of the curve
    # would be outside.
    rng, outside = np.random.default_rng(0), []
    for seed in range(20):
        samples, real = (windows_of_two_kinds(number, rng) for number in (40, 80))
        evaluator = SampleQualityEvaluator(samples, real, num_splits=60, seed=seed)
        ours, (low, high) = map(np.array, evaluator._mutual_information().information)
        outside.append(((ours < low) | (ours > high)).mean())
    assert 0.005 < np.mean(outside) < 0.13 and low.min() >= 0


def windows_of_two_kinds(number, rng):
    kinds = [[0.4, 0.1, 0.1, 0.4], [0.2, 0.3, 0.3, 0.2]]
    return [
        rng.choice(4, 60, p=kinds[kind]).astype(np.uint8) for kind in rng.integers(2, size=number)
    ]


def test_another_source_is_farther_and_copies_of_real_windows_warn(real):
    far = SampleQualityEvaluator(
        random_windows(40, 120, 8, (0.25, 0.25, 0.25, 0.25)),
        real,
        num_splits=20,
        order=2,
        num_slow=3,
    )()
    assert (
        far["js_1"].verdict == far["js_3"].verdict == "farther than real windows"
        and not far["js_1"].warns
    )
    same = SampleQualityEvaluator(real, real, num_splits=20, order=2, num_slow=3)()
    assert same["js_6"].warns and any("too similar: 6-mers" in line for line in same.warnings())


def test_copies_of_the_training_part_are_detected(real):
    text = random_windows(1, 6_000, 9)[0]
    copies = [text[120 * i : 120 * (i + 1)] for i in range(40)]
    found = SampleQualityEvaluator(
        copies, real, TrainingIndex([text]), num_splits=20, order=2, num_slow=3
    )()
    assert found["seen"].distance.samples == 100 and found["longest_match"].distance.samples == 120
    assert found["seen"].verdict == "higher than real windows" and any(
        "copies" in line for line in found.warnings()
    )


def test_many_real_windows_are_thinned_evenly():
    real = random_windows(30_000, 8, 1)
    few, many = (
        SampleQualityEvaluator(random_windows(n, 8, 2), real, num_splits=20) for n in (10, 6_000)
    )
    assert (
        few.real == np.stack(real)[np.linspace(0, 29_999, 20_000).astype(int)]
    ).all() and few.number == 10
    assert max(chosen.max() for pair in few.sets.real for chosen in pair) < 20_000
    assert len(many.real) == 24_000 and many.number == 6_000  # four times the samples
    assert (
        SampleQualityEvaluator(random_windows(10, 8, 2), real[:20_000], num_splits=20).real
        == np.stack(real[:20_000])
    ).all()


def test_too_few_or_too_short_sequences_are_refused(real):
    with pytest.raises(
        ValueError, match="9 samples and 80 real windows of 120 bases are too few to compare"
    ):
        SampleQualityEvaluator(random_windows(9, 120, 1), real)
    with pytest.raises(ValueError, match="shorter than the 6-mers"):
        SampleQualityEvaluator(random_windows(20, 5, 1), random_windows(40, 5, 2))
    with pytest.raises(ValueError, match="shorter than the 24-mers"):
        SampleQualityEvaluator(
            random_windows(20, 20, 1), random_windows(40, 20, 2), TrainingIndex(real)
        )
