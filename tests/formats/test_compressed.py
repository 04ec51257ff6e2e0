"""Every input is read from any compression, or the compression is named."""

import bz2
import gzip
import lzma

import pyarrow
import pytest

from dnadiff.data.genome.genome import Genome
from dnadiff.formats.regions import read_bed
from dnadiff.formats.sequences import read_sequences

FASTA = b">a first\nACGTNacgt\n>b\nTTGA\n"
PACKED = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("ending", PACKED)
def test_sequences_and_regions_are_read_from_any_compression(tmp_path, ending):
    (tmp_path / "x.fa").write_bytes(FASTA)
    packed, bed = tmp_path / f"x.fa.{ending}", tmp_path / f"x.bed.{ending}"
    packed.write_bytes(PACKED[ending](FASTA))
    bed.write_bytes(PACKED[ending](b"a\t1\t3\n"))
    assert read_sequences(packed) == read_sequences(tmp_path / "x.fa")
    genome = Genome.open(packed)
    assert genome.lengths == {"a": 9, "b": 4}
    assert [tuple(region[:3]) for region in read_bed(bed, genome.lengths)] == [("a", 1, 3)]


@pytest.mark.parametrize("ending", PACKED)
def test_damage_to_a_compressed_file_is_named(tmp_path, ending):
    content = PACKED[ending](FASTA * 1 + b">c\n" + b"ACGGT" * 1000 + b"\n")
    path = tmp_path / "x.fa"
    for wrong in (content[:-9], content[: len(content) // 2] + b"\0" * 8 + content[-30:]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"x\.fa is damaged or cut short"):
            read_sequences(path)


@pytest.mark.parametrize(
    ("start", "name"), [(b"PK\3\4", "zip"), (b"\x1f\x9d", "compress"), (b"\4\x22\x4d\x18", "lz4")]
)
def test_another_compression_is_refused_by_name(tmp_path, start, name):
    (tmp_path / "x.fa").write_bytes(start + bytes(40))
    with pytest.raises(ValueError, match=f"x.fa is compressed by {name}, which is not read; dec"):
        read_sequences(tmp_path / "x.fa")
