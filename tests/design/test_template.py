"""Templates as users write them: IUPAC letters, motifs, [MASK]."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.design.request import (
    CODES,
    LETTER,
    allowed_letters,
    codes_of,
    dna_pattern,
    gc_bounds,
    read_motifs,
    text_pattern,
)
from dnadiff.formats.nucleotides import IUPAC, reverse_complement

DNA, TEXT = DNATokenizer(), CharTokenizer("abc ")
BASES = {
    "R": "AG",
    "Y": "CT",
    "S": "CG",
    "W": "AT",
    "K": "GT",
    "M": "AC",
    "B": "CGT",
    "D": "AGT",
    "H": "ACT",
    "V": "ACG",
    "N": "ACGT",
}


def test_letters_follow_iupac():
    table = allowed_letters(DNA)
    for letter, bases in {**BASES, **{b: b for b in "ACGT"}, "U": "T"}.items():
        assert {DNA.decode([i]) for i in np.flatnonzero(table[CODES[letter]])} == set(bases)
    assert (
        set(CODES) == set(IUPAC)
        and (allowed_letters(TEXT)[7] == [False, False, True, True, True, True]).all()
    )


def test_a_template_keeps_the_case_of_bases_and_masks_the_rest():
    pattern = dna_pattern(DNA, 8, "aCNryGtu")
    assert pattern.ids.tolist() == [7, 8, 3, 3, 3, 9, 10, 10] and pattern.codes.tolist() == [
        1,
        2,
        15,
        5,
        10,
        4,
        8,
        8,
    ]
    assert bytes(pattern.letters) == b"aC\0\0\0Gtt"


def test_motifs_are_at_their_positions():
    motifs = read_motifs(["TATAAT@2", "CCAAT@-6:-", "YR@-8:+"])
    pattern = dna_pattern(DNA, 20, "", motifs)
    assert "".join(LETTER[int(c)] for c in pattern.codes) == "NNTATAATNNNNYRATTGGN"
    assert read_motifs(None) == [] and read_motifs("A@0")[0].first(3) == 0


@given(st.text(sorted(set(CODES) - {"U"}), min_size=1, max_size=20), st.integers(0, 10))
def test_a_motif_on_the_other_strand_is_its_reverse_complement(motif, start):
    forward, backward = (
        dna_pattern(DNA, 40, "", read_motifs(f"{m}@{start}{s}"))
        for m, s in ((reverse_complement(motif), ""), (motif, ":-"))
    )
    assert np.array_equal(forward.codes, backward.codes) and np.array_equal(
        forward.ids, backward.ids
    )


def test_overlapping_letters_must_agree():
    pattern = dna_pattern(DNA, 6, "NNRNNN", read_motifs(["SK@2", "BT@2"]))
    assert "".join(LETTER[int(c)] for c in pattern.codes) == "NNGTNN" and pattern.ids.tolist() == [
        3,
        3,
        9,
        10,
        3,
        3,
    ]


@pytest.mark.parametrize(
    ("letters", "motifs", "message"),
    [
        ("ACGX", [], r"template: 'X' at position 4 is not an IUPAC letter"),
        ("", ["TAZ@1"], r"motif TAZ@1: 'Z' at position 3 is not an IUPAC letter"),
        ("", ["TA@9"], r"motif TA@9 covers 9 to 11 .* outside a sequence of 10 bases"),
        ("", ["TA@-11"], r"motif TA@-11 covers -1 to 1"),
        (
            "",
            ["TA@3", "GG@4"],
            r"motif GG@4 contradicts motif TA@3 at position 4 \(0-based\) of 10 bases: G against A",
        ),
        ("NNRN", ["C@2"], r"motif C@2 contradicts the template at position 2 .* C against R"),
        ("", ["TATAAT"], r"motif 'TATAAT' cannot be read; write MOTIF@start"),
        ("", ["@3"], r"cannot be read"),
        ("", ["TA@3:x"], r"cannot be read"),
        ("A" * 11, [], r"prompt has 11 letters and length is 10"),
    ],
)
def test_contradictory_constraints_are_an_error(letters, motifs, message):
    with pytest.raises(ValueError, match=message):
        dna_pattern(DNA, 10, letters, read_motifs(motifs))


def test_text_with_masks():
    assert text_pattern(TEXT, "ab[MASK]c[MASK*3] a").ids.tolist() == [3, 4, 0, 5, 0, 0, 0, 2, 3]
    assert text_pattern(TEXT, "a[MASK]", 4).ids.tolist() == [3, 0, 0, 0]
    with pytest.raises(ValueError, match="'x' at position 1 is not among"):
        text_pattern(TEXT, "[MASK]x")
    with pytest.raises(ValueError, match="prompt has 3 tokens and length is 2"):
        text_pattern(TEXT, "a[MASK*2]", 2)


@given(st.text(sorted(CODES), min_size=1, max_size=30))
def test_gc_bounds_are_met_by_the_poorest_and_the_richest_sequence(letters):
    codes = codes_of(letters, "x")
    bits = np.array([[c >> b & 1 for b in range(4)] for c in codes], bool)
    assert gc_bounds(codes) == ((~bits[:, [0, 3]].any(1)).sum(), bits[:, [1, 2]].any(1).sum())
