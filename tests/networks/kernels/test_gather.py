import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff.networks.kernels import native as gather


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 60), st.integers(0, 3000))
def test_windows_are_slices_with_and_without_a_compiler(length, count, spare):
    draw = np.random.default_rng(length + count)
    array = draw.integers(0, 256, length + spare, dtype=np.uint8)
    start = draw.integers(0, spare + 1, count)
    expected = [array[s : s + length].tolist() for s in start]
    for take in (
        gather.make_gather(array, length),
        gather._native(array, length),
        gather._portable(array, length),
    ):
        assert take(start).tolist() == expected and take(start).shape == (count, length)


def test_a_window_outside_the_array_is_refused():
    array = np.arange(100, dtype=np.uint8)
    for start in (91, 10**12, -(10**12)):
        for take in (gather._native(array, 10), gather._portable(array, 10)):
            with pytest.raises(IndexError):
                take(np.array([5, start]))
    assert len(gather.make_gather(array, 101)(np.array([], dtype=np.int64))) == 0


def test_without_a_compiler_numpy_copies(clear_caches, monkeypatch, tmp_path):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    array = np.arange(100, dtype=np.uint8)
    assert gather.make_gather(array, 3)(np.array([7, 0])).tolist() == [[7, 8, 9], [0, 1, 2]]
    letters = np.arange(100, dtype=np.uint16)  # text may have more tokens than a byte has values
    assert gather.make_gather(letters, 2)(np.array([98])).tolist() == [[98, 99]]
