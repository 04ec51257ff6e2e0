"""Tables of records: what is counted of each, and what does not fit is refused."""

import io

import numpy as np
import pytest

from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.packed import NUMBERS, Packer, RecordTable, pack
from dnadiff.data.splits import ChromosomeSplit, DefaultSplit
from dnadiff.formats.sequences import Header

ROW = {
    "name": "a",
    "description": "b c",
    "length": 4,
    "unknown": 1,
    "gc": 2,
    "soft": 3,
    "ambiguous": [1, 1],
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))


def text_of(draw, count):
    """Records of letters of either case, with N and ambiguity codes, also at their borders."""
    letters = np.array(list("ACGTacgtNNNNnRy"))
    return [
        (
            f"r{i}",
            f"d {i}" if i % 2 else "",
            "".join(letters[draw.integers(0, 15, draw.integers(1, 30))]),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("piece", [3, 64, 1 << 22])
def test_many_records_are_counted_as_one_by_one(piece):
    records, file = text_of(np.random.default_rng(piece), 60), io.BytesIO()
    packer = Packer(file, piece)
    for name, about, text in records:
        packer.take(Header(name, about))
        packer.take(text.encode())
    packer.finish()
    table = packer.records()
    assert table.names() == [name for name, _, _ in records]
    runs, start = [], 0
    for row, (name, about, text) in zip(table, records):
        upper = text.upper()
        ambiguous = [place for place, letter in enumerate(upper) if letter in "RY"]
        assert row == {
            "name": name,
            "description": about,
            "length": len(text),
            "unknown": sum(letter in "NRY" for letter in upper),
            "gc": sum(letter in "GC" for letter in upper),
            "soft": sum(letter.islower() for letter in text),
            "ambiguous": [len(ambiguous), ambiguous[0] if ambiguous else 0],
        }
        is_n = np.array([False, *(letter in "NRY" for letter in upper), False])
        edges = np.flatnonzero(is_n[1:] != is_n[:-1])
        runs += (edges.reshape(-1, 2) + start).tolist()
        start += len(text)
    assert packer.runs().tolist() == runs and len(file.getvalue()) == start


def test_thousands_of_records_have_a_table_of_their_own(tmp_path):
    records = text_of(np.random.default_rng(0), 5000)
    (tmp_path / "g.fa").write_text(
        "".join(f">{name} {about}\n{text}\n" for name, about, text in records)
    )
    one = pack(tmp_path / "g.fa")
    assert (one.folder / NUMBERS).is_file() and one.verify() > one.offsets[-1]
    assert one.records.names() == [name for name, _, _ in records]
    assert one.records[59]["length"] == len(records[59][2])
    assert Genome(tmp_path / "g.fa").row(59) == {
        **one.records[59],
        "label": None,
        "file": str(tmp_path / "g.fa"),
    }


def test_rows_come_back_and_a_table_that_does_not_fit_is_refused(tmp_path):
    packer = Packer(io.BytesIO())
    for event in (Header("a", "b c"), b"gRca", Header("ä"), b"gRca"):
        packer.take(event)
    packer.finish()
    rows = [ROW, {**ROW, "name": "ä", "description": ""}]
    table = packer.records()
    assert [*map(table.__getitem__, (0, 1))] == rows and table.names() == ["a", "ä"]
    for name, content in table.files().items():
        (tmp_path / name).write_bytes(content)
    read = RecordTable.read(tmp_path, 8)
    assert len(read) == 2 and [read[0], read[1]] == rows
    with pytest.raises(
        ValueError, match="its table of records does not fit its bases; remove this folder"
    ):
        RecordTable.read(tmp_path, 9)


def test_a_description_does_not_list_thousands_of_records():
    names = [f"r{number}" for number in range(1000)]
    split = DefaultSplit()
    parts = split(names, [100] * 1000)
    assert [len(parts[part]) for part in ("train", "valid", "test")] == [900, 50, 50]
    assert split.describe().endswith(" and 30 more)") and len(split.describe()) < 400
    assert ChromosomeSplit(["a"], ["b", "c"]).describe() == "chromosomes (valid a; test b, c)"
