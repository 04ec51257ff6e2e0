import numpy as np
import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.downstream import pretraining_overlap
from dnadiff.downstream.items import Items
from dnadiff.kmers import KmerSet, reverse_complement

DNA = DNATokenizer()


def bases(number: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, number).astype(np.uint8)


def test_an_item_is_inside_if_half_of_its_bases_are_in_pretraining_kmers():
    genome = bases(1000, 0)
    rows = [
        genome[100:160],
        reverse_complement(genome[300:340]),
        bases(60, 1),
        np.concatenate([genome[500:540], bases(20, 2)]),
        np.concatenate([genome[700:725], bases(60, 3)]),
        genome[:10],  # shorter than a word
    ]
    items = Items.from_sequences([DNA.ids_from_bases(row) for row in rows], [0] * 6, DNA.vocab.pad_id)
    shares = pretraining_overlap.overlap_fractions(items, KmerSet([genome], 24), DNA)
    assert shares == pytest.approx([1, 1, 0, 40 / 60, 25 / 85, 0], abs=0.03)
    parts = pretraining_overlap.overlap_subsets(items, KmerSet([genome], 24), DNA)
    assert parts["inside pretraining"].tolist() == [True, True, False, True, False, False]
    assert (parts["outside pretraining"] == ~parts["inside pretraining"]).all()


def test_pretraining_kmers_are_those_of_the_training_part(tmp_path):
    genome = bases(4000, 4)
    letters = "".join("ACGT"[base] for base in genome)
    (tmp_path / "g.fa").write_text(f">a\n{letters}\n")
    data = {
        "_target_": "dnadiff.data.genome.datamodule.GenomeDataModule",
        "path": str(tmp_path / "g.fa"),
        "length": 64,
        "batch_size": 4,
        "split": {"_target_": "dnadiff.data.splits.FractionSplit", "test": [0.8, 0.9], "valid": [0.9, 1.0]},
    }
    with pytest.raises(ValueError, match=r"without the path of its data \(tiny\); .* to finetune, as in pretraining_overlap=my.fa"):
        pretraining_overlap.pretraining_kmers({"data": {**data, "path": None, "name": "tiny"}}, DNA)
    given = pretraining_overlap.pretraining_kmers({"data": {**data, "path": None}}, DNA, (), str(tmp_path / "g.fa"))
    assert given.covered(genome[:3200]).all() and not given.covered(genome[3250:]).any()
    words = pretraining_overlap.pretraining_kmers({"data": data}, DNA)
    assert words.covered(genome[:3200]).all() and not words.covered(genome[3250:]).any()
