import numpy as np
import pytest

from dnadiff.data.kmers import reverse_complement
from dnadiff.genomics.metrics.composition import as_bases
from dnadiff.genomics.metrics.sample_quality import (
    longest_orf,
    mutual_information,
    pair_counts,
    period_three,
)


def windows_of(*texts):
    return np.stack([as_bases(text) for text in texts])


def test_mutual_information_of_a_periodic_sequence_is_two_bits_at_every_distance():
    counts = pair_counts(windows_of("ACGT" * 50), 8)
    assert counts[0, 0].sum() == 199 and counts[0, 7].sum() == 192
    np.testing.assert_allclose(mutual_information(counts), 2.0, atol=1e-3)


def test_pairs_are_counted_within_windows_and_without_unknown_bases():
    counts = pair_counts(windows_of("AANC", "CCCC"), 2)
    assert counts[0, 0].tolist() == [1] + 15 * [0] and counts[1, 0, 5] == 3
    assert counts[0, 1].tolist() == [0, 1] + 14 * [0]  # the second A and the C
    assert mutual_information(counts[:, :1] * 0)[0] == 0


def test_period_three_is_one_for_independent_bases_and_large_for_a_repeat():
    assert period_three(
        np.random.default_rng(0).choice(4, size=(400, 300), p=(0.3, 0.2, 0.2, 0.3)).astype(np.uint8)
    ).mean() == pytest.approx(1, abs=0.1)
    assert period_three(windows_of("ACG" * 40))[0] == pytest.approx(60.0)  # 3 (L/3)^2 over L - L/3
    assert period_three(windows_of("NNNACGACG"))[0] == pytest.approx(
        period_three(windows_of("ACGACG"))[0]
    )


def brute_force_orf(bases):
    stops, best = {(3, 0, 0), (3, 0, 2), (3, 2, 0)}, 0
    for strand in (bases, reverse_complement(bases)):
        for start in range(3):
            run = 0
            for at in range(start, len(strand) - 2, 3):
                codon = tuple(strand[at : at + 3].tolist())
                run = 0 if codon in stops or 4 in codon else run + 3
                best = max(best, run)
    return best


def test_longest_orf_equals_brute_force():
    # A stop in every frame of both strands (TTAATTAATTAA), then nine codons without one in frame 0,
    # then stops again.
    stops = "TTAATTAATTAA"
    sequence = stops + "ATGGCCGCCGCCGCCGCCGCCGCCGCC" + stops
    assert longest_orf(windows_of(sequence))[0] == brute_force_orf(as_bases(sequence)) >= 27
    windows = (
        np.random.default_rng(1)
        .choice(5, size=(20, 100), p=[0.3, 0.19, 0.2, 0.3, 0.01])
        .astype(np.uint8)
    )
    assert longest_orf(windows).tolist() == [brute_force_orf(bases) for bases in windows]
    assert longest_orf(windows_of("AC"))[0] == 0
