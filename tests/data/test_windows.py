import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff.data.records import NRuns
from dnadiff.data.splits import FractionSplit, Interval
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.data.windows import (
    IntervalWindows,
    RecordConditions,
    Tile,
    TiledWindows,
    UniformWindows,
)

DNA = DNATokenizer()


def place(windows, epoch, index):
    """Record and start of a window, and whether it is reverse-complemented."""
    return tuple(each.tolist()[0] for each in windows.places(epoch, np.array([index])))


def random_records(*lengths, letters=b"ACGTN"):
    draw = np.random.default_rng(0)
    return [DNA.encode(bytes(draw.choice(list(letters), size=n).tolist())) for n in lengths]


def train(records, intervals, length=8, size=1000, **options):
    return UniformWindows(records, intervals, length, size, DNA.vocab, seed=1, **options)


def test_an_item_is_ids_weight_and_index():
    item = train([DNA.encode("ACGTNACG")], [Interval(0, 0, 8)])[5]
    assert item["index"] == 5
    assert item["ids"].tolist() == [7, 8, 9, 10, 11, 7, 8, 9] and item["ids"].dtype == torch.uint8
    assert (
        item["weight"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1] and item["weight"].dtype == torch.uint8
    )


def test_a_window_depends_on_seed_epoch_and_index_alone():
    records, intervals = random_records(500), [Interval(0, 0, 500)]
    windows = train(records, intervals)
    assert torch.equal(windows[3, 7]["ids"], train(records, intervals, size=50)[3, 7]["ids"])
    assert place(windows, 3, 7) == place(windows, 3, 7) != place(windows, 4, 7)
    other = UniformWindows(records, intervals, 8, 10, DNA.vocab, seed=2)
    assert place(other, 3, 7) != place(windows, 3, 7)


def test_starts_are_uniform_over_everything_that_is_allowed():
    intervals = [Interval(0, 10, 25), Interval(0, 40, 45), Interval(1, 0, 10)]  # 8, 0 and 3 starts
    windows = train(random_records(60, 20), intervals)
    counts = Counter(place(windows, 0, i)[:2] for i in range(11_000))
    assert windows.num_starts == 11
    assert set(counts) == {(0, s) for s in range(10, 18)} | {(1, s) for s in range(3)}
    assert all(abs(n - 1000) < 150 for n in counts.values())  # five standard deviations


def test_half_of_the_windows_come_from_the_other_strand():
    records = random_records(500, letters=b"ACGT")
    plain, both = (
        train(records, [Interval(0, 0, 500)]),
        train(records, [Interval(0, 0, 500)], augment_rc=True),
    )
    reversed_ = [place(both, 0, i)[2] for i in range(1000)]
    assert 420 < sum(reversed_) < 580
    for i in range(100):
        forward = plain[i]["ids"]
        assert torch.equal(
            both[i]["ids"].long(),
            DNA.vocab.reverse_complement(forward) if reversed_[i] else forward.long(),
        )


@pytest.mark.parametrize("length", [1, 7, 16])
def test_no_training_window_shares_a_base_with_another_part(length):
    lengths = [200, 83, 161]
    records = random_records(*lengths)
    parts = FractionSplit((0.3, 0.4), (0.7, 0.85))(["a", "b", "c"], lengths)
    held_out = {
        (i.record, p)
        for part in ("valid", "test")
        for i in parts[part]
        for p in range(i.start, i.end)
    }
    windows = train(records, parts["train"], length, size=windows_enough(parts["train"], length))
    places = {place(windows, 0, i)[:2] for i in range(len(windows))}
    assert len(places) == windows.num_starts  # every allowed start was drawn
    assert not held_out & {
        (record, p) for record, start in places for p in range(start, start + length)
    }


def windows_enough(intervals, length):
    starts = sum(max(0, i.end - i.start - length + 1) for i in intervals)
    return int(starts * (np.log(starts) + 12))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 60)), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_tiles_count_every_base_exactly_once(shapes, length):
    intervals = [Interval(r, start, start + size) for r, (start, size) in enumerate(shapes)]
    records = random_records(*(i.end + 5 for i in intervals), letters=b"ACGT")
    if all(size < length for _, size in shapes):
        return
    tiles = TiledWindows(records, intervals, length, DNA.vocab)
    counted = Counter()
    for tile, item in zip(tiles.tiles, (tiles[i] for i in range(len(tiles)))):
        assert torch.equal(
            item["ids"], torch.from_numpy(records[tile.record][tile.start : tile.start + length])
        )
        counted.update(
            (tile.record, tile.start + p) for p in item["weight"].nonzero().flatten().tolist()
        )
    assert set(counted.values()) == {1}
    assert set(counted) == {
        (r, p) for r, start, end in intervals if end - start >= length for p in range(start, end)
    }


def test_the_last_tile_moves_inwards():
    tiles = TiledWindows([DNA.encode("ACGTNACGTA")], [Interval(0, 0, 10)], 4, DNA.vocab)
    assert tiles.tiles == [Tile(0, 0, 0), Tile(0, 4, 0), Tile(0, 6, 2)]
    assert [tiles[i]["weight"].tolist() for i in range(3)] == [
        [1, 1, 1, 1],
        [0, 1, 1, 1],
        [0, 0, 1, 1],
    ]


@pytest.mark.parametrize("max_n", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("length", [2, 3, 5])
def test_every_base_of_the_tiles_counts_once(length, max_n):
    for total, pattern in itertools.product((7, 8), range(1, 2**8, 3)):
        ids = np.array([11 if pattern >> i & 1 else 7 for i in range(total)], np.uint8)
        runs = np.flatnonzero(np.diff(ids == 11, prepend=False, append=False)).reshape(-1, 2)
        starts = sorted({*range(0, total - length, length), total - length})
        kept = [
            start for start in starts if (ids[start : start + length] == 11).sum() <= max_n * length
        ]
        if not kept:
            continue
        tiles = TiledWindows(
            [ids], [Interval(0, 0, total)], length, DNA.vocab, NRuns(runs, [0]), max_n
        )
        counted, expected = np.zeros(total, int), np.zeros(total, int)
        for tile, item in zip(tiles.tiles, tiles):
            counted[tile.start : tile.start + length] += item["weight"].numpy()
        for start in kept:
            expected[start : start + length] = ids[start : start + length] != 11
        assert counted.tolist() == expected.tolist(), (ids, length, max_n)


def test_a_tile_after_one_that_is_left_out_counts_the_overlap():
    ids = np.array([11] * 30 + [7] * 120, np.uint8)
    tiles = TiledWindows(
        [ids], [Interval(0, 0, 150)], 100, DNA.vocab, NRuns(np.array([[0, 30]]), [0]), 0.1
    )
    assert tiles.tiles == [Tile(0, 50, 0)] and tiles[0]["weight"].sum() == 100


def test_a_window_of_n_has_weight_zero_everywhere():
    tiles = TiledWindows([DNA.encode("N" * 8)], [Interval(0, 0, 8)], 8, DNA.vocab)
    assert tiles[0]["weight"].sum() == 0


@pytest.mark.parametrize(
    "make", [train, lambda records, intervals: TiledWindows(records, intervals, 8, DNA.vocab)]
)
def test_a_genome_shorter_than_the_window_is_refused(make):
    with pytest.raises(
        ValueError,
        match=r"longest of 2 intervals has 7 tokens, a window 8; set data\.length=7 or less",
    ):
        make(random_records(20), [Interval(0, 0, 7), Interval(0, 10, 12)])
    with pytest.raises(ValueError, match="no interval to cut windows of 8 tokens from"):
        make(random_records(20), [])


N_RUNS = NRuns(np.array([[20, 31], [51, 60]]), offsets=[0, 51])  # of the records of `with_n`


def with_n(max_n, kind=UniformWindows, length=8, **options):
    records = [DNA.encode("ACGT" * 5 + "N" * 11 + "ACGT" * 5), DNA.encode("N" * 9 + "A")]
    intervals = [Interval(0, 0, 51), Interval(1, 0, 10)]
    where = (
        (records, intervals, length) if kind is TiledWindows else (records, intervals, length, 400)
    )
    seed = () if kind is TiledWindows else (0,)
    return kind(*where, DNA.vocab, *seed, n_runs=N_RUNS, max_n=max_n, **options)


@pytest.mark.parametrize("max_n", [0.0, 0.25, 0.5, 1.0])
def test_windows_with_too_many_n_are_never_drawn_and_all_others_are(max_n):
    windows = with_n(max_n)
    expected = {
        (r, s)
        for r, n in ((0, 51), (1, 10))
        for s in range(n - 7)
        if (np.asarray(windows.records[r])[s : s + 8] == 11).mean() <= max_n
    }
    assert windows.num_starts == len(expected)
    assert {place(windows, 0, i)[:2] for i in range(2000)} == expected


def test_nothing_but_n_is_refused():
    for kind in (UniformWindows, TiledWindows, IntervalWindows):
        with pytest.raises(
            ValueError,
            match=r"every window of 30 tokens holds more than 5 % N; set data\.max_n to more",
        ):
            with_n(0.05, kind, length=30)


def test_tiles_with_too_many_n_are_left_out_and_counted():
    everything, few = with_n(1.0, TiledWindows), with_n(0.25, TiledWindows)
    assert few.left_out == len(everything) - len(few) == 4
    assert set(few.tiles) < set(everything.tiles) and all(
        (few[i]["ids"] == 11).float().mean() <= 0.25 for i in range(len(few))
    )


def test_every_tile_comes_once_an_epoch_in_another_order():
    windows = with_n(0.25, IntervalWindows)
    windows = IntervalWindows(
        windows.records, windows.intervals, 8, None, DNA.vocab, 0, n_runs=N_RUNS, max_n=0.25
    )
    tiles = {(t.record, t.start) for t in with_n(0.25, TiledWindows).tiles}
    orders = [[place(windows, epoch, i)[:2] for i in range(len(windows))] for epoch in range(6)]
    assert windows.size == len(tiles) and all(sorted(order) == sorted(tiles) for order in orders)
    assert len({tuple(order) for order in orders}) > 3
    beyond = [
        place(windows, 0, i)[:2] for i in range(len(tiles), 2 * len(tiles))
    ]  # a second turn, to fill the last batch
    assert sorted(beyond) == sorted(tiles)


def test_letters_without_complement_have_no_reverse_complement():
    given = random_records(50), [Interval(0, 0, 50)], 8, 4, replace(DNA.vocab, complement=None), 1
    with pytest.raises(ValueError, match="augment_rc true is for DNA"):
        UniformWindows(*given, augment_rc=True)


@pytest.mark.parametrize("kind", [UniformWindows, IntervalWindows])
def test_a_batch_is_its_windows(kind):
    records = random_records(5000, 300, 90)
    windows = kind(
        records,
        [Interval(0, 100, 4900), Interval(1, 0, 300), Interval(2, 3, 90)],
        32,
        5000,
        DNA.vocab,
        3,
        augment_rc=True,
    )
    for first, count, step in ((0, 7, 1), (4090, 12, 1), (4096, 1, 1), (5, 6, 4), (4080, 6, 4)):
        batch = windows.batch(2, first, count, step)
        for row, index in enumerate(range(first, first + count * step, step)):
            item = windows[2, index]
            assert torch.equal(batch["ids"][row], item["ids"]) and torch.equal(
                batch["weight"][row], item["weight"]
            )
            assert int(batch["index"][row]) == item["index"] == index
            record, start, reverse = place(windows, 2, index)
            forward = torch.from_numpy(records[record][start : start + 32])
            assert torch.equal(
                item["ids"].long(),
                DNA.vocab.reverse_complement(forward) if reverse else forward.long(),
            )


@pytest.mark.parametrize("length", [16, 1000, 1_048_576])
def test_any_length_from_16_to_a_million(length):
    records = random_records(1_100_000)
    item = train(records, [Interval(0, 50, 1_100_000)], length, 1)[0]
    assert len(item["ids"]) == length
    tiles = TiledWindows(records, [Interval(0, 50, 1_100_000)], length, DNA.vocab)
    assert sum(int(tiles[i]["weight"].sum()) for i in {0, len(tiles) - 1}) > 0 and len(tiles) == -(
        -1_099_950 // length
    )


def test_labels_travel_and_are_withheld_now_and_then():
    labels = RecordConditions.of([["yeast"], ["human", "class=x"]], {}, dropout=0.1)
    assert labels.conditions.labels == ("class=x", "human", "yeast") and labels.rows(
        np.arange(2)
    ).tolist() == [
        [0, 0, 1],
        [1, 1, 0],
    ]
    windows = train(
        random_records(40, 40), [Interval(0, 0, 40), Interval(1, 0, 40)], size=5000, cond=labels
    )
    batch = windows.batch(0, 0, 5000)
    told = batch["cond"].any(1).bool()
    assert batch["cond"].dtype == torch.uint8 and 0.08 < 1 - told.float().mean() < 0.12
    record = torch.tensor([place(windows, 0, i)[0] for i in range(5000)])
    assert torch.equal(batch["cond"][told], torch.from_numpy(labels.rows(record[told].numpy())))
    assert torch.equal(windows[0, 7]["cond"], batch["cond"][7])
    tiles = TiledWindows(random_records(40, 40), [Interval(1, 0, 40)], 8, DNA.vocab, cond=labels)
    assert tiles[0]["cond"].tolist() == [1, 1, 0] and RecordConditions.of([[], []], {}) is None
