"""Columns of an alignment in the windows of a genome."""

import pickle

import numpy as np
import pytest
import torch

from dnadiff.data.alignment import write_alignment
from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.splits import FractionSplit
from dnadiff.diffusion.vocab import CHANNELS, COMPLEMENT

LETTERS = np.random.default_rng(0).integers(0, 4, 600)
TEXT = "".join("ACGT"[each] for each in LETTERS)


def stored(path, records, target=LETTERS):
    """Columns whose posterior knows the base, and whose depth is the position."""
    columns = np.zeros((len(target), CHANNELS), np.float32)
    columns[np.arange(len(target)), target] = 1
    columns[:, 9] = np.arange(1, len(target) + 1)
    return write_alignment(path, records, target, target[None], columns)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "g.fa").write_text(f">one\n{TEXT[:400]}\n>two\n{TEXT[400:]}\n")
    stored(tmp_path / "x.aln", {"one": 400, "two": 200})
    return tmp_path


def module(folder, alignment="x.aln", **options):
    options = {"length": 16, "batch_size": 8, "epoch_size": 400, "split": FractionSplit()} | options
    return GenomeDataModule(folder / "g.fa", alignment=folder / alignment, **options)


def check(ids, cond):
    """Each window has the columns of its own bases, on its own strand."""
    assert cond.dtype == torch.float32 and cond.shape == (*ids.shape, CHANNELS)
    known = ids < 11
    assert torch.equal(cond[..., :4].argmax(-1)[known], (ids.long() - 7)[known])
    return cond[..., 9]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_windows_have_their_columns_on_both_strands(folder, num_workers):
    data = module(folder, alignment_dropout=0.25, num_workers=num_workers)
    batches = list(data.train_dataloader())
    ids, cond = (torch.cat([batch[key] for batch in batches]) for key in ("ids", "cond"))
    dropped = (cond == 0).flatten(1).all(1)
    assert 60 < int(dropped.sum()) < 140
    depth = check(ids[~dropped], cond[~dropped])
    step = depth[:, 1] - depth[:, 0]  # the strand
    assert set(step.tolist()) == {1.0, -1.0}
    assert torch.equal(depth.diff(dim=1), step[:, None].expand(-1, 15))
    again = list(module(folder, alignment_dropout=0.25).train_dataloader())
    assert all(torch.equal(a["cond"], b["cond"]) for a, b in zip(batches, again))


def test_held_out_windows_are_complete(folder):
    data = module(folder, alignment_dropout=1.0)
    for batch in data.val_dataloader():
        assert (check(batch["ids"], batch["cond"]) > 0).all()
    item = data.test_windows("test")[0]
    check(item["ids"][None], item["cond"][None])
    about = data.describe()["alignment"]
    assert (about["name"], about["genomes"]) == ("x.aln", 1) and len(about["identity"]) == 64
    assert pickle.loads(pickle.dumps(data.train_windows()))[0]["cond"].shape == (16, CHANNELS)


def test_windows_without_an_alignment_are_as_before(folder):
    data = GenomeDataModule(folder / "g.fa", length=16, batch_size=8, split=FractionSplit())
    with_columns, plain = module(folder).train_windows()[5], data.train_windows()[5]
    assert torch.equal(with_columns["ids"], plain["ids"])
    assert "cond" not in plain and "alignment" not in data.describe()


def test_a_record_that_is_not_aligned_has_zeros(folder):
    stored(folder / "part.aln", {"one": 400}, LETTERS[:400])
    data = module(folder, "part.aln", alignment_dropout=0.0)
    windows = data.train_windows()
    record, _, _ = windows.places(0, np.arange(400))
    cond = torch.stack([windows[i]["cond"] for i in range(400)])
    empty = (cond == 0).flatten(1).all(1).numpy()
    assert 0 < empty.sum() < 400 and np.array_equal(empty, record == 1)


def test_the_complement_in_the_store_is_that_of_the_networks(folder):
    data = module(folder, alignment_dropout=0.0)
    data.prepare()
    columns = data._columns
    record, start = np.array([0]), np.array([7])
    one, other = (columns.rows(record, start, 16, np.array([turned])) for turned in (False, True))
    np.testing.assert_array_equal(other, one[:, ::-1][..., list(COMPLEMENT)])


def test_what_does_not_fit_is_refused(folder):
    stored(folder / "other.aln", {"one": 400, "two": 200}, 3 - LETTERS)
    with pytest.raises(ValueError, match=r"other\.aln was made for another assembly"):
        module(folder, "other.aln").prepare()
    with pytest.raises(FileNotFoundError, match=r"x\.fa does not exist"):
        module(folder, "x.fa").prepare()
    (folder / "x.fa").write_text(">a\nACGT\n")
    with pytest.raises(ValueError, match=r"x\.fa is not an alignment of related genomes"):
        module(folder, "x.fa").prepare()
    labeled = GenomeDataModule(
        {"man": folder / "g.fa"}, 16, 8, alignment=folder / "x.aln", split=FractionSplit()
    )
    with pytest.raises(
        ValueError, match=r"data.alignment does not fit sequences with labels \(man"
    ):
        labeled.prepare()
