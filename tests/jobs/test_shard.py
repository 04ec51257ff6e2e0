import itertools
from types import SimpleNamespace

import pytest

from dnadiff.jobs.shards import Manifest, Shard


@pytest.mark.parametrize(
    "text", ["x", "3", 3, None, "0/4", "5/4", "1/0", "-1/4", "1/2/3", "1.5/4", True, ["1/4"], ""]
)
def test_what_is_no_part_of_n_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"^shard"):
        Shard.parse(text)


@pytest.mark.parametrize(("total", "count"), [(7, 3), (200, 200), (3, 5), (0, 2), (1, 1)])
def test_shards_cover_all_units_once_and_evenly(total, count):
    job = SimpleNamespace(stream="s", settings={}, starts=lambda: range(total + 1))
    job.prepare = lambda: None
    found = Manifest.of("toy", count, [], [job]).streams["s"].items
    sizes = [last - first for first, last in itertools.pairwise(found)]
    assert found[0] == 0 and found[-1] == total and len(sizes) == count
    assert max(sizes) - min(sizes) <= 1


def test_a_shard_reads_as_it_is_written():
    assert str(Shard.parse("3/200")) == "3/200" and Shard.parse("3/200") == Shard(3, 200)
