"""`.npz` files that are read back: whole, or refused with one line."""

import io
import zipfile

import numpy as np
import pytest

from dnadiff.store.disk import read_npz

ARRAYS = {
    "a": np.arange(60).reshape(5, 12),
    "b": np.asfortranarray(np.ones((2, 3), np.float32)),
    "name": np.array("x\u00fc"),
    "n": np.array(3),
}


KINDS = {name: f"{array.dtype.kind}{array.ndim}" for name, array in ARRAYS.items()}


def saved(path, save=np.savez_compressed, **arrays):
    save(path, **(arrays or ARRAYS))
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_written(save, tmp_path):
    found = read_npz(saved(tmp_path / "x.npz", save), KINDS)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_flipped_bit_is_noticed_or_without_a_meaning(save, tmp_path):
    content = saved(tmp_path / "x.npz", save).read_bytes()
    for bit in range(0, 8 * len(content), 37):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "x.npz").write_bytes(damaged)
        try:
            found = read_npz(tmp_path / "x.npz", KINDS)
        except ValueError as error:
            assert str(error).startswith(f"{tmp_path / 'x.npz'} is damaged") and "\n" not in str(
                error
            )
        else:
            assert all(np.array_equal(found[name], array) for name, array in ARRAYS.items()), bit


def with_header(header):
    array = io.BytesIO()
    np.lib.format.write_array(array, np.zeros(3))
    body = array.getvalue().replace(b"'shape': (3,), }", header)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("a.npy", body)
    return content.getvalue()


@pytest.mark.parametrize(
    "shape",
    [
        b"'shape': (9999999999999,), }",
        b"'shape': " + b"(" * 300,
        b"'shape': None, }",
    ],
)
def test_memory_is_not_allocated_for_what_the_file_does_not_contain(shape, tmp_path):
    (tmp_path / "x.npz").write_bytes(with_header(shape))
    with pytest.raises(
        ValueError,
        match=r"x\.npz is damaged or cut short.*; use another copy of it, or remove it$",
    ):
        read_npz(tmp_path / "x.npz")


def test_objects_other_files_and_missing_arrays_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is damaged"):
        read_npz(saved(tmp_path / "x.npz", a=np.array([{}], dtype=object)))
    with pytest.raises(ValueError, match="it lacks the array a"):
        read_npz(saved(tmp_path / "x.npz", b=np.zeros(1)), {"a": "f1"})
    with pytest.raises(ValueError, match="it lacks the array b of its type"):
        read_npz(tmp_path / "x.npz", {"b": "f2 i1"})
    (tmp_path / "x.npz").write_text("text")
    with pytest.raises(ValueError, match="is damaged"):
        read_npz(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "absent.npz")


def test_an_entry_that_is_no_array_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("a.npy", b"no array")
    with pytest.raises(ValueError, match=r"x\.npz is damaged .*an entry is not an array"):
        read_npz(tmp_path / "x.npz", {"a": "f1"})
