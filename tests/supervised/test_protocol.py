import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dnadiff.supervised import protocol
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.targets import RegressionTarget

PAD = 4


def items(first: int, count: int, grouped: bool = True) -> Items:
    """Each item spells its number in base 4; two consecutive items are one group."""
    number = torch.arange(first, first + count)
    ids = torch.stack([number // 4**place % 4 + 7 for place in range(5)], 1).to(torch.uint8)
    return Items(ids, torch.full((count,), 5), number // 2 % 2, number // 2 if grouped else None)


def data(grouped: bool = True) -> TaskData:
    return TaskData(
        "t", ["a", "b"], items(0, 180, grouped), items(180, 20, grouped), items(200, 40, grouped)
    )


def keys(of: Items) -> set[tuple[int, ...]]:
    return {tuple(row) for row in of.ids.tolist()}


def test_paper_split_draws_validation_from_the_official_training_set():
    paper, whole = protocol.build_protocol("paper", PAD), data()
    (first,), (second,) = paper.rounds(whole, 1), paper.rounds(whole, 2)
    assert (len(first.data.train), len(first.data.valid), len(first.data.test)) == (180, 20, 40)
    assert keys(first.data.train) | keys(first.data.valid) == keys(whole.train) | keys(whole.valid)
    assert keys(first.data.valid) != keys(second.data.valid)
    assert keys(paper.rounds(whole, 1)[0].data.valid) == keys(first.data.valid)
    assert first.data.test is whole.test
    assert (paper.epochs, paper.warmup) == (10, 0.01)


def test_k_folds_test_each_item_once_and_keep_groups_together():
    folds, whole = protocol.build_protocol("fixed", PAD, folds=5), data()
    every, rounds = folds.tested(whole), folds.rounds(whole, 1)
    assert sorted(torch.cat([r.tested for r in rounds]).tolist()) == list(range(240))
    for one in rounds:
        parts = [set(p.groups.tolist()) for p in (one.data.train, one.data.valid, one.data.test)]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
        assert torch.equal(every.ids[one.tested], one.data.test.ids)
        assert sum(map(len, (one.data.train, one.data.valid, one.data.test))) == 240


def test_a_task_without_groups_has_no_folds():
    with pytest.raises(ValueError, match=r"leave out task\.folds"):
        protocol.build_protocol("fixed", PAD, folds=5).rounds(data(grouped=False), 1)


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ValueError, match="one of fixed, paper"):
        protocol.build_protocol("papers", PAD)


def test_items_of_different_width_are_concatenated():
    wide = Items(torch.full((1, 7), 8, dtype=torch.uint8), torch.tensor([7]), torch.tensor([1]))
    both = items(0, 1).concatenate(wide, PAD)
    assert both.ids.tolist() == [[7, 7, 7, 7, 7, PAD, PAD], [8] * 7]
    assert both.groups is None


def test_a_division_without_training_items_of_a_class_is_refused():
    rare = items(0, 40)
    rare = Items(
        rare.ids, rare.lengths, (torch.arange(40) < 2).long(), rare.groups
    )  # one group of the second class
    whole = TaskData("t", ["a", "b"], rare, items(200, 0), items(240, 40))

    def divide() -> None:
        for seed in range(200):
            protocol.build_protocol("paper", PAD).rounds(whole, seed)

    with pytest.raises(ValueError, match="leaves no training item of class 'b'"):
        divide()


def test_a_protocol_that_is_not_a_string_is_refused():
    with pytest.raises(ValueError, match="one of fixed, paper"):
        protocol.build_protocol(["paper"], PAD)


def values(*, valid: float = 1.0, test: float = 2.0) -> TaskData:
    """A regression whose validation items have the value `valid`, and whose test items have 0 and
    `test`."""
    own, several = data(), torch.arange(180.0)[:, None] % 7
    parts = (
        (own.train, several),
        (own.valid, torch.full((20, 1), valid)),
        (own.test, torch.tensor([[0.0], [test]]).repeat(20, 1)),
    )
    train, chosen_on, tested = (replace(of, labels=labels) for of, labels in parts)
    return TaskData("t", ["y"], train, chosen_on, tested, target=RegressionTarget(["y"]))


def test_validation_items_without_values_are_refused():
    with pytest.raises(
        ValueError,
        match=r"^t has no value of 'y' in its 20 validation items, which choose the epoch",
    ):
        protocol.build_protocol("fixed", PAD).rounds(values(valid=math.nan), 1)
    assert (
        len(protocol.build_protocol("fixed", PAD, folds=5).rounds(values(valid=math.nan), 1)) == 5
    )  # draws its own


@pytest.mark.parametrize("test", [0.0, math.nan])
def test_test_items_that_cannot_be_scored_are_refused(test):
    with pytest.raises(
        ValueError,
        match=r"fewer than two different values in column 'y' of its 40 test items, for which "
        r"Spearman",
    ):
        protocol.build_protocol("fixed", PAD).rounds(values(test=test), 1)


def test_few_items_are_drawn_for_each_seed_and_classes_keep_their_shares():
    few, whole = protocol.build_protocol("fixed", PAD, 45), data()
    (first,), (again,), (second,) = few.rounds(whole, 1), few.rounds(whole, 1), few.rounds(whole, 2)
    assert (len(first.data.train), len(first.data.valid)) == (45, 10)  # 20 / 4 is fewer than 10
    assert first.data.test is whole.test and torch.equal(first.tested, torch.arange(40))
    for part in ("train", "valid"):
        drawn, every = keys(getattr(first.data, part)), keys(getattr(whole, part))
        assert drawn < every and len(drawn) == len(getattr(first.data, part))
        assert keys(getattr(again.data, part)) == drawn != keys(getattr(second.data, part))
    assert abs(int(first.data.train.labels.sum()) - 22.5) <= 1
    assert few.varies and few.describe() == {"protocol": "few", "train_items": 45}
    assert keys(few.example(whole, 2).train) == keys(
        second.data.train
    )  # that of a seed of the study


def test_few_items_have_labels():
    whole = values()
    whole.train.labels[: len(whole.train) - 8] = math.nan
    (one,) = protocol.build_protocol("fixed", PAD, 8).rounds(whole, 1)
    assert len(one.data.train) == 8 and bool(one.data.train.labels.isfinite().all())
    with pytest.raises(
        ValueError,
        match=r"train_items 9: t has 8 training items with a label; give at most that, or null",
    ):
        protocol.build_protocol("fixed", PAD, 9).rounds(whole, 1)
    whole.train.labels[-8:] = 1.0
    with pytest.raises(
        ValueError,
        match=r"^t, seed 1, has the same value, 1, in column 'y'.*; set train_items higher than "
        r"5, or null$",
    ):
        protocol.build_protocol("fixed", PAD, 5).rounds(whole, 1)


def test_drawn_items_keep_the_shares_of_strata_of_any_size():
    strata = np.repeat([0, 1, 2], [1000, 100, 10])
    for key in range(20):
        drawn = protocol.draw_items(strata, 111, key)
        assert (
            len(drawn.unique()) == 111
            and np.abs(np.bincount(strata[drawn]) - [100, 10, 1]).max() <= 1
        )
    assert torch.equal(protocol.draw_items(strata, 5000, 0), torch.arange(1110))


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("fixed", 181, "train_items 181: t has 180 training items; give at most that, or null"),
        (
            "fixed",
            1,
            "^t: the division of seed 1 leaves no training item of class '[ab]', of which there "
            "are 90 in 180; "
            "set train_items higher than 1, or null$",
        ),
    ],
)
def test_impossible_numbers_of_items_are_refused(name, number, message):
    with pytest.raises(ValueError, match=message):
        protocol.build_protocol(name, PAD, number).rounds(data(), 1)


def test_validation_items_of_a_single_class_are_refused():
    whole = data()
    single = replace(whole, valid=replace(whole.valid, labels=torch.ones(20, dtype=torch.int64)))
    message = (
        r"^t: all 20 validation items are of class 'b', and the choice of the epoch expects two or "
        r"more classes; .*task\.redivide=true$"
    )
    for fixed in (protocol.build_protocol("fixed", PAD), protocol.build_protocol("fixed", PAD, 45)):
        with pytest.raises(ValueError, match=message):
            fixed.rounds(single, 1)
    assert protocol.build_protocol("paper", PAD).rounds(single, 1)  # draws its own


def test_few_items_with_a_single_value_are_refused_before_training():
    whole = values()
    rare = replace(
        whole, train=replace(whole.train, labels=(torch.arange(180) == 0).float()[:, None])
    )
    with pytest.raises(
        ValueError,
        match=r"^t, seed 1, has the same value, 0, in column 'y' of all 20 training items",
    ):
        protocol.build_protocol("fixed", PAD, 20).rounds(rare, 1)


def test_drawn_validation_items_of_a_single_class_are_logged(caplog):
    few, whole = protocol.build_protocol("fixed", PAD, 20), data()
    rare = replace(whole.valid, labels=(torch.arange(20) == 0).long())
    seeds = [few.rounds(replace(whole, valid=rare), seed)[0].data for seed in range(8)]
    single = [seed for seed, each in enumerate(seeds) if len(each.valid.labels.unique()) == 1]
    assert single and all(
        f"all 10 validation items of seed {seed} are of class 'a'" in caplog.text for seed in single
    )


def test_a_fold_without_a_class_and_fewer_groups_than_folds_are_refused():
    rare = items(0, 40)
    rare = Items(rare.ids, rare.lengths, (torch.arange(40) < 6).long(), rare.groups)
    whole = TaskData("t", ["a", "b"], rare, items(200, 0), items(240, 0))
    with pytest.raises(
        ValueError,
        match=r"^t: class 'b' is in 3 of 5 folds of seed 1, because it has 6 sequences in 3 groups;"
        r" add sequences of it, or set task\.folds to less$",
    ):
        protocol.KFold(PAD).rounds(whole, 1)
    for one in protocol.KFold(PAD, 3).rounds(whole, 1):  # each fold has one group of them
        assert int(one.data.test.labels.sum()) == 2
    with pytest.raises(ValueError, match=r"^20 groups of sequences cannot fill 30 folds; .* to 20"):
        protocol.KFold(PAD, 30).rounds(whole, 1)


def test_a_tested_fold_has_no_part_in_what_is_chosen_for_it():
    whole = replace(data(), target=RegressionTarget(["y"]))
    of_number = torch.arange(240.0)[:, None] % 11
    rounds = protocol.KFold(PAD)
    first = rounds.rounds(labeled(whole, of_number), 1)[0]
    changed = of_number.index_add(0, first.tested, torch.full((len(first.tested), 1), 5.0))
    again = rounds.rounds(labeled(whole, changed), 1)
    assert torch.equal(again[0].tested, first.tested)
    for part in ("train", "valid"):
        before, after = (getattr(one.data, part) for one in (first, again[0]))
        assert keys(before) == keys(after) and torch.equal(before.labels, after.labels)
    assert not torch.equal(again[0].data.test.labels, first.data.test.labels)


def labeled(whole: TaskData, labels: torch.Tensor) -> TaskData:
    """The task with values of its 240 items."""
    parts = labels.split([180, 20, 40])
    named = zip(whole.parts.items(), parts)
    return replace(whole, **{part: replace(of, labels=own) for (part, of), own in named})


@pytest.mark.parametrize(
    ("name", "number", "folds", "message"),
    [
        ("kfold", None, None, r"^task\.protocol=kfold is now task\.folds=5; leave task\.protocol"),
        ("paper", None, 5, r"^task\.protocol=paper and task\.folds=5 each decide which items"),
        ("fixed", 50, 5, r"^task\.folds=5 and train_items=50 each decide which items"),
    ],
)
def test_one_key_decides_the_training_items(name, number, folds, message):
    with pytest.raises(ValueError, match=message):
        protocol.build_protocol(name, PAD, number, folds)
