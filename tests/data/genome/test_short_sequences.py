"""Many short sequences: padded, in buckets of length, held out whole, with labels."""

import numpy as np
import pytest
import torch

from dnadiff.data.genome.short_sequences import ShortSequenceDataModule
from dnadiff.data.loader import TrainLoader
from dnadiff.data.nucleotides import reverse_complement
from dnadiff.data.splits import ChromosomeSplit, FractionSplit
from dnadiff.data.tokenizer import DNATokenizer

DNA = DNATokenizer()


@pytest.fixture
def file(tmp_path):
    draw = np.random.default_rng(1)
    lines = []
    for number in range(300):
        letters = draw.choice(np.frombuffer(b"ACGT", np.uint8), draw.integers(5, 60)).tobytes().decode()
        lines.append(f">s{number} class={'odd' if number % 2 else 'even'} x\n{letters}\n")
    (tmp_path / "s.fa").write_text("".join(lines))
    return tmp_path / "s.fa"


def module(path, **options):
    return ShortSequenceDataModule(path, **{"length": 64, "batch_size": 8, **options})


def test_a_batch_is_padded_and_says_where(file):
    batch = next(iter(module(file, label="class").train_dataloader()))
    assert {k: v.dtype for k, v in batch.items()} == {
        "ids": torch.uint8, "weight": torch.uint8, "valid": torch.bool, "index": torch.int64, "cond": torch.uint8
    }  # fmt: skip
    assert batch["ids"].shape[1] % 16 == 0 and batch["cond"].shape == (8, 2)
    assert torch.equal(batch["valid"], batch["ids"] != DNA.vocab.pad_id) and not batch["weight"][~batch["valid"]].any()
    lengths = batch["valid"].sum(1)
    assert (batch["ids"].shape[1] - lengths < 16).all()  # one bucket


def test_every_training_sequence_comes_once_an_epoch_on_either_strand(file):
    data = module(file)
    loader = data.train_dataloader()
    training = {DNA.decode(np.asarray(data._sequences[i.record])) for i in data.intervals["train"]}
    for _ in range(2):
        seen = []
        for batch in loader:
            for ids, valid, weight in zip(batch["ids"], batch["valid"], batch["weight"]):
                if weight.any():
                    letters = DNA.decode(ids[valid])
                    seen.append(letters if letters in training else reverse_complement(letters))
        assert sorted(seen) == sorted(training)


def test_batches_depend_on_seed_epoch_and_index_alone(file):
    data = module(file)
    data.prepare()
    whole = [b["ids"].tolist() for b in data.train_dataloader()]
    assert whole == [b["ids"].tolist() for b in module(file, num_workers=2).train_dataloader()]
    halves = [TrainLoader(make(data, 4, 2), 4, rank=rank, world_size=2) for rank in range(2)]
    assert [torch.stack([a["ids"], b["ids"]], 1).flatten(0, 1).tolist() for a, b in zip(*halves)] == whole
    later = data.train_dataloader()
    later.load_state_dict({"epoch": 0, "batch": 5})
    assert [b["ids"].tolist() for b in later] == whole[5:]


def make(data, batch_size, world):
    data.batch_size = batch_size * world
    return data.train_batches()


def test_equal_sequences_fall_into_one_part(tmp_path):
    draw = np.random.default_rng(2)
    letters = [draw.choice(np.frombuffer(b"ACGT", np.uint8), 30).tobytes().decode() for _ in range(200)]
    twice = [t for one in letters for t in (one, reverse_complement(one), one.lower())]
    (tmp_path / "s.fa").write_text("".join(f">r{i}\n{t}\n" for i, t in enumerate(twice)))
    parts = module(tmp_path / "s.fa").intervals
    part_of = {i.record: part for part, many in parts.items() for i in many}
    assert all(part_of[3 * i] == part_of[3 * i + 1] == part_of[3 * i + 2] for i in range(200))
    assert 130 < len(parts["train"]) / 3 < 185 and len(parts["valid"]) and len(parts["test"])


def test_labels_come_from_files_and_headers(tmp_path, file):
    (tmp_path / "b.fa").write_text("".join(f">t{i} class=odd\n{'ACGTA' * (i % 5 + 1)}{'ACGT'[i % 4]}\n" for i in range(20)))
    data = module({"human": file, "yeast": tmp_path / "b.fa"}, label="class", label_dropout=0.0)
    assert data.describe()["labels"] == ["class=even", "class=odd", "human", "yeast"]
    for batch in data.train_dataloader():
        assert (batch["cond"].sum(1) == 2).all()
    tile = data.test_windows("test")[0]
    assert tile["cond"].sum() == 2 and tile["ids"].shape == (64,) and tile["valid"].sum() == tile["weight"].sum()
    with pytest.raises(ValueError, match=r"record s0 has no kind= in its header; write '>s0 kind=\.\.\.'"):
        module(file, label="kind").prepare()


def test_what_does_not_fit_is_refused(file):
    with pytest.raises(ValueError, match=r"has 59 bases, more than length 32; set data\.length=59, or use data=fasta"):
        module(file, length=32).prepare()
    with pytest.raises(ValueError, match="cuts through record s0; choose one that holds out complete records"):
        module(file, split=FractionSplit()).prepare()
    held = module(file, split=ChromosomeSplit(valid=["s1"], test=["s2", "s3"])).intervals
    assert {p: [i.record for i in many] for p, many in held.items() if p != "train"} == {"valid": [1], "test": [2, 3]}
