"""Folders appear when they are complete, and only own files are replaced."""

import fcntl
import os
import sys

import pytest

from dnadiff.store.disk import check_folder, new_folder

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
    left, used, other = (
        tmp_path / f".{name}.{letter * 32}.part"
        for name, letter in (("model", "a"), ("model", "b"), ("mode", "c"))
    )
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
    (tmp_path / "model" / ".DS_Store").write_text("of macOS")
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


# Audit events before each step of a replacement.
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "ctypes.dlsym")


def replaced_and_killed(target, step, exchanges):
    """Replace `target` in a process that dies without any cleaning just before its change number
    `step`; whether it died. Without `exchanges`, its system cannot exchange two folders."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        return status == 9
    count = 0

    def die(event, args):
        nonlocal count
        count += event in CHANGES
        if count == step:
            os._exit(9)
        if event == "ctypes.dlsym" and not exchanges:
            raise AttributeError

    try:
        sys.addaudithook(die)
        with new_folder(target) as part:
            (part / "a.txt").write_text("new")
            (part / "b.txt").write_text("new")
        os._exit(0)
    finally:  # whatever happens, this process must not run the other tests
        os._exit(1)


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_kill_at_any_step_of_a_replacement_leaves_the_old_folder_or_the_new_one(
    exchanges, tmp_path
):
    contents, step = {"old": ["old", "old"], "new": ["new", "new"]}, 1
    target, found = tmp_path / "model", []
    while True:
        with new_folder(target) as part:
            (part / "a.txt").write_text("old")
            (part / "b.txt").write_text("old")
        if not replaced_and_killed(target, step, exchanges):
            break
        if exchanges:  # there is no moment without a complete folder
            assert [path.read_text() for path in sorted(target.iterdir())] in contents.values()
        with pytest.raises(FileExistsError):  # the next start restores what was renamed away
            check_folder(target, False, ("a.txt", "b.txt"))
        found.append([path.read_text() for path in sorted(target.iterdir())])
        assert found[-1] in contents.values()
        with pytest.raises(RuntimeError), new_folder(target):
            raise RuntimeError
        assert os.listdir(tmp_path) == ["model"]  # and removes the rest
        step += 1
    kinds = [next(kind for kind, content in contents.items() if content == one) for one in found]
    assert kinds == sorted(kinds, reverse=True) and set(kinds) == {"old", "new"} and len(kinds) > 5
    assert os.listdir(tmp_path) == ["model"]
