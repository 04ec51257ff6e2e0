"""Files that are written batch by batch and can be resumed."""

import errno
import gzip
import json
import resource

import pytest

from dnadiff.jobs.journal import ResumableOutput, discard, temporary_path
from dnadiff.store.disk import hash_file

BATCHES = [b"one\n" * 20, b"two\n", b"three\n" * 50]


def write(path, batches, **how):
    stream = ResumableOutput(path, {"seed": 1, "of": "x"}, **how)
    for number, content in enumerate(batches, stream.done + 1):
        stream.append(content, 1, number=number)
    return stream


@pytest.mark.parametrize("name", ["a.fa", "a.fa.gz"])
def test_a_stopped_file_resumes_to_the_same_bytes(name, tmp_path):
    whole = write(tmp_path / name, BATCHES)
    whole.finish()
    discard(whole.output)
    stopped = write(tmp_path / f"b{name}", BATCHES[:1])
    stopped.close()
    with temporary_path(tmp_path / f"b{name}", "part").open("ab") as file:
        file.write(b"half a batch that no journal")  # the process died while it wrote
    assert not (tmp_path / f"b{name}").exists()
    resumed = ResumableOutput(tmp_path / f"b{name}", {"of": "x", "seed": 1}, resume=True)
    assert resumed.done == 1 and resumed.notes == {"number": 1}
    for content in BATCHES[1:]:
        resumed.append(content, 1)
    resumed.finish()
    discard(resumed.output)
    assert (tmp_path / name).read_bytes() == (tmp_path / f"b{name}").read_bytes()
    text = (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "rb").read()
    assert text == b"".join(BATCHES) and sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [name, f"b{name}"]
    )


def test_a_process_that_dies_before_it_removes_the_journal_can_resume(tmp_path):
    write(tmp_path / "a", BATCHES).finish()
    again = ResumableOutput(tmp_path / "a", {"seed": 1, "of": "x"}, resume=True)
    assert again.complete and again.done == 3
    again.finish()
    assert (tmp_path / "a").read_bytes() == b"".join(BATCHES)


@pytest.mark.parametrize("is_complete", [False, True])
def test_bytes_after_the_journal_are_cut_also_when_every_item_is_done(tmp_path, is_complete):
    for name, batches in (("o.tsv", BATCHES[:1]), ("o.tsv.gz", BATCHES), ("empty.tsv", [])):
        stream = write(tmp_path / name, batches)
        if not batches:
            stream.append(b"", 0)  # as a job without items
        stream.complete = is_complete
        stream._write_journal()
        stream.close()  # killed before it gets its name
        with stream.part.open("ab") as file:
            file.write(b"GARBAGE\n")
        again = ResumableOutput(tmp_path / name, {"seed": 1, "of": "x"}, resume=True)
        seen = []
        again.finish(lambda path, seen=seen: seen.append(path.stat().st_size))
        assert seen == [again.bytes] and again.journal.exists()
        again.finish()
        content = (gzip.open if name.endswith("z") else open)(tmp_path / name, "rb").read()
        assert content == b"".join(batches)


def test_an_unfinished_file_is_neither_lost_nor_mixed(tmp_path):
    write(tmp_path / "a", BATCHES[:2]).close()
    with pytest.raises(
        FileExistsError,
        match=r"a is unfinished \(2 items\); set resume=true .* or overwrite=true",
    ):
        ResumableOutput(tmp_path / "a", {"seed": 1, "of": "x"})
    with pytest.raises(ValueError, match=r"was started with seed=1, not 2; resume with the same"):
        ResumableOutput(tmp_path / "a", {"seed": 2, "of": "x"}, resume=True)
    (short := temporary_path(tmp_path / "a", "part")).write_bytes(b"on")
    with pytest.raises(ValueError, match=r"missing or shorter than its journal requires"):
        ResumableOutput(tmp_path / "a", {"seed": 1, "of": "x"}, resume=True)
    restarted = ResumableOutput(tmp_path / "a", {"seed": 2, "of": "x"}, overwrite=True)
    restarted.append(b"new", 1)
    assert restarted.done == 1 and short.read_bytes() == b"new"
    temporary_path(tmp_path / "a", "journal").write_text("{")
    with pytest.raises(
        ValueError, match=r"journal is not JSON .*; start over: overwrite=true, without resume"
    ):
        ResumableOutput(tmp_path / "a", {"seed": 2, "of": "x"}, resume=True)


def test_two_processes_do_not_write_one_file(tmp_path):
    first = write(tmp_path / "a", BATCHES[:1])
    second = ResumableOutput(tmp_path / "a", {"seed": 1, "of": "x"}, overwrite=True)
    with pytest.raises(ValueError, match="is being written by another process"):
        second.append(b"x", 1)
    first.close()


def test_an_existing_file_is_not_replaced(tmp_path):
    (tmp_path / "a").write_text("mine")
    for resume in (False, True):
        with pytest.raises(FileExistsError, match="set overwrite=true"):
            ResumableOutput(tmp_path / "a", {}, resume=resume)
    write(tmp_path / "a", BATCHES[:1], overwrite=True)
    assert (tmp_path / "a").read_text() == "mine"  # until the new one is complete
    assert json.loads(temporary_path(tmp_path / "a", "journal").read_text())["done"] == 1
    assert hash_file(tmp_path / "a")[:8] == "9c3a05ba" or len(hash_file(tmp_path / "a")) == 64


def test_a_full_disk_loses_only_the_current_batch(tmp_path, monkeypatch):
    write(tmp_path / "whole", BATCHES).finish()
    stream = write(tmp_path / "a", BATCHES[:1])

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            stream.append(BATCHES[1], 1)
    stream.close()
    assert (
        not (tmp_path / "a").exists()
        and temporary_path(tmp_path / "a", "part").stat().st_size > stream.bytes
    )
    write(tmp_path / "a", BATCHES[1:], resume=True).finish()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "whole").read_bytes()


def unfinished(path):
    output = ResumableOutput(path, {"seed": 1})
    output.append(b"ACGT\n" * 20, 2, calls=3)
    output.append(b"GGGG\n" * 20, 2, calls=6)
    output.close()


@pytest.mark.parametrize("name", ["a.fa", "a.fa.gz"])
def test_damaged_batches_are_not_continued(name, tmp_path):
    unfinished(tmp_path / name)
    part = temporary_path(tmp_path / name, "part")
    content = part.read_bytes()
    for place in (0, len(content) // 2, len(content) - 1):
        part.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(
            ValueError,
            match=r"part is damaged \(its checksum differs\); start over: overwrite=true",
        ):
            ResumableOutput(tmp_path / name, {"seed": 1}, resume=True)
    part.write_bytes(content + b"more")  # of a process that was killed before it wrote the journal
    assert ResumableOutput(tmp_path / name, {"seed": 1}, resume=True).done == 4


def test_a_journal_with_other_values_is_not_trusted(tmp_path):
    unfinished(tmp_path / "a.fa")
    path = temporary_path(tmp_path / "a.fa", "journal")
    content = json.loads(path.read_text())
    for changed in (
        {"done": 5},
        {"bytes": 100, "crc": 0},
        {"notes": None},
        {"more": 1},
        {"check": "x"},
    ):
        path.write_text(json.dumps(content | changed))
        with pytest.raises(ValueError, match=r"journal .*; start over"):
            ResumableOutput(tmp_path / "a.fa", {"seed": 1}, resume=True)
    for text in (
        "[]",
        "[" * 100_000,
        json.dumps({key: value for key, value in content.items() if key != "check"}),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"journal .*; start over"):
            ResumableOutput(tmp_path / "a.fa", {"seed": 1}, resume=True)


def test_an_error_of_a_batch_names_its_file_also_when_the_output_is_closed(tmp_path):
    output = ResumableOutput(tmp_path / "x.fa", {"seed": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(
            OSError,
            match=r"\.x\.fa\.part could not be written: it needs 9 bytes, and files of this "
            r"process are limited to 0",
        ):
            output.append(b">a\nACGT\n\n", 1)
        output.close()  # has nothing left to write
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
