import tracemalloc

import numpy as np
import pytest

from dnadiff.data.kmers import UNKNOWN, KmerSet, codes, reverse_complement
from dnadiff.genomics.metrics.composition import as_bases
from dnadiff.genomics.metrics.memorization import TrainingIndex


def random_windows(number, length, seed, probs=(0.3, 0.2, 0.2, 0.3)):
    return list(
        np.random.default_rng(seed).choice(4, size=(number, length), p=probs).astype(np.uint8)
    )


def brute_force_match(window, text):
    best = 0
    for strand in (text, reverse_complement(text)):
        for i in range(len(window)):
            for j in range(len(strand)):
                n = 0
                while (
                    i + n < len(window)
                    and j + n < len(strand)
                    and window[i + n] == strand[j + n] < 4
                ):
                    n += 1
                best = max(best, n)
    return best


def test_longest_match_on_either_strand_equals_brute_force():
    text = random_windows(1, 600, 3)[0]
    training = TrainingIndex([text[:400], text[400:]], k=24)
    copy, other = text[50:250], reverse_complement(text[450:550])
    pasted = random_windows(1, 100, 4)[0]
    pasted[30:70] = text[100:140]
    across = text[380:420]  # 20 bases on each side of the boundary
    assert training.longest_match([copy, other]).tolist() == [200, 100]
    assert training.longest_match([pasted])[0] >= 40 and training.longest_match([across])[0] == 20
    for window in (pasted, *random_windows(3, 60, 5)):
        expected = max(brute_force_match(window, text[:400]), brute_force_match(window, text[400:]))
        assert training.longest_match([window])[0] == expected
    assert TrainingIndex([as_bases("AAAA")]).longest_match(
        [as_bases("CCCAACC"), as_bases("CCCC")]
    ).tolist() == [2, 0]
    assert training.seen(np.stack([copy])).tolist() == [[177, 177]]


@pytest.mark.parametrize("few", [0, 1000])
def test_a_search_in_blocks_equals_brute_force(few):
    class Small(TrainingIndex):
        matches, block = 3, 7

    Small.few = few
    text = random_windows(1, 90, 3, probs=(0.7, 0.1, 0.1, 0.1))[0]
    text[70:75] = UNKNOWN
    for k in (8, 14, 24):
        training = Small([text[:60], text[60:]], k)
        for window in (
            text[10:58],
            text[60:90],
            *random_windows(4, 30, 5, probs=(0.7, 0.1, 0.1, 0.1)),
        ):
            expected = max(
                brute_force_match(window, text[:60]), brute_force_match(window, text[60:])
            )
            assert training.longest_match([window])[0] == expected
            hits = KmerSet([text[:60], text[60:]], k).hits(window).sum()
            assert training.seen([window]).tolist() == [[hits, codes(window, k)[1].sum()]]


@pytest.mark.slow
def test_the_memory_of_a_search_does_not_grow_with_the_record():
    class Small(TrainingIndex):
        block = 50_000

    training = Small([random_windows(1, 20_000, 1)[0]])
    peaks = []
    for length in (1_100_000, 1_500_000):
        bases = np.resize(random_windows(1, 100_000, 2)[0], length)
        tracemalloc.start()
        training.longest_match([bases]), training.seen([bases])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 4 * 400_000  # bytes a base
