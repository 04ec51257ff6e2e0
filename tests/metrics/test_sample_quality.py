"""What is exact in the judgement of samples, on sequences made for it."""

import json

import numpy as np
import pytest

from dnadiff.kmers import reverse_complement
from dnadiff.metrics.composition import as_bases, distance, jensen_shannon
from dnadiff.metrics.discriminator import auroc, taught, told_apart
from dnadiff.metrics.memorization import TrainingSequence
from dnadiff.metrics.sample_quality import Judge
from dnadiff.metrics.structure import longest_frame, mutual_information, pair_counts, period_three


def rows(*texts):
    return np.stack([as_bases(text) for text in texts])


def random_windows(number, length, seed, probs=(0.3, 0.2, 0.2, 0.3)):
    return list(np.random.default_rng(seed).choice(4, size=(number, length), p=probs).astype(np.uint8))


def test_jensen_shannon_by_hand():
    a, b = np.array([[2, 0], [2, 0]]), np.array([[1, 1]])
    # p (1, 0), q (1/2, 1/2), mean (3/4, 1/4): 0.8112781 - (0 + 1)/2
    assert jensen_shannon(a, b) == pytest.approx(0.3112781)
    assert jensen_shannon(a, a) == 0 and jensen_shannon(np.array([[1, 0]]), np.array([[0, 3]])) == pytest.approx(1)


def test_divergences_of_large_counts_keep_their_digits():
    counts = np.array([[30_000_000, 20_000_001], [30_000_010, 20_000_000]])
    narrow = [row[None].astype(np.float32) for row in counts[:, :] // 8 * 8]  # numbers that float32 holds
    p, q = (row[0].astype(float) / row.astype(float).sum() for row in narrow)
    expected = ((p - q) ** 2 / (p + q)).sum() / (4 * np.log(2))  # leading order
    assert jensen_shannon(*narrow) == pytest.approx(expected, rel=0.3, abs=2e-15)


def test_the_range_of_few_sets_is_that_of_a_next_one():
    numbers = iter(range(40))
    sets = [[np.array([0]), np.array([0])]] * 20
    found = distance(lambda a, b: float(next(numbers) % 20), np.zeros(1), np.zeros(1), [np.array([0])] * 20, sets)
    assert (found.low, found.high) == pytest.approx((9.5 - 12.69, 9.5 + 12.69), abs=0.01)  # t of 19: 2.093; sd 5.916; sqrt(1 + 1/20)


def test_a_periodic_sequence_tells_everything_at_every_distance():
    counts = pair_counts(rows("ACGT" * 50), 8)
    assert counts[0, 0].sum() == 199 and counts[0, 7].sum() == 192
    np.testing.assert_allclose(mutual_information(counts), 2.0, atol=1e-3)


def test_pairs_are_counted_within_windows_and_without_unknown_bases():
    counts = pair_counts(rows("AANC", "CCCC"), 2)
    assert counts[0, 0].tolist() == [1] + 15 * [0] and counts[1, 0, 5] == 3
    assert counts[0, 1].tolist() == [0, 1] + 14 * [0]  # the second A and the C
    assert mutual_information(counts[:, :1] * 0)[0] == 0


def test_period_three_is_one_for_independent_bases_and_large_for_a_repeat():
    assert period_three(np.stack(random_windows(400, 300, 0))).mean() == pytest.approx(1, abs=0.1)
    assert period_three(rows("ACG" * 40))[0] == pytest.approx(60.0)  # 3 (L/3)^2 over L - L/3
    assert period_three(rows("NNNACGACG"))[0] == pytest.approx(period_three(rows("ACGACG"))[0])


def brute_frame(bases):
    stops, best = {(3, 0, 0), (3, 0, 2), (3, 2, 0)}, 0
    for strand in (bases, reverse_complement(bases)):
        for start in range(3):
            run = 0
            for at in range(start, len(strand) - 2, 3):
                codon = tuple(strand[at : at + 3].tolist())
                run = 0 if codon in stops or 4 in codon else run + 3
                best = max(best, run)
    return best


def test_the_longest_open_frame_of_a_made_sequence():
    # A stop in every frame of both strands (TTAATTAATTAA), then nine codons without one in frame 0, then stops again.
    stops = "TTAATTAATTAA"
    made = stops + "ATGGCCGCCGCCGCCGCCGCCGCCGCC" + stops
    assert longest_frame(rows(made))[0] == brute_frame(as_bases(made)) >= 27
    windows = np.random.default_rng(1).choice(5, size=(20, 100), p=[0.3, 0.19, 0.2, 0.3, 0.01]).astype(np.uint8)
    assert longest_frame(windows).tolist() == [brute_frame(bases) for bases in windows]
    assert longest_frame(rows("AC"))[0] == 0


def brute_match(window, text):
    best = 0
    for strand in (text, reverse_complement(text)):
        for i in range(len(window)):
            for j in range(len(strand)):
                n = 0
                while i + n < len(window) and j + n < len(strand) and window[i + n] == strand[j + n] < 4:
                    n += 1
                best = max(best, n)
    return best


def test_the_longest_match_with_training_on_either_strand():
    text = random_windows(1, 600, 3)[0]
    training = TrainingSequence([text[:400], text[400:]], k=24)
    copy, other = text[50:250], reverse_complement(text[450:550])
    pasted = random_windows(1, 100, 4)[0]
    pasted[30:70] = text[100:140]
    across = text[380:420]  # 20 bases on each side of the border
    assert training.longest_match([copy, other]).tolist() == [200, 100]
    assert training.longest_match([pasted])[0] >= 40 and training.longest_match([across])[0] == 20
    for window in (pasted, *random_windows(3, 60, 5)):
        expected = max(brute_match(window, text[:400]), brute_match(window, text[400:]))
        assert training.longest_match([window])[0] == expected
    assert TrainingSequence([as_bases("AAAA")]).longest_match([as_bases("CCCAACC"), as_bases("CCCC")]).tolist() == [2, 0]
    assert training.seen(np.stack([copy])).tolist() == [[177, 177]]


def test_auroc_counts_ties_half():
    assert auroc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])) == pytest.approx(3.5 / 4)
    assert auroc(np.zeros(6), np.arange(6) < 2) == 0.5


def test_a_discriminator_and_a_markov_model_see_a_difference():
    same, other = np.stack(random_windows(60, 200, 1)), np.stack(random_windows(60, 200, 2, (0.2, 0.3, 0.3, 0.2)))
    counts = [np.stack([np.bincount(w, minlength=4) for w in windows]) for windows in (same, other)]
    assert told_apart(*counts) > 0.95 and 0.25 < told_apart(counts[0][:30], counts[0][30:]) < 0.75
    entropy = -(0.6 * np.log2(0.3) + 0.4 * np.log2(0.2))
    assert taught(same[:30], same[30:], 2) == pytest.approx(entropy, abs=0.02) and taught(other, same, 2) > entropy + 0.05


@pytest.fixture(scope="module")
def real():
    return random_windows(80, 120, 7)


def test_samples_of_the_same_source_lie_within_the_floor(real):
    found = Judge(random_windows(40, 120, 8), real, num_splits=40, order=2)()
    distances = [f for f in found.findings if f.is_distance]
    assert sum(f.verdict == "as real windows" for f in found.findings) >= len(found.findings) - 2
    covered = [
        f.distance.low - f.distance.floor <= f.distance.samples - f.distance.floor <= f.distance.high - f.distance.floor for f in distances
    ]
    assert np.mean(covered) > 0.8 and found.num_compared == 40
    json.dumps(found.content(), allow_nan=False)


def test_one_number_in_twenty_lies_outside_by_chance(real):
    # Against two halves of as few as 2 n windows 27 % did: sets that share windows vary less than a new one does.
    judge, rng = Judge(random_windows(40, 120, 8), real, order=2), np.random.default_rng(0)
    found = [judge._value("mean", "mean", "", np.mean, rng.normal(size=40), rng.normal(size=80)).verdict for _ in range(150)]
    outside = np.mean([verdict != "as real windows" for verdict in found])
    assert 0.0 < outside < 0.05 + 4 * (0.05 * 0.95 / 150) ** 0.5


def test_another_source_is_farther_and_a_copy_of_real_windows_warns(real):
    far = Judge(random_windows(40, 120, 8, (0.25, 0.25, 0.25, 0.25)), real, num_splits=20, order=2)()
    assert far["js_1"].verdict == far["js_3"].verdict == "farther than real windows" and not far["js_1"].warns
    same = Judge(real, real, num_splits=20, order=2)()
    assert same["js_6"].warns and any("too alike: words of 6" in line for line in same.warnings())


def test_copies_of_training_are_noticed(real):
    text = random_windows(1, 6_000, 9)[0]
    copies = [text[120 * i : 120 * (i + 1)] for i in range(40)]
    found = Judge(copies, real, TrainingSequence([text]), num_splits=20, order=2)()
    assert found["seen"].distance.samples == 100 and found["longest_match"].distance.samples == 120
    assert found["seen"].verdict == "higher than real windows" and any("copies" in line for line in found.warnings())


def test_too_few_or_too_short_sequences_are_refused(real):
    with pytest.raises(ValueError, match="9 samples and 80 real windows of 120 bases are too few to judge"):
        Judge(random_windows(9, 120, 1), real)
    with pytest.raises(ValueError, match="shorter than the words of 6"):
        Judge(random_windows(20, 5, 1), random_windows(40, 5, 2))
    with pytest.raises(ValueError, match="shorter than the words of 24"):
        Judge(random_windows(20, 20, 1), random_windows(40, 20, 2), TrainingSequence(real))
