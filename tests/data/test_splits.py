import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnadiff.data.splits import (
    ChromosomeSplit,
    DefaultSplit,
    FractionSplit,
    Interval,
    RegionSplit,
    first_overlap,
    split_hash,
    subtract,
)


def size(intervals):
    return sum(i.end - i.start for i in intervals)


def test_fraction_of_a_record_of_one_hundred():
    parts = FractionSplit()(["a"], [100])
    assert parts == {
        "train": [Interval(0, 0, 80)],
        "valid": [Interval(0, 90, 100)],
        "test": [Interval(0, 80, 90)],
    }
    middle = FractionSplit(test=[0.5, 0.6], valid=[0.1, 0.2])(["a"], [100])
    assert middle["train"] == [Interval(0, 0, 10), Interval(0, 20, 50), Interval(0, 60, 100)]


POLICIES = [FractionSplit(), FractionSplit((0, 0.05), (0.4, 0.45)), DefaultSplit()]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.sampled_from(POLICIES))
def test_every_base_is_in_exactly_one_part(lengths, split):
    parts = split([f"r{i}" for i in range(len(lengths))], lengths)
    covered = sorted(
        (i.record, p)
        for intervals in parts.values()
        for i in intervals
        for p in range(i.start, i.end)
    )
    assert covered == [(r, p) for r, length in enumerate(lengths) for p in range(length)]
    assert first_overlap(parts) is None


def test_whole_records_by_name():
    split = ChromosomeSplit(valid="c", test=["b", "d"])
    parts = split(["a", "b", "c", "d"], [5, 6, 7, 8])
    assert parts["test"] == [Interval(1, 0, 6), Interval(3, 0, 8)]
    assert parts["valid"] == [Interval(2, 0, 7)] and parts["train"] == [Interval(0, 0, 5)]
    assert split.describe() == "chromosomes (valid c; test b, d)"


def test_a_name_that_no_record_has_lists_the_known():
    with pytest.raises(
        ValueError, match="split: no record is called chr11, chr9; the records are 1, 8, 10"
    ):
        ChromosomeSplit(valid=["chr11"], test=["chr9"])(["1", "8", "10"], [5, 5, 5])
    with pytest.raises(ValueError, match=r"data\.split\.valid and data\.split\.test both name a"):
        ChromosomeSplit(valid=["a"], test=["a"])


@pytest.mark.parametrize(
    ("test", "valid", "message"),
    [((0.8, 0.95), (0.9, 1.0), "overlap"), ((0.9, 0.8), (0, 0.1), "expected two fractions")],
)
def test_impossible_fractions_are_refused(test, valid, message):
    with pytest.raises(ValueError, match=message):
        FractionSplit(test, valid)


def test_default_holds_out_whole_records_where_it_can():
    yeast = {"IV": 1531933, "XV": 1091291, "VII": 1090940, "II": 813184, "rest": 7_500_000}
    split = DefaultSplit()
    assert split.describe().startswith("default (whole records of up to 10 % each")
    parts = split(list(yeast), list(yeast.values()))
    assert (parts["test"], parts["valid"]) == ([Interval(1, 0, 1091291)], [Interval(2, 0, 1090940)])
    assert split.describe() == "chromosomes (valid VII; test XV)"


@pytest.mark.parametrize(
    "lengths", [[1000], [1000, 1000], [4_000_000, 5000, 3000], [1000, 1000, 1000]]
)
def test_default_falls_back_to_fractions(lengths):
    names = [f"r{i}" for i in range(len(lengths))]
    assert DefaultSplit()(names, lengths) == FractionSplit()(names, lengths)


def test_regions_come_from_the_fourth_column(tmp_path):
    bed = tmp_path / "s.bed"
    bed.write_text("a\t0\t10\ttrain\na\t5\t20\ttrain\na\t30\t40\tvalid\nb\t0\t9\ttest\n")
    split = RegionSplit(bed)
    parts = split(["a", "b"], [50, 50])
    assert parts == {
        "train": [Interval(0, 0, 20)],
        "valid": [Interval(0, 30, 40)],
        "test": [Interval(1, 0, 9)],
    }
    assert split.describe() == "regions (s.bed)"
    bed.write_text("a\t0\t10\ttrain\na\t20\t30\ttrain\na\t9\t12\ttest\n")
    with pytest.raises(
        ValueError, match=r"train a:0-10 overlaps test a:9-12; a base belongs to one part"
    ):
        split(["a", "b"], [50, 50])
    bed.write_text("a\t0\t10\tdev\n")
    with pytest.raises(ValueError, match="fourth column is 'dev'; expected train, valid or test"):
        split(["a", "b"], [50, 50])


def test_published_window_format_is_read(shared_data):
    parts = RegionSplit(shared_data / "annotations" / "hg38.chr20.windows131072.split.bed.gz")(
        ["chr20"], [64_444_167]
    )
    assert {part: len(intervals) for part, intervals in parts.items()} == {
        "train": 371,
        "valid": 30,
        "test": 45,
    }


def test_the_hash_names_the_intervals_and_nothing_else():
    parts = FractionSplit()(["a"], [100])
    reordered = dict(reversed(parts.items()))
    assert (
        split_hash(parts, ["a"]) == split_hash(reordered, ["a"])
        and len(split_hash(parts, ["a"])) == 12
    )
    assert split_hash(parts, ["a"]) != split_hash(parts, ["b"])
    assert split_hash(parts, ["a"]) != split_hash(FractionSplit()(["a"], [101]), ["a"])


INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 30)), max_size=6
)


@given(INTERVALS, INTERVALS)
def test_a_blacklist_takes_away_its_bases_and_no_others(shapes, removed):
    intervals, holes = ([Interval(r, a, a + n) for r, a, n in many] for many in (shapes, removed))
    gone = {(i.record, p) for i in holes for p in range(i.start, i.end)}
    for interval in intervals:
        left = subtract([interval], holes)
        kept = [(i.record, p) for i in left for p in range(i.start, i.end)]
        assert kept == [
            (interval.record, p)
            for p in range(interval.start, interval.end)
            if (interval.record, p) not in gone
        ]
        assert all(b.start > a.end for a, b in itertools.pairwise(left))


@pytest.mark.parametrize(
    "wrong",
    [5, "ab", None, [0.1], [0.1, "b"], [True, 1], [0.1, float("nan")], {"a": 1, "b": 2}, [[0], 1]],
)
def test_bounds_that_are_no_pair_of_fractions_are_named(wrong):
    for part in ("test", "valid"):
        with pytest.raises(ValueError, match=rf"^{part}\S* .* must be "):
            FractionSplit(**{part: wrong})


@pytest.mark.parametrize("wrong", [None, True, [None], [["a"]], {"a": 1}, ""])
def test_names_of_records_that_are_no_names_are_named(wrong):
    with pytest.raises(ValueError, match=r"^test\S* .* must be "):
        ChromosomeSplit(valid="a", test=wrong)


def test_a_number_is_a_name():
    assert ChromosomeSplit(valid=3, test=[4, "X"]).test == ["4", "X"]
