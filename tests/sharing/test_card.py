import pytest

from dnadiff.data.splits import MAX_HELD_OUT
from dnadiff.sharing.record import named


@pytest.mark.parametrize(
    ("count", "end"),
    [
        (3, "r1, r2"),
        (8, "r6, r7"),
        (9, "r7 and 1 more"),
        (MAX_HELD_OUT, f"r7 and at least {MAX_HELD_OUT - 8} more"),
    ],
)
def test_records_that_are_not_named_are_counted(count, end):
    assert named([f"r{i}" for i in range(count)]).endswith(end)
