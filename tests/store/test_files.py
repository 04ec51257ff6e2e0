"""Writing of files: errors name the file, the size that it needs and the space that is free; what
was there before stays."""

import errno
import fcntl
import gzip
import os
import resource
import shutil
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch

from dnadiff.data.genome.packed import pack
from dnadiff.jobs.journal import ResumableOutput
from dnadiff.store import disk, files
from dnadiff.store.disk import append, atomic_write, check_output, write_json
from dnadiff.training.trainer import AtomicCheckpoints

LIMITED = r"limited to 20,000 bytes \(ulimit -f; [\d,]+ bytes are free in "


@contextmanager
def limited_files(size=20_000):
    """Files of at most `size` bytes, which is how a full disk is simulated: the write fails after
    some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def target(tmp_path):
    (tmp_path / "out.bin").write_text("before")
    return tmp_path / "out.bin"


def unchanged(target):
    return target.read_text() == "before" and list(target.parent.iterdir()) == [target]


def test_a_file_that_does_not_fit_is_named_with_its_size_and_the_space(target):
    with (
        limited_files(),
        pytest.raises(
            OSError,
            match=rf"^{target} could not be written: it needs 90,0\d\d bytes, and .*{LIMITED}",
        ),
    ):
        write_json(target, ["a" * 45_000] * 2, indent=0)
    assert unchanged(target)


def test_bytes_written_are_named_where_the_size_is_unknown(target):
    with (
        limited_files(),
        pytest.raises(
            OSError, match=r"out\.bin could not be written: 20,000 bytes were written, and "
        ),
        atomic_write(target, overwrite=True) as file,
    ):
        np.savez(file, a=np.arange(10_000))
    assert unchanged(target)


def test_a_compressed_file_that_does_not_fit_is_named(tmp_path):
    with (
        limited_files(),
        pytest.raises(OSError, match=r"out\.gz could not be written: 20,000 bytes were written"),
        atomic_write(tmp_path / "out.gz") as file,
    ):
        file.write(np.random.default_rng(0).bytes(50_000))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_does_not_fit_is_named_with_its_size(target):
    with (
        limited_files(),
        pytest.raises(
            OSError,
            match=rf"^{target} could not be written: it needs 4[\d,]+ bytes, and .*{LIMITED}",
        ),
    ):
        AtomicCheckpoints().save_checkpoint(
            {"a": torch.zeros(10_000), "b": torch.zeros(100)}, target
        )
    assert unchanged(target)


def test_a_full_disk_is_named_with_the_space_that_is_free(target, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 3, 7))
    message = (
        rf"^{target} could not be written: it needs 3 bytes, and the disk is full \(No space left "
        rf"on device; 7 bytes are free in {target.parent}\)"
    )
    with pytest.raises(OSError, match=message) as caught:
        write_json(target, 12)
    assert caught.value.errno == errno.ENOSPC and unchanged(target)


def test_an_error_that_the_caller_ignores_does_not_replace_the_file(target):
    problem = pytest.raises(OSError, match="could not be written")
    with limited_files(), problem, atomic_write(target, overwrite=True) as file, suppress(OSError):
        file.write(bytes(30_000))
    assert unchanged(target)


@pytest.mark.parametrize("name", ["x.gz", "x.GZ", "x.txt"])
def test_a_name_that_ends_in_gz_is_compressed(tmp_path, name):
    with atomic_write(tmp_path / name) as file:
        file.write(b"letters")
    content = (tmp_path / name).read_bytes()
    assert content == b"letters" if name == "x.txt" else gzip.decompress(content) == b"letters"


def test_a_pipe_is_refused_because_inputs_are_read_more_than_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (files.open_binary(tmp_path / "pipe").__enter__, lambda: pack(tmp_path / "pipe")):
        with pytest.raises(
            ValueError,
            match=(
                "pipe is a pipe or a device, and inputs are read more than once; write it to a "
                "file first"
            ),
        ):
            read()


def test_an_error_of_another_file_keeps_its_message(target):
    with pytest.raises(FileNotFoundError) as caught, atomic_write(target, overwrite=True):
        (target.parent / "absent").read_bytes()
    assert caught.value.filename == str(target.parent / "absent") and unchanged(target)


def test_an_append_that_does_not_fit_leaves_the_file_as_it_was(target):
    with (
        limited_files(),
        pytest.raises(OSError, match=r"out\.bin could not be written: it needs 30,000 bytes"),
    ):
        append(target, bytes(30_000))
    append(target, b"")
    assert unchanged(target)


def test_a_batch_of_samples_that_does_not_fit_is_named(tmp_path):
    output = ResumableOutput(tmp_path / "s.fa", {})
    with (
        limited_files(),
        pytest.raises(OSError, match=r"\.s\.fa\.part could not be written: it needs 30,000 bytes"),
    ):
        output.append(bytes(30_000), 1)
    output.close()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_named(target, monkeypatch, number):
    def refused(*args, **kwargs):
        raise OSError(number, "Read-only file system")

    monkeypatch.setattr(disk.WatchedFile, "__init__", refused)
    with pytest.raises(
        OSError,
        match=(
            rf"^{target} could not be written: Read-only file system; choose a folder that you "
            rf"may write to"
        ),
    ):
        write_json(target, 1)
    assert unchanged(target)


def test_an_output_in_a_read_only_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *args: False)
    with pytest.raises(
        PermissionError,
        match=rf"a/b/out\.fa could not be written: the folder {tmp_path} is read-only",
    ):
        check_output(tmp_path / "a" / "b" / "out.fa")


def test_an_output_below_a_file_is_refused_before_the_work(target):
    with pytest.raises(
        ValueError, match=r"below could not be written: .*out\.bin is a file; choose another folder"
    ):
        check_output(target / "below")


def test_temporary_files_of_killed_processes_are_removed_by_the_next_write(tmp_path):
    left = [tmp_path / f".x.json.{digit * 32}.part" for digit in "ab"]
    others = [
        tmp_path / f".x.{'a' * 32}.part",
        tmp_path / f".y.json.{'a' * 32}.part",
        tmp_path / ".x.json.part",
    ]
    for path in (*left, *others):
        path.write_text("half")
    with left[1].open("r+b") as file:  # another process is writing it
        fcntl.flock(file, fcntl.LOCK_EX)
        with atomic_write(tmp_path / "x.json") as written:
            written.write(b"{}")
    assert sorted(tmp_path.iterdir()) == sorted([left[1], *others, tmp_path / "x.json"])


def test_a_write_keeps_its_temporary_file_locked_until_it_is_renamed(tmp_path):
    with atomic_write(tmp_path / "x.json") as one:
        one.write(b"one")
        with atomic_write(tmp_path / "x.json") as other:  # must not remove the first one's file
            other.write(b"other")
        assert (tmp_path / "x.json").read_bytes() == b"other"
    assert (tmp_path / "x.json").read_bytes() == b"one" and len([*tmp_path.iterdir()]) == 1


def test_ctrl_c_while_the_temporary_file_is_opened_leaves_none(tmp_path, monkeypatch):
    class Interrupted(disk.WatchedFile):
        def __init__(self, path):
            super().__init__(path)
            raise KeyboardInterrupt

    monkeypatch.setattr(disk, "WatchedFile", Interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "x.txt"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_matrix_of_a_reward_on_a_server_is_fetched(cli, server, tmp_path):
    server.files["/m.jaspar"] = b">M one\nA [ 8 0 ]\nC [ 0 8 ]\nG [ 0 0 ]\nT [ 0 0 ]\n"
    given = ["checkpoint=ecoli", "num_samples=1", "length=8", "num_draws=0", "accelerator=cpu"]
    given += ["reward=motif", "reward.motif=null", f"reward.matrix={server.url}/m.jaspar"]
    status, _, err = cli("sample", *given, "method.num_candidates=1", "output=a.fa")
    assert status == 0 and ("/m.jaspar", None) in server.asked and (tmp_path / "a.fa").is_file(), (
        err
    )
