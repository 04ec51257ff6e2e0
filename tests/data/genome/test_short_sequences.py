"""Many short sequences: padded, in buckets of length, held out whole, with labels."""

import tracemalloc

import numpy as np
import pytest
import torch

from dnadiff.data.base import ProcessRank, TrainLoader
from dnadiff.data.genome.datamodule import ShortSequenceDataModule
from dnadiff.data.splits import ChromosomeSplit, FractionSplit, RegionSplit
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.genomics.held_out import fit_markov, markov_nats

DNA = DNATokenizer()


@pytest.fixture
def file(tmp_path):
    draw = np.random.default_rng(1)
    lines = []
    for number in range(300):
        letters = (
            draw.choice(np.frombuffer(b"ACGT", np.uint8), draw.integers(5, 60)).tobytes().decode()
        )
        lines.append(f">s{number} class={'odd' if number % 2 else 'even'} x\n{letters}\n")
    (tmp_path / "s.fa").write_text("".join(lines))
    return tmp_path / "s.fa"


def module(path, **options):
    return ShortSequenceDataModule(path, **{"length": 64, "batch_size": 8, **options})


def test_a_batch_is_padded_and_says_where(file):
    batch = next(iter(module(file, label="class").train_dataloader()))
    assert {k: v.dtype for k, v in batch.items()} == {
        "ids": torch.uint8, "weight": torch.uint8, "valid": torch.bool,
        "index": torch.int64, "cond": torch.uint8
    }  # fmt: skip
    assert batch["ids"].shape[1] % 16 == 0 and batch["cond"].shape == (8, 2)
    assert (
        torch.equal(batch["valid"], batch["ids"] != DNA.vocab.pad_id)
        and not batch["weight"][~batch["valid"]].any()
    )
    lengths = batch["valid"].sum(1)
    assert (batch["ids"].shape[1] - lengths < 16).all()  # one bucket


def test_every_training_sequence_comes_once_an_epoch_on_either_strand(file):
    data = module(file)
    loader = data.train_dataloader()
    training = {DNA.decode(np.asarray(data.records[i.record])) for i in data.intervals["train"]}
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
    halves = [TrainLoader(make(data, 4, 2), 4, process=ProcessRank(rank, 2)) for rank in range(2)]
    assert [
        torch.stack([a["ids"], b["ids"]], 1).flatten(0, 1).tolist() for a, b in zip(*halves)
    ] == whole
    later = data.train_dataloader()
    later.load_state_dict({"epoch": 0, "batch": 5})
    assert [b["ids"].tolist() for b in later] == whole[5:]


def make(data, batch_size, world):
    data.batch_size = batch_size * world
    return data.train_windows()


def test_equal_sequences_fall_into_one_part(tmp_path):
    draw = np.random.default_rng(2)
    letters = [
        draw.choice(np.frombuffer(b"ACGT", np.uint8), 30).tobytes().decode() for _ in range(200)
    ]
    twice = [t for one in letters for t in (one, reverse_complement(one), one.lower())]
    (tmp_path / "s.fa").write_text("".join(f">r{i}\n{t}\n" for i, t in enumerate(twice)))
    parts = module(tmp_path / "s.fa").intervals
    part_of = {i.record: part for part, many in parts.items() for i in many}
    assert all(part_of[3 * i] == part_of[3 * i + 1] == part_of[3 * i + 2] for i in range(200))
    assert 130 < len(parts["train"]) / 3 < 185 and len(parts["valid"]) and len(parts["test"])


def test_labels_come_from_files_and_headers(tmp_path, file):
    (tmp_path / "b.fa").write_text(
        "".join(f">t{i} class=odd\n{'ACGTA' * (i % 5 + 1)}{'ACGT'[i % 4]}\n" for i in range(20))
    )
    data = module({"human": file, "yeast": tmp_path / "b.fa"}, label="class", label_dropout=0.0)
    assert data.describe()["labels"] == ["class=even", "class=odd", "human", "yeast"]
    for batch in data.train_dataloader():
        assert (batch["cond"].sum(1) == 2).all()
    tile = data.test_windows("test")[0]
    assert (
        tile["cond"].sum() == 2
        and tile["ids"].shape == (64,)
        and tile["valid"].sum() == tile["weight"].sum()
    )
    with pytest.raises(
        ValueError, match=r"record s0 has no kind= in its header; write '>s0 kind=\.\.\.'"
    ):
        module(file, label="kind").prepare()


def test_what_does_not_fit_is_refused(file):
    with pytest.raises(
        ValueError,
        match=r"has 59 bases, more than length 32; set data\.length=59, or use data=fasta",
    ):
        module(file, length=32).prepare()
    with pytest.raises(
        ValueError, match="cuts through record s0; choose one that holds out complete records"
    ):
        module(file, split=FractionSplit()).prepare()
    held = module(file, split=ChromosomeSplit(valid=["s1"], test=["s2", "s3"])).intervals
    assert {p: [i.record for i in many] for p, many in held.items() if p != "train"} == {
        "valid": [1],
        "test": [2, 3],
    }


def test_a_region_split_has_the_true_lengths(tmp_path):
    letters = {"a": "ACGTA", "b": "CCGTATTT", "c": "TTG", "d": "acgtNNacg"}
    (tmp_path / "s.fa").write_text("".join(f">{name}\n{each}\n" for name, each in letters.items()))
    (tmp_path / "s.bed").write_text(
        "a\t0\t5\ttrain\nd\t0\t9\ttrain\nb\t0\t8\tvalid\nc\t0\t3\ttest\n"
    )
    about = (
        data := module(tmp_path / "s.fa", split=RegionSplit(tmp_path / "s.bed"), augment_rc=False)
    ).describe()
    assert about["split_tokens"] == {"train": 14, "valid": 8, "test": 3} and about["tokens"] == 25
    assert about["too_short_tokens"] == {"train": 0, "valid": 0, "test": 0}
    assert [DNA.decode(np.asarray(ids)) for ids in data.sequences("valid")] == [
        "CCGTATTT"
    ] and data.train_windows().num_starts == 2
    (tile,) = data.test_windows("test")
    assert (
        tile["ids"].tolist() == [*DNA.encode("TTG"), *[DNA.vocab.pad_id] * 61]
        and tile["weight"].tolist() == [1] * 3 + [0] * 61
    )
    assert tile["valid"].sum() == 3


def test_likelihoods_of_markov_models_are_of_the_sequences_alone(file):
    data = module(file)
    tiles = data.test_windows("test")
    ((order, model, nats),) = markov_nats(data, tiles, fit_markov(data, [1]), "test")
    expected = [
        -model.log_probs(DNA.bases(np.asarray(ids)), order).sum() for ids in data.sequences("test")
    ]
    assert nats.shape == (len(tiles), 64) and nats.sum(1) == pytest.approx(expected)
    assert not nats[~np.stack([tile["valid"].numpy() for tile in tiles])].any()


def test_evaluation_does_not_hold_all_padded_sequences(tmp_path, monkeypatch):
    (tmp_path / "s.fa").write_text(
        "".join(f">s{i}\n{'ACGT'[i % 4] * (i % 7 + 1)}\n" for i in range(40))
    )
    data = module(
        tmp_path / "s.fa",
        length=1 << 16,
        split=ChromosomeSplit(["s1"], [f"s{i}" for i in range(2, 40)]),
    )
    tiles = data.test_windows("test")
    tracemalloc.start()
    tiles[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 16  # 40 padded sequences
