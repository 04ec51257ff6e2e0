import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff.data.genome.genome import Genome
from dnadiff.data.records import Cutter, TokenTable
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.vocab import Vocab
from dnadiff.formats.nucleotides import reverse_complement

DNA = DNATokenizer()


@settings(deadline=None)
@given(
    st.text("ACGTNacgtn", min_size=1, max_size=40),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_windows_are_the_letters_on_either_strand(make_genome, text, length, soft_weight):
    length = min(length, len(text))
    genome = make_genome(a=text, b=text[::-1])
    cut = Cutter(genome.records, length, DNA.vocab, soft_weight)
    starts = np.arange(len(text) - length + 1)
    for reverse in (False, True):
        for record, letters in ((0, text), (1, text[::-1])):
            rows = np.full(len(starts), record)
            ids, weight = cut(rows, starts, np.full(len(starts), reverse)).values()
            assert ids.dtype == np.uint8 and weight.dtype == (
                np.float32 if soft_weight == 0.25 else np.uint8
            )
            for start, row, counted in zip(starts, ids, weight):
                part = letters[start : start + length]
                part = reverse_complement(part) if reverse else part
                assert DNA.decode(row) == part.upper()
                assert counted.tolist() == [
                    0 if c in "Nn" else soft_weight if c.islower() else 1 for c in part
                ]


def test_a_cutter_is_pickled_without_the_bytes(tmp_path):
    (tmp_path / "g.fa").write_text(">a\n" + "ACGT" * 10_000 + "\n")
    cut = Cutter(Genome(tmp_path / "g.fa").records, 8, DNA.vocab)
    ids = cut(np.array([0]), np.array([4]))["ids"]
    packed = pickle.dumps(cut)
    assert (
        len(packed) < 5000
        and pickle.loads(packed)(np.array([0]), np.array([4]))["ids"].tolist() == ids.tolist()
    )


def test_letters_of_any_alphabet():
    text = CharTokenizer("".join(map(chr, range(60, 400))))
    ids = np.array([[0, 1, 2, 300]], dtype=np.uint16)
    assert TokenTable(text.vocab).is_emitted(ids).tolist() == [[0, 0, 1, 1]]
    assert TokenTable(Vocab(5, 0, 0, (0, 2))).is_emitted(ids % 5).tolist() == [
        [0, 1, 0, 0]
    ]  # with gaps
    with pytest.raises(ValueError, match="not a mirror image"):
        TokenTable(Vocab(5, 0, 0, (0,), (0, 3, 4, 1, 2)))  # A-C, G-T
