"""The cache: whole or absent, made once, noticed when changed."""

import errno
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from dnadiff.data.genome import packed
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.packed import PackedFile, pack
from dnadiff.formats.sequences import Header, SequenceFormat
from dnadiff.store import disk as store_cache
from dnadiff.store.disk import (
    CHUNK,
    cache_dir,
    checksums,
    content_hash,
    known_hash,
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "genomes"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "g.fa"
    path.write_text(">a first\nACGTNNacgt\n>b\nTTRT\n")
    return path


def entries(cache):
    return sorted(p.name for p in cache.iterdir() if not p.name.endswith(".lock"))


def test_a_byte_a_base_and_a_small_index(file, cache):
    one = pack(file)
    assert one.stored.mapped.tolist() == [
        7,
        8,
        9,
        10,
        11,
        11,
        7 | 128,
        8 | 128,
        9 | 128,
        10 | 128,
        10,
        10,
        11,
        10,
    ]
    assert isinstance(one.stored.mapped.base, np.memmap) and not one.stored.mapped.flags.writeable
    assert one.runs.tolist() == [[4, 6], [12, 13]] and one.offsets.tolist() == [0, 10, 14]
    counts = {"length": 10, "unknown": 2, "gc": 4, "soft": 4, "ambiguous": [0, 0]}
    assert one.records[0] == {"name": "a", "description": "first"} | counts and one.records[1][
        "ambiguous"
    ] == [1, 2]


def inode(packed_file):
    """Shows whether a file was packed again."""
    return (packed_file.folder / "index.json").stat().st_ino


def test_packed_once_and_found_by_content(file, cache, tmp_path):
    first = pack(file)
    before = inode(first)
    (tmp_path / "copy.fa").write_bytes(file.read_bytes())
    assert pack(tmp_path / "copy.fa").folder == pack(file).folder == first.folder
    assert entries(cache) == [first.folder.name] and inode(first) == before


def test_a_changed_source_is_packed_anew_even_with_the_same_size_and_time(file, cache):
    first = pack(file)
    stat = file.stat()
    file.write_text(file.read_text().replace("TTRT", "TTTT"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert pack(file).folder != first.folder and pack(file).stored.mapped[12] == 10


def settled(path):
    """Wait until a file cannot change again within the resolution of its time stamp."""
    time.sleep(max(0, path.stat().st_mtime + 2.1 - time.time()))
    return path


def test_a_settled_source_is_not_read_again(file, cache):
    assert known_hash(file) is None
    digest = content_hash(settled(file))
    assert known_hash(file) == digest


def damage_bases(folder):
    content = bytearray((folder / "bases").read_bytes())
    content[3] ^= 1
    (folder / "bases").write_bytes(content)


DAMAGE = {
    "a changed base": damage_bases,
    "a truncated file": lambda folder: os.truncate(folder / "bases", 5),
    "a missing file": lambda folder: (folder / "runs.npy").unlink(),
    "no index": lambda folder: (folder / "index.json").unlink(),
    "half an index": lambda folder: os.truncate(folder / "index.json", 50),
    "a changed index": lambda folder: (folder / "index.json").write_text(
        (folder / "index.json").read_text().replace('"name": "', '"name": "x')
    ),
    "another format": lambda folder: (folder / "index.json").write_text(
        json.dumps({"format": 0, "check": ""})
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_cache_is_rebuilt(file, cache, what):
    one = pack(file)
    expected = one.stored.mapped.tolist()
    time.sleep(0.02)
    DAMAGE[what](one.folder)
    again = pack(file)
    assert (
        again.stored.mapped.tolist() == expected
        and again.records[0]["gc"] == 4
        and again.runs.tolist() == [[4, 6], [12, 13]]
    )
    assert entries(cache) == [one.folder.name]


def damage_quietly(path, place):
    """Change a byte without a trace in the time stamp, as a failing disk does."""
    stat = path.stat()
    with path.open("r+b") as raw:
        raw.seek(place)
        byte = raw.read(1)[0]
        raw.seek(place)
        raw.write(bytes([byte ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A genome of 100 chunks of 64 bytes."""
    monkeypatch.setattr(store_cache, "CHUNK", 64)
    (tmp_path / "large.fa").write_text(">a\n" + "ACGT" * 1600 + "\n")
    return tmp_path / "large.fa"


@pytest.mark.parametrize("place", [0, 63, 99 * 64, 100 * 64 - 1, 14 * 64 + 5])
def test_a_quiet_change_of_a_sampled_chunk_is_noticed_at_open(large, cache, place):
    one = pack(large)
    expected = one.stored.mapped.tolist()
    damage_quietly(one.folder / "bases", place)
    assert pack(large).stored.mapped.tolist() == expected


def test_a_quiet_change_of_a_small_file_is_noticed_at_open(file, cache):
    one = pack(file)
    expected, runs = one.stored.mapped.tolist(), one.runs.tolist()
    for name, place in (("bases", 7), ("runs.npy", 130)):
        damage_quietly(one.folder / name, place)
        assert pack(file).stored.mapped.tolist() == expected and pack(file).runs.tolist() == runs


def test_any_quiet_change_is_found_on_demand(large, cache):
    one = pack(large)
    tables = ("runs.npy", "records.npy", "headers")
    assert one.verify() == 6400 + sum((one.folder / name).stat().st_size for name in tables)
    damage_quietly(one.folder / "bases", 50 * 64)
    assert pack(large).stored.mapped[50 * 64] != 7  # not a sampled chunk
    with pytest.raises(
        ValueError,
        match=r"is damaged \(bases was changed between bytes 3,200 and 3,264\): remove this "
        r"folder; it will be recreated",
    ):
        one.verify()


def test_a_file_has_a_checksum_and_one_of_each_megabyte(tmp_path):
    content = np.random.default_rng(0).bytes(3 * CHUNK + 17)
    (tmp_path / "x").write_bytes(content)
    found = checksums(tmp_path / "x")
    assert found["crc"] == zlib.crc32(content) and len(found["chunks"]) == 4
    assert found["chunks"][-1] == zlib.crc32(content[-17:])


def test_a_damaged_note_about_a_source_is_not_believed(file, cache):
    digest = content_hash(settled(file))
    (note,) = cache_dir("sources").glob("*/*.json")
    note.write_text(note.read_text().replace(digest, digest[::-1]))
    assert content_hash(file) == digest


def test_a_copied_cache_is_checked_and_kept(file, cache):
    one = pack(file)
    before = inode(one)
    os.utime(one.folder / "bases")
    assert inode(pack(file)) == before


class Failing(SequenceFormat):
    """A format whose reader meets the error that its file names."""

    starts = (b"FAIL",)

    @classmethod
    def records(cls, path, content):
        yield Header("a")
        yield b"ACGT"
        number = int(content.read().split()[1])
        raise OSError(number, os.strerror(number))


def test_a_full_disk_leaves_no_half_cache(file, cache):
    file.write_text(f"FAIL {errno.ENOSPC}")
    with pytest.raises(
        OSError,
        match=r"the disk is full \(No space left on device; [\d,]+ bytes are free in .*\); free "
        r"some space or set DNADIFF_CACHE",
    ):
        pack(file)
    assert entries(cache) == []


def test_an_error_of_the_device_names_the_cache(file, cache):
    file.write_text(f"FAIL {errno.EIO}")
    with pytest.raises(OSError, match=rf"^{cache}/\w+ could not be written: Input/output error"):
        pack(file)
    assert entries(cache) == []


def test_a_write_that_the_system_refuses_leaves_no_half_cache(tmp_path, cache):
    (tmp_path / "big.fa").write_text(">a\n" + "ACGT" * 200_000 + "\n")
    code = (
        "import resource; from dnadiff.data.genome.packed import pack; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)); "
        f"pack({str(tmp_path / 'big.fa')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "OSError" in done.stderr
        and "files of this process are limited to 400,000 bytes" in done.stderr
        and entries(cache) == []
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 400_000
    assert len(pack(tmp_path / "big.fa").stored.mapped) == 800_000


def test_a_list_of_runs_of_n_that_cannot_be_written_is_an_error(tmp_path, cache):
    # numpy.save lost this error, because the bytes fit into the buffer of the C library: the cache
    # had no runs of N.
    path = tmp_path / "many.fa"
    path.write_text(">a\n" + "AN" * 200 + "\n", encoding="ascii")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="files of this process are limited to 1,000 bytes"):
            pack(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [
        p for p in cache_dir("genomes").glob("*") if p.is_dir() and not p.name.startswith(".")
    ]
    assert pack(path).runs.shape == (200, 2)


def test_a_source_that_is_replaced_while_it_is_hashed_does_not_enter_the_cache(
    file, cache, monkeypatch
):
    old = file.read_bytes()

    def hashed_and_replaced(path):
        digest = content_hash(path)
        path.write_text(">a\nTTTT\n")
        return digest

    monkeypatch.setattr(packed, "content_hash", hashed_and_replaced)
    with pytest.raises(ValueError, match="changed while it was read"):
        pack(file)
    monkeypatch.undo()
    monkeypatch.setenv("DNADIFF_CACHE", str(cache.parent))
    file.write_bytes(old)
    assert pack(file).records.names() == ["a", "b"]


class Changing(SequenceFormat):
    """A format whose files change while they are read."""

    starts = (b"CHANGE",)

    @classmethod
    def records(cls, path, content):
        yield Header("a")
        yield b"ACGT"
        Path(path).write_text(">a\nA\n")


def test_a_source_that_changes_while_it_is_read_is_refused(file, cache):
    file.write_text("CHANGE")
    with pytest.raises(ValueError, match="changed while it was read"):
        pack(file)
    assert entries(cache) == []


def results_of(processes):
    """What they print."""
    assert [process.wait() for process in processes] == [0] * len(processes), [
        process.errors for process in processes
    ]
    return {process.output for process in processes}


def test_several_processes_at_once_make_one_cache(python, tmp_path, cache):
    path = tmp_path / "big.fa"
    path.write_text("".join(f">r{i}\n{'ACGTTGCA' * 5000}\n" for i in range(20)))
    code = (
        f"from dnadiff.data.genome.packed import pack; p = pack({str(path)!r}); "
        "print(p.folder.stat().st_ino, int(p.stored.mapped.sum()))"
    )
    results = results_of([python("-c", code) for _ in range(3)])
    assert len(results) == 1 and "" not in results and len(entries(cache)) == 1


def test_a_killed_process_leaves_nothing_in_the_way(tmp_path, cache):
    path = tmp_path / "g.fa"
    path.write_text(">a\n" + "ACGT" * 1000 + "\n")
    code = (
        "import time; from dnadiff.data.genome import packed; finish = packed.Packer.finish\n"
        "def slow(self): print('half', flush=True); time.sleep(60)\n"
        f"packed.Packer.finish = slow; packed.pack({str(path)!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "half\n"
    (half,) = entries(cache)
    assert half.startswith(".")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (
        len(pack(path).stored.mapped) == 4000
        and [e for e in entries(cache) if e.startswith(".")] == []
    )


def test_a_packed_file_travels_as_its_path(file, cache):
    one = pack(file)
    assert (
        len(pickle.dumps(one)) < 300
        and pickle.loads(pickle.dumps(one)).stored.mapped.tolist() == one.stored.mapped.tolist()
    )
    records = Genome(file).records
    assert (
        len(pickle.dumps(records)) < 1000
        and pickle.loads(pickle.dumps(records))[0].tolist() == records[0].tolist()
    )
    with pytest.raises(ValueError, match="changed"):
        (
            os.truncate(one.folder / "index.json", 0),
            (one.folder / "index.json").write_text('{"format": 1, "check": "x"}'),
        )
        PackedFile(one.folder)


def test_the_cache_folder_is_the_users_choice(tmp_path, monkeypatch):
    monkeypatch.delenv("DNADIFF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir("genomes") == tmp_path / "xdg" / "dnadiff" / "genomes"
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    assert str(cache_dir("genomes")).startswith(str(tmp_path / "tmp"))
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "blocked"))
    with pytest.raises(OSError, match="set DNADIFF_CACHE to a folder you may write"):
        cache_dir("genomes")


class Twice(SequenceFormat):
    """A format whose files another process, with the same number on another machine, packs too."""

    starts = (b"TWICE",)
    inner: ClassVar[list] = []

    @classmethod
    def records(cls, path, content):
        if not cls.inner:
            cls.inner.append(None)
            cls.inner[0] = pack(path)
        yield Header("a")
        yield b"ACGT"


def no_locks(*args):
    raise OSError(errno.ENOLCK, "No locks available")


def test_without_locks_packing_twice_at_once_leaves_one_sound_cache(file, cache, monkeypatch):
    monkeypatch.setattr("fcntl.flock", no_locks)
    Twice.inner = []
    file.write_text("TWICE")
    outer = pack(file)
    (inner,) = Twice.inner
    assert (
        outer.folder == inner.folder
        and outer.stored.mapped.tolist() == inner.stored.mapped.tolist()
    )
    assert entries(cache) == [outer.folder.name]


def test_without_locks_several_processes_make_one_cache(python, tmp_path, cache):
    path = tmp_path / "big.fa"
    path.write_text("".join(f">r{i}\n{'ACGTTGCA' * 5000}\n" for i in range(20)))
    code = (
        "import fcntl\ndef none(*args): raise OSError(37, 'No locks available')\nfcntl.flock = "
        "none\n"
        f"from dnadiff.data.genome.packed import pack; p = pack({str(path)!r}); print(p.folder, "
        "int(p.stored.mapped.sum()))"
    )
    results = results_of([python("-c", code) for _ in range(3)])
    assert len(results) == 1 and "" not in results and len(entries(cache)) == 1


def test_who_comes_second_keeps_the_sound_folder_that_is_there(file, cache):
    folder = pack(file).folder
    inode = folder.stat().st_ino
    (cache / "part").mkdir()
    store_cache.put(cache / "part", folder, packed.FORMAT)
    assert folder.stat().st_ino == inode
    (folder / "index.json").unlink()
    store_cache.put(cache / "part", folder, packed.FORMAT)  # what is unsound gives way
    assert list(folder.iterdir()) == [] and entries(cache) == [folder.name]


def test_only_what_this_machine_left_is_swept_at_once(file, cache):
    folder = pack(file).folder
    for name in (
        f".{folder.name}.{store_cache.HOST}.1",
        f".{folder.name}.elsewhere.1",
        f".{folder.name}.elsewhere.2",
    ):
        (cache / name).mkdir()
    os.utime(cache / f".{folder.name}.elsewhere.1", (1, 1))
    (folder / "index.json").unlink()
    pack(file)
    assert entries(cache) == [f".{folder.name}.elsewhere.2", folder.name]


@pytest.fixture
def shared_place(tmp_path, monkeypatch):
    """No cache of one's own; where temporary files go, and the folder there."""
    monkeypatch.delenv("DNADIFF_CACHE")
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / f"dnadiff-{os.getuid()}"


def test_a_folder_for_temporary_files_is_private(shared_place):
    assert cache_dir("genomes") == shared_place / "genomes" == cache_dir("genomes")
    assert shared_place.stat().st_mode & 0o777 == 0o700
    shared_place.chmod(0o755)  # an older version made it so: nobody else could write
    assert cache_dir("genomes").is_dir() and shared_place.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["a link", "writable by others", "of another user", "a file"])
def test_a_folder_that_others_could_have_filled_is_refused(
    shared_place, tmp_path, what, monkeypatch
):
    if what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        shared_place.symlink_to(tmp_path / "elsewhere")
    elif what == "a file":
        shared_place.write_text("")
    else:
        shared_place.mkdir(mode=0o700)
        shared_place.chmod(0o777 if what == "writable by others" else 0o700)
    if what == "of another user":
        monkeypatch.setattr("os.getuid", lambda: 4242)
        shared_place.rename(shared_place.with_name("dnadiff-4242"))
    with pytest.raises(
        OSError,
        match=r"dnadiff-\d+ is a link, or a folder that others may write to; remove it, or set "
        r"DNADIFF_CACHE",
    ):
        cache_dir("genomes")


def test_the_progress_of_packing_shows_the_bases_of_a_small_file_that_expands(
    tmp_path, monkeypatch, capfd
):
    import gzip

    from dnadiff.progress import Progress

    monkeypatch.setattr(store_cache, "_PATIENCE", 0.0)
    monkeypatch.setattr(store_cache, "Progress", lambda *arguments: Progress(*arguments, every=0.0))
    (tmp_path / "n.fa.gz").write_bytes(gzip.compress(b">n\n" + b"N" * 10_000_000 + b"\n"))
    packed.pack(tmp_path / "n.fa.gz")
    lines = capfd.readouterr().err.splitlines()
    assert any(
        line.startswith("packing n.fa.gz, MB") and "bases 8,388,6" in line for line in lines
    ), lines
