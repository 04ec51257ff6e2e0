"""A share of the fuzzer's inputs; that it finds bad readers; that it resumes."""

import os
import signal
import sys
import time

import fuzz
import mutations
import pytest
import readers

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


def strict(path):
    """A reader without faults."""
    try:
        rows = rows_of(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; correct it") from None
    if rows[-1:] != (["end"],):
        raise ValueError(f"{path} is cut short; correct it")
    return rows


def lenient(path):
    """Ignores that the end is missing."""
    try:
        return tuple(row for row in rows_of(path) if len(row) == 2)
    except UnicodeDecodeError:
        raise ValueError("t.tsv is not text; correct it") from None


def raising(path):
    """Meets what is not in its table."""
    names = {row[0]: row for row in strict(path)}
    return tuple([names[str(n)] for n in range(20)] + [names["end"]])


def hanging(path):
    if len(path.read_bytes()) != len(CONTENT):
        time.sleep(60)
    return strict(path)


def greedy(path):
    if len(path.read_bytes()) != len(CONTENT):
        bytearray(b"x") * (1 << 30)  # more than the files that a fork does not map
    return strict(path)


def dying(path):
    if len(path.read_bytes()) != len(CONTENT):
        os.kill(os.getpid(), signal.SIGKILL)
    return strict(path)


def saying(text):
    def read(path):
        try:
            return strict(path)
        except ValueError:
            raise ValueError(text) from None

    return read


def expected(path):
    try:
        rows = rows_of(path)
    except UnicodeDecodeError:
        raise fuzz.InvalidError("not text") from None
    if rows[-1:] != (["end"],):
        raise fuzz.InvalidError("cut short")
    return rows


def outcomes(read, tmp_path, monkeypatch, count=60, kind=mutations.TABLE):
    toy = readers.reader("toy", "t.tsv", CONTENT, kind, read, expected)
    fuzzer = fuzz.Fuzzer(tmp_path / "fuzz", 0)
    monkeypatch.chdir(tmp_path / "fuzz")
    fuzzer.prepare([toy])
    fuzzer.run(toy, count)
    return fuzzer


def cut(draw, data):
    return data[: draw.randrange(len(data) - 5)]


@linux
def test_a_strict_reader_passes_and_a_stopped_fuzzer_resumes(tmp_path, monkeypatch):
    first = outcomes(strict, tmp_path, monkeypatch)
    kinds = [row["kind"] for row in first.done]
    assert "wrong" not in kinds and min(map(kinds.count, ("read", "refused"))) > 5, first.done
    lines = first.log.read_text().splitlines(keepends=True)
    first.log.write_text("".join(lines[:20]) + lines[20][:9])
    second = outcomes(strict, tmp_path, monkeypatch)
    assert len(second.done) == 60
    assert [row["mutation"] for row in second.done] == [row["mutation"] for row in first.done]
    assert f"| {kinds.count('refused')} | 0 | 0." in second.table()


@linux
@pytest.mark.parametrize(
    ("read", "mutation", "message"),
    [
        (lenient, cut, "is accepted, but is damaged (cut short)"),
        (raising, mutations.edit_lines, "raises KeyError: "),
        (saying("the file is damaged; correct it"), cut, "an error without the name of the file"),
        (saying("t.tsv is damaged"), cut, "does not say what to do"),
        (saying("t.tsv: 'int' has no attribute x; fetch it again"), cut, "an error of a library"),
        (dying, cut, "ends the process with status -9"),
        (hanging, cut, "hangs: more than 2.4 s"),
        (greedy, cut, "takes "),  # or what it takes is refused: it depends on the libraries
    ],
)
def test_bad_readers_are_found(read, mutation, message, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.2 if read is hanging else 10)
    if read is greedy:
        monkeypatch.setattr(fuzz, "MEMORY", fuzz.memory("VmRSS") + (96 << 20))
    count = 1 if read is hanging else 10
    fuzzer = outcomes(read, tmp_path, monkeypatch, count, [mutation])
    found = (message, "raises MemoryError") if read is greedy else (message,)
    reasons = [row["why"] for row in fuzzer.done if row["kind"] == "wrong"]
    assert any(each in why for each in found for why in reasons), fuzzer.done
    assert list((tmp_path / "fuzz" / "wrong").glob("toy-*-t.tsv"))


def test_formats_read_the_undamaged_files_as_the_readers_do(tmp_path, monkeypatch):
    """The rules of the fuzzer agree with the readers before any damage."""
    monkeypatch.chdir(tmp_path)
    for reader in (*readers.GENOMES, *readers.TASKS, *readers.TEXTS):
        folder = tmp_path / fuzz.slug(reader)
        if reader.expected in (readers.nothing, readers.anything):
            continue
        reader.make(folder)
        path = next(path for pattern in reader.files for path in sorted(folder.glob(pattern)))
        assert reader.expected(folder, path) == reader.read(folder, path), reader.name


@linux
def test_inputs_of_every_format_pass(python, tmp_path):
    """Three inputs of each reader that needs no trained run; 10,000 take half an hour."""
    names = [each.name for each in readers.READERS.values() if each not in readers.MODELS]
    chosen = [f"--reader={name}" for name in names if name != "BCF"]
    arguments = (f"--count={3 * len(chosen)}", f"--folder={tmp_path / 'fuzz'}")
    process = python(fuzz.__file__, *arguments, *chosen)
    assert process.wait() == 0, process.output + process.errors
    assert f"| all | {3 * len(chosen)} |" in process.output
