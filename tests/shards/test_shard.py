import pytest

from dnadiff.shards.shard import Shard, bounds


@pytest.mark.parametrize(
    "text", ["x", "3", 3, None, "0/4", "5/4", "1/0", "-1/4", "1/2/3", "1.5/4", True, ["1/4"], ""]
)
def test_what_is_no_part_of_n_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"^shard"):
        Shard.parse(text)


@pytest.mark.parametrize(("total", "count"), [(7, 3), (200, 200), (3, 5), (0, 2), (1, 1)])
def test_shards_cover_all_units_once_and_evenly(total, count):
    units = [Shard(number, count).units(total) for number in range(1, count + 1)]
    assert [unit for each in units for unit in each] == list(range(total))
    assert max(map(len, units)) - min(map(len, units)) <= 1
    assert bounds(total, count) == [*(each.start for each in units), total]


def test_a_shard_reads_as_it_is_written():
    assert str(Shard.parse("3/200")) == "3/200" and Shard.parse("3/200") == Shard(3, 200)
