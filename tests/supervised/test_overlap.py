import dataclasses

import numpy as np
import pytest

from dnadiff.data.kmers import KmerSet, reverse_complement
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised import labeled
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.protocol import FewItems, FixedSplit, KFold

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
        genome[:10],  # shorter than a k-mer
    ]
    items = Items.from_sequences(
        [DNA.ids_from_bases(row) for row in rows], [0] * 6, DNA.vocab.pad_id
    )
    data = TaskData("t", ["a"], items, items, items)
    parts = labeled.tested_subsets(data, FewItems(pad_id=0), DNA, KmerSet([genome], 24))
    assert parts["inside pretraining"].tolist() == [True, True, False, True, False, False]
    assert (parts["outside pretraining"] == ~parts["inside pretraining"]).all()


def test_test_items_inside_the_training_part_are_found_on_either_strand():
    def items(*rows):
        return Items.from_sequences(
            [DNA.ids_from_bases(row) for row in rows],
            [n % 2 for n in range(len(rows))],
            DNA.vocab.pad_id,
        )

    rows = [bases(60, seed) for seed in range(8)]
    near = np.concatenate([bases(20, 9), rows[1][:40]])
    data = TaskData(
        "t",
        ["a", "b"],
        items(*rows[:3]),
        items(rows[3]),
        items(reverse_complement(rows[0]), near, rows[3], *rows[4:6]),
    )
    found = labeled.tested_subsets(data, FixedSplit(pad_id=0), DNA, KmerSet([rows[4]], 24))
    assert {name: mask.tolist() for name, mask in found.items()} == {
        "inside pretraining": [False, False, False, True, False],
        "outside pretraining": [True, True, True, False, True],
        "inside training": [True, True, True, False, False],
        "outside training": [False, False, False, True, True],
    }
    for protocol in (
        KFold(pad_id=0),
        FewItems(pad_id=0, train_items=2),
    ):  # each fold or seed has a different training part
        assert labeled.tested_subsets(data, protocol, DNA, None) == {}
    without = dataclasses.replace(data, test=items(*rows[4:]))
    assert labeled.tested_subsets(without, FixedSplit(pad_id=0), DNA, None) == {}  # none is inside


def test_pretraining_kmers_are_those_of_the_training_part(tmp_path):
    genome = bases(4000, 4)
    letters = "".join("ACGT"[base] for base in genome)
    (tmp_path / "g.fa").write_text(f">a\n{letters}\n")
    data = {
        "_target_": "dnadiff.data.genome.datamodule.GenomeDataModule",
        "path": str(tmp_path / "g.fa"),
        "length": 64,
        "batch_size": 4,
        "split": {
            "_target_": "dnadiff.data.splits.FractionSplit",
            "test": [0.8, 0.9],
            "valid": [0.9, 1.0],
        },
    }
    with pytest.raises(
        ValueError,
        match=r"without the path of its data \(tiny\); .* to finetune, as in "
        r"pretraining_overlap=my.fa",
    ):
        labeled.pretraining_kmers({"data": {**data, "path": None, "name": "tiny"}}, DNA)
    given = labeled.pretraining_kmers(
        {"data": {**data, "path": None}}, DNA, (), str(tmp_path / "g.fa")
    )
    assert given.covered(genome[:3200]).all() and not given.covered(genome[3250:]).any()
    words = labeled.pretraining_kmers({"data": data}, DNA)
    assert words.covered(genome[:3200]).all() and not words.covered(genome[3250:]).any()
