import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dnadiff.data import kmers
from dnadiff.data.kmers import (
    KmerSet,
    canonical,
    codes,
    reverse_complement,
    reverse_complement_codes,
    spectrum,
)

sequences = arrays(np.uint8, st.integers(0, 60), elements=st.integers(0, 4))


def bases(letters: str) -> np.ndarray:
    return np.array(["ACGT".find(x) % 5 for x in letters], np.uint8)  # -1, not found, becomes 4


def kmers_of(letters: str, k: int) -> list[str]:
    return [letters[i : i + k] for i in range(len(letters) - k + 1)]


def rc(letters: str) -> str:
    return letters[::-1].translate(str.maketrans("ACGT", "TGCA"))


def letters(array: np.ndarray) -> str:
    return "".join("ACGTN"[x] for x in array)


def test_codes_have_two_bits_per_base_first_base_highest():
    values, valid = codes(bases("ACGTNAC"), 3)
    assert values[:2].tolist() == [0b000110, 0b011011]  # ACG, CGT
    assert values.dtype == np.uint64
    assert valid.tolist() == [True, True, False, False, False]


def test_the_longest_kmer_fits():
    assert codes(bases("T" * 31), 31)[0].tolist() == [4**31 - 1]
    assert canonical(bases("T" * 31), 31)[0].tolist() == [0]


def test_reverse_complement_keeps_unknown_bases():
    assert letters(reverse_complement(bases("ACGTNAC"))) == "GTNACGT"


@given(sequences, st.integers(1, 31))
def test_codes_equal_plain_string_slices(x, k):
    values, valid = codes(x, k)
    plain = kmers_of(letters(x), k)
    assert [v if ok else None for v, ok in zip(values.tolist(), valid)] == [
        None if "N" in w else sum("ACGT".index(c) * 4 ** (k - 1 - i) for i, c in enumerate(w))
        for w in plain
    ]


@given(sequences, st.integers(1, 31))
def test_canonical_kmers_are_the_same_on_both_strands(x, k):
    values, valid = codes(x, k)
    other, other_valid = codes(reverse_complement(x), k)
    assert np.array_equal(reverse_complement_codes(values, k)[valid], other[::-1][valid])
    assert np.array_equal(valid, other_valid[::-1])
    assert np.array_equal(canonical(x, k)[0][valid], np.minimum(values, other[::-1])[valid])


@given(sequences, sequences, st.integers(1, 6))
def test_hits_and_covered_equal_brute_force(train, x, k):
    seen = {
        w
        for strand in (letters(train), rc(letters(train)))
        for w in kmers_of(strand, k)
        if "N" not in w
    }
    hits = [w in seen for w in kmers_of(letters(x), k)]
    found = KmerSet([train], k)
    assert found.hits(x).tolist() == hits
    assert found.covered(x).tolist() == [
        any(hits[max(i - k + 1, 0) : i + 1]) for i in range(len(x))
    ]
    assert found.hits(x).any() == any(hits)
    assert len(found) == len({min(w, rc(w)) for w in seen})


@given(sequences, st.integers(1, 5), st.booleans())
def test_spectrum_equals_brute_force(x, k, both_strands):
    plain = [
        w
        for w in kmers_of(letters(x), k) + (kmers_of(rc(letters(x)), k) if both_strands else [])
        if "N" not in w
    ]
    counts = spectrum([x], k, both_strands)
    assert counts.sum() == len(plain)
    assert {w: counts[codes(bases(w), k)[0][0]] for w in plain} == {
        w: plain.count(w) for w in plain
    }


def test_blocks_have_every_kmer_once():
    x = np.random.default_rng(0).integers(0, 5, 500).astype(np.uint8)
    parts = [(start, *codes(block, 3)) for start, block in kmers.blocks(x, 3, 7)]
    assert [start for start, *_ in parts] == list(range(0, 498, 7))
    for found, expected in zip(map(np.concatenate, list(zip(*parts))[1:]), codes(x, 3)):
        assert np.array_equal(found, expected)


def test_short_and_empty_input_gives_empty_output():
    empty = KmerSet([], 24)
    assert len(empty) == 0
    assert not empty.hits(bases("ACGT" * 10)).any()
    assert KmerSet([bases("ACG")], 24).covered(bases("ACG")).tolist() == [False] * 3
    assert spectrum([], 2).tolist() == [0] * 16


@pytest.mark.parametrize("k", [0, 32])
def test_k_out_of_range_is_rejected(k):
    with pytest.raises(ValueError, match=r"must be an integer from 1 to 31"):
        codes(bases("ACGT"), k)


def test_repeated_fraction_of_the_held_out_ecoli_genome(ecoli):
    train, test = np.split(ecoli, [len(ecoli) * 9 // 10])
    assert KmerSet([train], 24).covered(test).mean() == pytest.approx(
        0.026540, abs=1e-6
    )  # "about 2.6 %"
