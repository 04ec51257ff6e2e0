"""Folders appear when they are complete, and only own files are replaced."""

import fcntl
import os

import pytest

from dnadiff.sharing.folder import check_folder, new_folder

OWN = ("a.txt",)


def test_a_folder_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "model"
    with new_folder(target) as part:
        (part / "a.txt").write_text("1")
        assert not target.exists()
    assert (target / "a.txt").read_text() == "1" and os.listdir(target.parent) == ["model"]
    with new_folder(target) as part:
        (part / "b.txt").write_text("2")
    assert os.listdir(target) == ["b.txt"] and os.listdir(target.parent) == ["model"]


def test_an_error_leaves_what_was_there(tmp_path):
    target = tmp_path / "model"
    with new_folder(target) as part:
        (part / "a.txt").write_text("1")
    with pytest.raises(RuntimeError), new_folder(target) as part:
        (part / "a.txt").write_text("2")
        raise RuntimeError
    assert (target / "a.txt").read_text() == "1" and os.listdir(tmp_path) == ["model"]


def test_unfinished_folders_of_killed_processes_are_removed_and_others_kept(tmp_path):
    left, used, other = (tmp_path / f".{name}.{letter * 32}.part" for name, letter in (("model", "a"), ("model", "b"), ("mode", "c")))
    for folder in (left, used, other):
        folder.mkdir()
        (folder / "a.txt").write_text("1")
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a living process does
    with new_folder(tmp_path / "model"):
        pass
    os.close(lock)
    assert sorted(os.listdir(tmp_path)) == sorted([used.name, other.name, "model"])


def test_what_an_export_would_destroy_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match=r"model exists; set overwrite=true"):
        check_folder(tmp_path / "model", False, OWN)
    (tmp_path / "model" / "a.txt").write_text("1")
    assert check_folder(tmp_path / "model", True, OWN) == tmp_path / "model"
    (tmp_path / "model" / "thesis.tex").write_text("1")
    with pytest.raises(ValueError, match=r"holds other files \(thesis\.tex\), which would be lost"):
        check_folder(tmp_path / "model", True, OWN)
    with pytest.raises(ValueError, match="is a file or a link"):
        check_folder(tmp_path / "model" / "a.txt", True, OWN)
    with pytest.raises(ValueError, match=r"could not be written: .* is a file"):
        check_folder(tmp_path / "model" / "a.txt" / "x", True, OWN)
    for name in ("", ".", ".."):
        with pytest.raises(ValueError, match="is not the name of a new folder"):
            check_folder(name, True, OWN)
