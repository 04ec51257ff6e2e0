"""Every input is read from any compression, or the compression is named."""

import bz2
import gzip
import importlib.util
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import pytest

from dnadiff.data.genome.genome import Genome
from dnadiff.design.reward import read_jaspar
from dnadiff.formats.documents import read_documents
from dnadiff.formats.regions import open_source, read_bed, read_gtf
from dnadiff.formats.sequences import read_sequences
from dnadiff.formats.table import read_rows

made = importlib.util.module_from_spec(
    spec := importlib.util.spec_from_file_location(
        "made", Path(__file__).parents[1] / "data" / "genome" / "formats.py"
    )
)
spec.loader.exec_module(made)
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
    genome = Genome(packed)
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


VCF = b"##fileformat=VCFv4.2\n##contig=<ID=a>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
JASPAR = b">M one\nA [ 3 ]\nC [ 1 ]\nG [ 0 ]\nT [ 0 ]\n"
READERS = {
    "fa": (FASTA, read_sequences),
    "2bit": (made.twobit({"a": "ACGT"}), lambda path: Genome(path).lengths),
    "gb": (made.genbank({"a": "acgt"}), lambda path: Genome(path).lengths),
    "vcf": (VCF + b"a\t1\t.\tA\tC\t.\t.\t.\n", lambda path: [*open_source(path)]),
    "bed": (b"a\t1\t3\n", read_bed),
    "gff3": (b"a\t.\tCDS\t1\t3\t.\t+\t0\n", read_gtf),
    "csv": (b"sequence,label\nACGT,1\n", lambda path: [*read_rows(str(path), {"x": "label"})]),
    "jsonl": (b'{"text": "a"}\n', lambda path: [*read_documents(str(path), "file", ["text"], 0)]),
    "txt": (b"a\n", lambda path: [*read_documents(str(path), "file", ["text"], 0)]),
    "jaspar": (JASPAR, lambda path: read_jaspar(path).tolist()),
}


@pytest.mark.parametrize("kind", READERS)
def test_every_reader_reads_any_compression_and_names_archives(tmp_path, kind):
    content, read = READERS[kind]
    (tmp_path / f"x.{kind}").write_bytes(content)
    expected = read(tmp_path / f"x.{kind}")
    for ending, pack in PACKED.items():
        path = tmp_path / f"x.{kind}.{ending}"
        path.write_bytes(pack(content))
        found = str(read(path)).replace(f".{kind}.{ending}", f".{kind}")
        assert found == str(expected) and expected
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x", content)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        archive.add(tmp_path / f"x.{kind}", "x")
    for name, archive in (("zip", packed), ("tar", tar)):
        (tmp_path / f"x.{kind}").write_bytes(archive.getvalue())
        with pytest.raises(ValueError, match=rf"x\.{kind} is packed by {name}.*; unpack it"):
            read(tmp_path / f"x.{kind}")


@pytest.mark.parametrize(
    ("start", "name"), [(b"PK\3\4", "zip"), (b"\x1f\x9d", "compress"), (b"\4\x22\x4d\x18", "lz4")]
)
def test_another_compression_is_refused_by_name(tmp_path, start, name):
    (tmp_path / "x.fa").write_bytes(start + bytes(40))
    with pytest.raises(ValueError, match=f"x.fa is packed by {name}, which is not read; unpack"):
        read_sequences(tmp_path / "x.fa")


@pytest.mark.parametrize("kind", ["vcf", "bed", "gff3", "csv", "jsonl", "txt", "jaspar"])
def test_text_of_another_encoding_is_refused_with_its_line(tmp_path, kind):
    content, read = READERS[kind]
    (tmp_path / f"x.{kind}").write_bytes(content + b"Proven\xe7al\n")
    line = content.count(b"\n") + 1
    with pytest.raises(ValueError, match=rf"x\.{kind}: line {line}: byte 7 \(0xe7\) is not UTF-8"):
        read(tmp_path / f"x.{kind}")


ENDLESS = {
    "x.bed": b"chr1\t1\t",
    "x.gff": b"chr1\tx\tgene\t1\t",
    "x.vcf": b"##fileformat=VCFv4.2\n##contig=<ID=chr1,x=",
    "x.csv": b"sequence,label\n",
    "x.jsonl": b'{"text": "',
    "x.gb": b"LOCUS x",
    "x.fa": b">a",
    "x.jaspar": b">a\nA [ 1",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_line_without_an_end_is_not_read_whole(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(ENDLESS[name]) + gzip.compress(b"1" * (1 << 22)) * 17)
    readers = {
        "x.bed": read_bed,
        "x.gff": read_gtf,
        "x.vcf": open_source,
        "x.csv": lambda path: list(read_rows(path, {"sequence_column": "sequence"})),
        "x.jsonl": lambda path: list(read_documents(path, "line", ["text"], False)),
        "x.jaspar": read_jaspar,
    }
    with pytest.raises(ValueError, match=rf"{name}.* more than [\d,]+ (characters|bytes)"):
        readers.get(name, read_sequences)(str(path))
