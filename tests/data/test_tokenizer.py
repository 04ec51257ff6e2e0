import tracemalloc

import numpy as np
import pytest
import torch
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.formats.nucleotides import reverse_complement

DNA = DNATokenizer()


def test_ids_of_twelve_bases_and_back():
    ids = DNA.encode("ACGTNacgtnAC")
    assert ids.tolist() == [7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 7, 8] and ids.dtype == np.uint8
    assert DNA.decode(ids) == "ACGTNACGTNAC"
    assert DNA.decode(torch.tensor([7, 3, 10])) == "A_T"


def test_strings_bytes_and_biopython_objects_are_the_same_sequence():
    for sequence in (b"ACGU", Seq("ACGT"), SeqRecord(Seq("acgt"), id="x"), "acgu"):
        assert DNA.encode(sequence).tolist() == [7, 8, 9, 10]
    assert DNA.encode("").tolist() == []


def test_every_ambiguity_code_becomes_n():
    assert DNA.encode("RYKMSWBDHVNrykmswbdhvn").tolist() == [11] * 22


@pytest.mark.parametrize(
    ("sequence", "letter", "position"),
    [("ACX", "X", 3), ("é", "é", 1), (b"AC-T", "-", 3), (Seq("AC*"), r"\*", 3)],
)
def test_other_letters_are_named_with_their_position(sequence, letter, position):
    with pytest.raises(
        ValueError,
        match=(
            f"letter '{letter}' at position {position} is not a nucleotide; allowed are A, C, G, T"
        ),
    ):
        DNA.encode(sequence)


@pytest.mark.parametrize("token", [0, 1, 2, 4, 5, 6, 12, -1])
def test_ids_without_a_letter_are_refused(token):
    with pytest.raises(ValueError, match=f"id {token} at position 2 has no letter"):
        DNA.decode([7, token])


def test_vocab_is_the_one_of_published_weights():
    vocab = DNA.vocab
    assert (vocab.size, vocab.mask_id, vocab.pad_id, vocab.emitted) == (12, 3, 4, (7, 8, 9, 10))
    assert vocab.complement == (0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11)
    ids = torch.from_numpy(DNA.encode("AACGTN"))
    assert DNA.decode(vocab.reverse_complement(ids)) == reverse_complement("AACGTN") == "NACGTT"


def test_bases_count_from_zero():
    assert DNA.bases(DNA.encode("ACGTN")).tolist() == [0, 1, 2, 3, 4]
    assert DNA.bases([3, 0]).tolist() == [4, 4]
    assert DNA.ids_from_bases([0, 1, 2, 3, 4]).tolist() == [7, 8, 9, 10, 11]


def test_reverse_complement_of_the_facts():
    assert reverse_complement("ACGTNacgtn") == "nacgtNACGT"
    assert reverse_complement("RYKMBDHVSW") == "WSBDHVKMRY"
    codes = "ACGTRYKMSWBDHVN"
    assert len(codes) == 15
    for letters in (codes, codes.lower()):
        assert reverse_complement(reverse_complement(letters)) == letters
    assert reverse_complement(b"AAC") == b"GTT"


def test_characters_are_numbered_by_code_point():
    text = CharTokenizer("banana\n")
    assert text.characters == "\nabn"
    assert text.encode("ban\n").tolist() == [4, 3, 5, 2] and text.encode("a").dtype == np.uint8
    assert text.decode([4, 0, 5]) == "b\ufffdn"
    assert (text.vocab.size, text.vocab.mask_id, text.vocab.pad_id, text.vocab.never_emitted) == (
        6,
        0,
        1,
        (0, 1),
    )
    assert text.vocab.complement is None


def test_text_in_any_script_comes_back():
    for text in ("Grüße 🧬 漢字", "".join(map(chr, range(1000)))):
        tokenizer = CharTokenizer(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text).dtype == np.uint16


def test_an_unknown_character_is_named():
    with pytest.raises(
        ValueError, match="character 'z' at position 3 is not among the 3 characters"
    ):
        CharTokenizer("abc").encode("abz")
    with pytest.raises(ValueError, match="id 1 at position 1 has no letter"):
        CharTokenizer("abc").decode([1])
    with pytest.raises(ValueError, match="characters is empty"):
        CharTokenizer("")


def test_a_long_text_is_encoded_in_pieces():
    text, tokenizer = "ab🧬\n" * (1 << 20), CharTokenizer("ab🧬\n")
    tracemalloc.start()
    ids = tokenizer.encode(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        ids.dtype == np.uint8 and (ids.reshape(-1, 4) == [3, 4, 5, 2]).all() and len(ids) == 1 << 22
    )
    assert peak < 10 * len(ids)
    with pytest.raises(
        ValueError, match=f"character 'z' at position {(1 << 22) + 1} is not among the 4 characters"
    ):
        tokenizer.encode(f"{text}z")


def test_a_tokenizer_is_its_configuration():
    assert DNATokenizer() == DNA and DNA.config() == {
        "_target_": "dnadiff.data.tokenizer.DNATokenizer"
    }
    text = CharTokenizer("cab")
    config = text.config()
    assert config.pop("_target_") == "dnadiff.data.tokenizer.CharTokenizer"
    assert CharTokenizer(**config) == text == CharTokenizer("abcabc") != CharTokenizer("ab")
    assert text != DNA
