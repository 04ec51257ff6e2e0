"""A format of sequences in one class is read wherever sequences are."""

import pytest
from typing_extensions import override

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.genome.inputs import open_input
from dnadiff.formats.sequences import Header, SequenceFormat, read_sequences


class Pairs(SequenceFormat):
    """A name and its sequence in each line, after a line that names the format."""

    endings = (".pairs",)
    starts = (b"#pairs\n",)

    @classmethod
    @override
    def records(cls, path, content):
        for number, line in enumerate(content, 1):
            if number > 1:
                name, letters = line.split()
                yield Header(name.decode(), line=number)
                yield letters


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.pairs").write_text(f"#pairs\na {'ACGT' * 40}\nb {'ttga' * 40}\n")
    return tmp_path / "in"


def test_it_is_read_by_every_input(folder):
    path = str(folder / "x.pairs")
    assert [record.name for record in read_sequences(path)] == ["a", "b"]
    assert open_input(path, None, None, None).lengths == [160, 160]
    assert open_input(None, path, "a:1-8", None).lengths == [8]
    data = GenomeDataModule(str(folder), length=8, batch_size=2)  # finds it by its ending
    assert data.names == ["a", "b"] and next(iter(data.train_dataloader()))["ids"].shape == (2, 8)


def test_its_records_are_checked(folder):
    path = folder / "x.pairs"
    for line, message in (
        ("a ACGT", "line 3: record a has the name of an earlier record"),
        ("b AC-T", "line 3: record b: letter '-' at position 3 is not a nucleotide"),
    ):
        path.write_text(f"#pairs\na ACGT\n{line}\n")
        with pytest.raises(ValueError, match=message):
            read_sequences(path)
