import numpy as np

from dnadiff.kmers import reverse_complement
from dnadiff.metrics.composition import as_bases
from dnadiff.metrics.memorization import TrainingIndex


def random_windows(number, length, seed, probs=(0.3, 0.2, 0.2, 0.3)):
    return list(np.random.default_rng(seed).choice(4, size=(number, length), p=probs).astype(np.uint8))


def brute_force_match(window, text):
    best = 0
    for strand in (text, reverse_complement(text)):
        for i in range(len(window)):
            for j in range(len(strand)):
                n = 0
                while i + n < len(window) and j + n < len(strand) and window[i + n] == strand[j + n] < 4:
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
    assert TrainingIndex([as_bases("AAAA")]).longest_match([as_bases("CCCAACC"), as_bases("CCCC")]).tolist() == [2, 0]
    assert training.seen(np.stack([copy])).tolist() == [[177, 177]]
