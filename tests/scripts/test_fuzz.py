"""A share of the fuzzer's inputs; that it finds bad readers; that every command has readers."""

import json
import os
import signal
import sys
import time

import fuzz
import mutations
import pytest
import readers

from dnadiff.options.command import command_names

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="the fuzzer reads the memory of a process from /proc",
)
CONTENT = b"".join(b"%d\tACGT\n" % n for n in range(20)) + b"end\n"


@pytest.fixture(autouse=True)
def cache_of_other_tests(monkeypatch, cache_folder):
    """Bring back the folder of the cache, which the fuzzer changes for its process."""
    monkeypatch.setenv("DNADIFF_CACHE", str(cache_folder))


def rows_of(path):
    return tuple(line.split("\t") for line in path.read_text().splitlines())


def strict(folder):
    """A reader without faults."""
    path = folder / "t.tsv"
    try:
        rows = rows_of(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text") from None
    if rows[-1:] != (["end"],):
        raise ValueError(f"{path} is cut short")
    return rows


def lenient(folder):
    """Ignores that the end is missing."""
    try:
        return tuple(row for row in rows_of(folder / "t.tsv") if len(row) == 2)
    except UnicodeDecodeError:
        raise ValueError("t.tsv is not text") from None


def raising(folder):
    """Meets what is not in its table."""
    names = {row[0]: row for row in strict(folder)}
    return tuple([names[str(n)] for n in range(20)] + [names["end"]])


def hanging(folder):
    if len((folder / "t.tsv").read_bytes()) != len(CONTENT):
        time.sleep(60)
    return strict(folder)


def greedy(folder):
    if len((folder / "t.tsv").read_bytes()) != len(CONTENT):
        bytearray(b"x") * (512 << 20)
    return strict(folder)


def dying(folder):
    if len((folder / "t.tsv").read_bytes()) != len(CONTENT):
        os.kill(os.getpid(), signal.SIGKILL)
    return strict(folder)


def nameless(folder):
    try:
        return strict(folder)
    except ValueError:
        raise ValueError("the file is damaged") from None


def expected(folder, name):
    try:
        rows = rows_of(folder / name)
    except UnicodeDecodeError:
        raise fuzz.InvalidError("not text") from None
    if rows[-1:] != (["end"],):
        raise fuzz.InvalidError("cut short")
    return rows


def outcomes(read, tmp_path, count=60, mutation=None):
    kinds = {"t.tsv": mutations.TABLE if mutation is None else [mutation]}
    toy = readers.Reader(
        "toy", lambda folder: readers._write(folder / "t.tsv", CONTENT), kinds, read, expected
    )
    return next(iter(fuzz.run([toy], count, 0, tmp_path / "fuzz")))


@linux
def test_a_strict_reader_passes(tmp_path):
    row = outcomes(strict, tmp_path)
    assert not row.wrong and row.counts["success"] > 5 and row.counts["refused"] > 5, row


@linux
@pytest.mark.parametrize(
    ("read", "mutation", "message"),
    [
        (lenient, mutations.cut, "is accepted, but is damaged (cut short)"),
        (raising, mutations.drop_line, "raises KeyError: "),
        (nameless, mutations.cut, "an error without the name of the file"),
        (dying, mutations.remove_block, "ends the process with status -9"),
        (hanging, mutations.remove_block, "hangs: more than 0.2 s"),
        (greedy, mutations.remove_block, "takes "),
    ],
)
def test_bad_readers_are_found(read, mutation, message, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.2 if read is hanging else 10)
    if read is greedy:
        monkeypatch.setattr(fuzz, "MEMORY", fuzz.memory("VmRSS") + (96 << 20))
    row = outcomes(read, tmp_path, 10, mutation)
    assert message in row.wrong, row
    assert [path.name for path in (tmp_path / "fuzz" / "wrong").iterdir()] == ["toy-t.tsv"]


def test_formats_read_the_undamaged_files_as_the_readers_do(tmp_path):
    """The rules of the fuzzer agree with the readers before any damage."""
    for name, reader in readers.READERS.items():
        if (
            reader.expected in (readers.nothing, readers.anything)
            or reader in readers.STORED
            or reader in readers.PUBLISHED
        ):
            continue
        folder = tmp_path / name
        reader.make(folder)
        file = next(
            str(path.relative_to(folder))
            for pattern in reader.files
            for path in sorted(folder.glob(pattern))
        )
        assert reader.expected(folder, file) == reader.read(folder), name


def test_every_command_has_readers_and_every_input_too():
    assert {name for name in command_names() if not readers.readers_of(name)} == set()
    assert readers.unread_inputs() == []


@linux
def test_inputs_of_every_format_pass(python, tmp_path):
    """One reader of each format; all readers and 10,000 inputs take a quarter of an hour."""
    formats = (
        "fasta",
        "genome bgzip",
        "genome 2bit",
        "genome genbank",
        "bed",
        "gff3.gz",
        "labels csv",
        "labels parquet",
        "text jsonl",
    )
    names = [
        *formats,
        "tokenizer.json",
        "genome cache",
        "token cache",
        "sample journal",
        "predictions",
        "results.csv",
    ]
    command = [
        fuzz.__file__,
        "--count=60",
        f"--folder={tmp_path / 'fuzz'}",
        f"--json={tmp_path / 'found.json'}",
    ]
    process = python(*command, *(f"--reader={name}" for name in names))
    assert process.wait() == 0, process.output + process.errors
    found = json.loads((tmp_path / "found.json").read_text())["readers"]
    assert [row["reader"] for row in found] == names and sum(
        sum(row["counts"].values()) for row in found
    ) > 50
