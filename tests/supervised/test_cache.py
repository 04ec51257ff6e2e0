import os
import time
from pathlib import Path

import numpy as np
import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.store.cache import cache_dir
from dnadiff.supervised.tasks import CsvTask

DNA = DNATokenizer()


class Counted(CsvTask):
    reads = 0

    def read(self, tokenizer):
        type(self).reads += 1
        return super().read(tokenizer)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(Counted, "reads", 0)
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "t.csv", "ACGTN")


def write(path: Path, letters: str) -> Path:
    draws = np.random.default_rng(0)
    rows = [f"{''.join(draws.choice(list(letters), 5 + i % 4))},{'ba'[i % 2]}" for i in range(40)]
    path.write_text("\n".join(["sequence,label", *rows]) + "\n")
    old = time.time() - 60
    os.utime(path, (old, old))
    return path


def same(one, other) -> bool:
    pairs = [(getattr(one, part), getattr(other, part)) for part in ("train", "valid", "test")]
    return one.classes == other.classes and all(
        a.ids.equal(b.ids) and a.labels.equal(b.labels) and a.lengths.equal(b.lengths)
        for a, b in pairs
    )


def advance_clock(monkeypatch):
    """A new file has just changed: set the clock of the cache one minute ahead."""
    now = time.time
    monkeypatch.setattr("dnadiff.supervised.labeled.time.time", lambda: now() + 60)


def test_a_task_is_read_once_and_again_if_a_file_changes(table, monkeypatch):
    advance_clock(monkeypatch)
    first = Counted(str(table)).load(DNA)
    again = Counted(str(table), seed=0).load(DNA)
    assert Counted.reads == 1 and same(first, again) and first.notes == again.notes
    (kept,) = cache_dir("tasks").iterdir()
    with np.load(kept) as content:
        assert content["ids"].dtype == np.uint8 and len(content["ids"]) == sum(
            5 + i % 4 for i in range(40)
        )
    Counted(str(table), seed=1, test_fraction=0.3).load(DNA)  # another division of the same reading
    assert Counted.reads == 1
    Counted(str(table), sequence_column="label", label_column="sequence").sources()
    write(table, "AC")
    assert not same(Counted(str(table)).load(DNA), first) and Counted.reads == 2


def test_other_reader_settings_have_another_cache_entry(table, monkeypatch):
    advance_clock(monkeypatch)
    table.write_text(
        table.read_text()
        .replace("sequence,label", "sequence,label,other")
        .replace("\n", ",x\n")
        .replace("other,x", "other")
    )
    Counted(str(table)).load(DNA)
    with pytest.raises(ValueError, match="one class, 'x'"):
        Counted(str(table), label_column="other").load(DNA)
    assert Counted.reads == 2


def test_a_recently_changed_file_is_not_cached_and_a_damaged_entry_is_read_again(
    table, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(
            "dnadiff.supervised.labeled.time.time", lambda: table.stat().st_ctime + 1.9
        )  # however slow this machine is
        Counted(str(table)).load(DNA)
    assert not list(cache_dir("tasks").iterdir())
    advance_clock(monkeypatch)
    first = Counted(str(table)).load(DNA)
    (kept,) = cache_dir("tasks").iterdir()
    content = bytearray(kept.read_bytes())
    content[content.index(b"ids.npy") + 200] ^= (
        255  # a token, not a field of the archive that nothing reads
    )
    kept.write_bytes(content)
    assert same(Counted(str(table)).load(DNA), first) and Counted.reads == 3
    kept.write_bytes(bytes(content[:100]))
    assert same(Counted(str(table)).load(DNA), first) and Counted.reads == 4
