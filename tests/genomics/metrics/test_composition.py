import tracemalloc

import numpy as np
import pytest

from dnadiff.genomics.metrics.composition import (
    RandomSets,
    as_bases,
    common_length,
    independent_range,
    jensen_shannon,
    kmer_counts,
    wasserstein,
)


def random_sequences(number, gc=0.5, seed=0, length=60):
    probs = [(1 - gc) / 2, gc / 2, gc / 2, (1 - gc) / 2]
    return list(np.random.default_rng(seed).choice(4, (number, length), p=probs).astype(np.uint8))


def test_sequences_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="samples have length 60 and real windows 50"):
        common_length(random_sequences(4), random_sequences(8, length=50))
    assert as_bases(b"acgtuNR").tolist() == as_bases("ACGTUnr").tolist() == [0, 1, 2, 3, 3, 4, 4]


def test_kmer_counts_need_no_more_memory_than_their_type():
    windows = random_sequences(400)
    tracemalloc.start()
    counts = kmer_counts(windows, 6, True, np.float32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.dtype == np.float32 and (counts == kmer_counts(windows, 6, True)).all()
    assert peak < 1.2 * counts.nbytes


def test_jensen_shannon_by_hand():
    a, b = np.array([[2, 0], [2, 0]]), np.array([[1, 1]])
    # p (1, 0), q (1/2, 1/2), mean (3/4, 1/4): 0.8112781 - (0 + 1)/2
    assert jensen_shannon(a, b) == pytest.approx(0.3112781)
    assert jensen_shannon(a, a) == 0 and jensen_shannon(
        np.array([[1, 0]]), np.array([[0, 3]])
    ) == pytest.approx(1)


def test_jensen_shannon_of_large_counts_keeps_its_precision():
    counts = np.array([[30_000_000, 20_000_001], [30_000_010, 20_000_000]])
    narrow = [
        row[None].astype(np.float32) for row in counts[:, :] // 8 * 8
    ]  # numbers that float32 holds
    p, q = (row[0].astype(float) / row.astype(float).sum() for row in narrow)
    expected = ((p - q) ** 2 / (p + q)).sum() / (4 * np.log(2))  # leading order
    assert jensen_shannon(*narrow) == pytest.approx(expected, rel=0.3, abs=2e-15)


def entropy(p):
    return -(p * np.log2(p, where=p > 0, out=np.zeros_like(p))).sum()


def test_jensen_shannon_equals_the_difference_of_entropies():
    rng = np.random.default_rng(0)
    for num_kmers in (4, 256, 4096):
        a, b = (
            rng.poisson(rng.gamma(0.3, size=num_kmers), size=(20, num_kmers)).astype(np.float32)
            for _ in range(2)
        )
        for x, y in ((a, b), (a, a), (a, a + (a > 3)), (a, 0 * a)):
            p, q = (
                counts.sum(0, dtype=float) / max(counts.sum(dtype=float), 1) for counts in (x, y)
            )
            expected = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
            assert (
                jensen_shannon(x, y) == pytest.approx(expected, abs=1e-9)
                and jensen_shannon(x, y) >= 0
            )


def test_wasserstein_equals_the_mean_difference_of_quantiles():
    rng, levels = np.random.default_rng(0), (np.arange(200) + 0.5) / 200
    for size in (2, 20, 1000):
        a, b = rng.normal(size=size), rng.integers(5, size=2 * size)
        expected = np.abs(np.quantile(a, levels) - np.quantile(b, levels)).mean()
        assert wasserstein(a, b) == pytest.approx(expected, abs=1e-9) and wasserstein(a, a) == 0


def windows_of_many_kinds(number, rng, length=120):
    """Windows whose base frequencies differ, as those of a genome do."""
    gc = rng.beta(20, 20, size=number)
    return [
        rng.choice(4, length, p=[(1 - f) / 2, f / 2, f / 2, (1 - f) / 2]).astype(np.uint8)
        for f in gc
    ]


def test_one_kmer_in_twenty_is_outside_the_range_by_chance():
    # Sets of real windows overlap: without the correction 25 %, 16 % and 27 % of the 3-mers are
    # outside.
    for number, total in ((60, 120), (40, 160), (100, 160)):
        rng, found = np.random.default_rng(number), []
        for seed in range(30):
            ours, real = (
                kmer_counts(windows_of_many_kinds(n, rng), 3, True) for n in (number, total)
            )
            sets = RandomSets.draw(number, total, 100, seed)
            drawn = np.array([real[chosen].sum(0) for chosen, _ in sets.real], float)
            size = len(sets.samples[0])
            low, high = independent_range(drawn / drawn.sum(1, keepdims=True), size, total)
            mine = ours[sets.samples[0]].sum(0) / ours[sets.samples[0]].sum()
            found.append(((mine < low) | (mine > high)).mean())
        assert 0.02 < np.mean(found) < 0.11  # the k-mers of one comparison depend on each other


def test_range_of_few_sets_is_a_prediction_interval():
    numbers = iter(range(40))
    sets = [[np.array([0]), np.array([0])]] * 20
    found = RandomSets([np.array([0])] * 20, sets).distance(
        lambda a, b: float(next(numbers) % 20), np.zeros(1), np.zeros(1)
    )
    assert (found.low, found.high) == pytest.approx(
        (9.5 - 12.69, 9.5 + 12.69), abs=0.01
    )  # t of 19: 2.093; sd 5.916; sqrt(1 + 1/20)
