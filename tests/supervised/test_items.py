import numpy as np
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised import items as module
from dnadiff.supervised.items import (
    Items,
    ShuffledBatches,
    TaskData,
    log_task,
    make_batch,
    reverse_complement_rows,
)
from dnadiff.supervised.targets import RegressionTarget

DNA = DNATokenizer()


def items(*sequences: str) -> Items:
    return Items.from_sequences(
        [DNA.encode(s) for s in sequences], list(range(len(sequences))), DNA.vocab.pad_id
    )


def test_items_are_padded_on_the_right():
    two = items("ACGT", "TT")
    assert two.ids.tolist() == [[7, 8, 9, 10], [10, 10, 4, 4]]
    assert two.lengths.tolist() == [4, 2]
    assert two.ids.dtype == torch.uint8


def test_sequences_that_are_mostly_padding_are_reported(monkeypatch, caplog):
    monkeypatch.setattr(module, "_LARGE", 40)
    with caplog.at_level("WARNING", logger="dnadiff"):
        items(*["ACGTA"] * 10)
        assert not caplog.messages
        items(*["ACGTA"] * 10, "A" * 30)
    assert caplog.messages[0].startswith(
        "11 sequences are padded to the 30 bases of the longest one and take 0.0 GB; cut them "
        "(task.max_length)"
    )


def test_reverse_complement_keeps_the_padding_on_the_right():
    two = items("AACGN", "TTG")
    assert reverse_complement_rows(two.ids, two.lengths, DNA.vocab).tolist() == [
        [11, 8, 9, 10, 10],
        [8, 7, 7, 4, 4],
    ]


def test_a_batch_is_trimmed_and_has_a_mask_only_if_padded():
    three = items("ACGTACGT", "TTA", "GG")
    short = make_batch(three, torch.tensor([1, 2]), DNA.vocab)
    assert short.ids.tolist() == [[10, 10, 7], [9, 9, 4]]
    assert short.valid.tolist() == [[True, True, True], [True, True, False]]
    assert short.labels.tolist() == [1, 2]
    assert make_batch(three, torch.tensor([0]), DNA.vocab).valid is None


def test_an_epoch_has_every_item_once_in_its_own_order():
    many = Items.from_sequences(
        [np.full(3, 7 + i % 4, np.uint8) for i in range(25)], list(range(25)), DNA.vocab.pad_id
    )

    def order(epoch: int) -> list[int]:
        return torch.cat(
            [
                b.labels
                for b in ShuffledBatches(
                    many, 4, DNA.vocab, seed=1, epoch=epoch, both_strands=False
                )
            ]
        ).tolist()

    assert sorted(order(0)) == list(range(25))
    assert order(0) == order(0)
    assert order(0) != order(1)


def test_about_half_of_the_items_are_reverse_complemented():
    many = Items.from_sequences([DNA.encode("AAAC")] * 400, [0] * 400, DNA.vocab.pad_id)
    ids = torch.cat(
        [b.ids for b in ShuffledBatches(many, 64, DNA.vocab, seed=0, epoch=0, both_strands=True)]
    )
    forward = (ids == torch.tensor([7, 7, 7, 8])).all(1)
    reverse = (ids == torch.tensor([9, 10, 10, 10])).all(1)
    assert (forward | reverse).all()
    assert 150 < int(forward.sum()) < 250


def test_batches_hold_items_of_similar_length_where_lengths_differ():
    random = np.random.default_rng(0)
    many = Items.from_sequences(
        [np.full(n, 7, np.uint8) for n in random.integers(10, 500, 640)],
        list(range(640)),
        DNA.vocab.pad_id,
    )
    batches = list(ShuffledBatches(many, 16, DNA.vocab, seed=0, epoch=0, both_strands=False))
    assert sorted(torch.cat([b.labels for b in batches]).tolist()) == list(range(640))
    computed, plain = sum(b.ids.numel() for b in batches), 0
    for index in torch.randperm(640, generator=torch.Generator().manual_seed(0)).split(16):
        plain += make_batch(many, index, DNA.vocab).ids.numel()
    assert computed < 1.1 * int(many.lengths.sum()) < plain
    longest = [b.ids.shape[1] for b in batches]
    assert longest != sorted(longest)


def task(labels: torch.Tensor, notes: dict, **about) -> TaskData:
    """Ten items, of which six train, two are for validation and two for test."""
    every = Items(torch.full((10, 4), 7, dtype=torch.uint8), torch.full((10,), 4), labels)
    parts = (every.select(torch.tensor(rows)) for rows in ([*range(6)], [6, 7], [8, 9]))
    return TaskData("t", ["a", "b"], *parts, notes=notes, **about)


def test_the_first_lines_count_conflicts_copies_classes_and_the_majority(caplog):
    notes = {
        "sequences_with_different_labels": {"sequences": 3, "rows": 7},
        "test_sequences_also_in_training": 1,
    }
    classes = task(torch.tensor([0, 0, 1, 0, 0, 0, 0, 1, 1, 0]), notes)
    with caplog.at_level("INFO", logger="dnadiff"):
        lines = log_task(classes, classes.test.labels, {"inside training": np.ones(2, bool)})
    assert lines == caplog.messages
    assert lines == [
        "task: t, a vs. b; train 6, valid 2, test 2 sequences",
        "83.3% a, 16.7% b in training; always a has the accuracy 0.500",
        "3 sequences occur with different labels (7 rows, either strand); 1 of 2 test sequences "
        "are also in the training or validation part; 2 have most of their 24-mers in common with "
        "it, on either strand",
    ]


def test_the_first_lines_of_values_have_the_error_of_the_mean():
    values = torch.tensor([1.0, 3.0, 1.0, 3.0, 2.0, torch.nan, 9.0, 9.0, 4.0, 1.0])[:, None]
    of_values = task(values, {}, target=RegressionTarget(["y"]), stranded=True)
    assert log_task(of_values, of_values.test.labels, {})[1:] == [
        "y is 2 in the mean, whose squared error is 2.5",
        "0 sequences occur with different labels (0 rows); 0 of 2 test sequences are also in the "
        "training or validation part, on either strand",
    ]
