"""Every format gives the same genome; malformed files are named with line and remedy."""

import gzip
import importlib.util
import struct
from pathlib import Path

import numpy as np
import pyfaidx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff.data.genome.genome import Genome, expand
from dnadiff.formats.sequences import events_of, read_sequences

formats = importlib.util.module_from_spec(
    spec := importlib.util.spec_from_file_location(
        "formats", Path(__file__).with_name("formats.py")
    )
)
spec.loader.exec_module(formats)
SMALL = {"a": "ACGTNNacgtnn", "b": "TTTTg"}


def letters(genome):
    """{name: letters} with soft-masking in lower case."""
    found = {}
    for name, length in genome.lengths.items():
        upper, soft = (
            genome.tokenizer.decode(genome.window(name, 0, length)),
            genome.soft_masked(name, 0, length),
        )
        found[name] = "".join(c.lower() if s else c for c, s in zip(upper, soft))
    return found


def write(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


record_sets = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9._|-]{1,8}", fullmatch=True),
    st.text("ACGTNacgtn", min_size=1, max_size=150),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(
    records=record_sets,
    width=st.integers(1, 90),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    blank=st.booleans(),
    final_newline=st.booleans(),
    packing=st.sampled_from(sorted(formats.COMPRESSED)),
)
def test_fasta_of_any_layout_comes_back(
    tmp_path_factory, records, width, newline, blank, final_newline, packing
):
    content = formats.fasta(records, width, newline, blank, final_newline)
    file = write(tmp_path_factory.mktemp("f"), "x.fa", formats.COMPRESSED[packing](content))
    genome = Genome(file)
    assert letters(genome) == records
    for row in genome.rows:
        text = records[row["name"]]
        assert (row["length"], row["unknown"]) == (len(text), text.upper().count("N"))
        assert (row["gc"], row["soft"]) == (
            sum(c in "GCgc" for c in text),
            sum(c.islower() for c in text),
        )
    runs = genome.n_runs
    marked = np.array([c in "Nn" for text in records.values() for c in text])
    assert [runs.before(np.array([i]))[0] for i in range(len(marked) + 1)] == [
        0,
        *np.cumsum(marked),
    ]


@settings(max_examples=25, deadline=None)
@given(records=record_sets, order=st.sampled_from("<>"), version=st.integers(0, 1))
def test_twobit_comes_back(tmp_path_factory, records, order, version):
    file = write(tmp_path_factory.mktemp("f"), "x.2bit", formats.twobit(records, order, version))
    assert letters(Genome(file)) == records


def test_a_twobit_of_several_chunks_comes_back(tmp_path):
    records = {"one": "ACGTNacgt" * 40_000, "two": "NNNN", "three": "A" * 31}
    genome = Genome(write(tmp_path, "x.2bit", formats.twobit(records)))
    assert letters(genome) == records
    starts, ends = genome.n_runs.starts, genome.n_runs.ends
    assert (ends - starts).sum() == 40_004 and (starts[1:] >= ends[:-1]).all()


def test_genbank_and_its_gzip_are_read(tmp_path):
    content = formats.genbank({"U00001": "acgtnacgta" * 13, "U00002": "ttga"})
    for name, packed in (("x.gb", content), ("x.gbk.gz", gzip.compress(content))):
        genome = Genome(write(tmp_path, name, packed))
        # in upper case: the lower case of the format is no soft mask
        assert letters(genome) == {"U00001": "ACGTNACGTA" * 13, "U00002": "TTGA"}


def test_real_genomes_agree_between_formats(tmp_path, shared_data):
    one = Genome(shared_data / "genomes" / "small_genomes.fa.gz")
    records = {n: t.upper() for n, t in letters(one).items()}
    two = Genome(write(tmp_path, "small.2bit", formats.twobit(records)))
    assert all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(one.records, two.records)
    )
    assert one.lengths["NC_001416.1"] == 48_502


def test_several_files_a_folder_and_labels(tmp_path):
    (
        write(tmp_path, "1.fa", b">chr1\nACGT\n"),
        write(tmp_path, "2.fna.gz", gzip.compress(b">chr2\nTTTT\n")),
        write(tmp_path, "notes.txt", b"x"),
    )
    assert Genome(tmp_path).lengths == {"chr1": 4, "chr2": 4}
    labeled = Genome(
        {"human": tmp_path / "1.fa", "yeast": [tmp_path / "1.fa", tmp_path / "2.fna.gz"]}
    )
    assert labeled.names == ["human:chr1", "yeast:chr1", "yeast:chr2"] and labeled.labels == [
        "human",
        "yeast",
        "yeast",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="is a folder without sequence files"):
        expand(tmp_path / "empty")


def test_an_open_pyfaidx_is_a_source_and_keeps_its_names(tmp_path):
    file = write(tmp_path, "x.fa", b">chr1 first\nACGT\n>chr2\nTT\n")
    assert letters(Genome(pyfaidx.Fasta(str(file)))) == {"chr1": "ACGT", "chr2": "TT"}
    renamed = pyfaidx.Fasta(str(file), key_function=lambda name: name.removeprefix("chr"))
    assert letters(Genome(renamed)) == {"1": "ACGT", "2": "TT"}
    with pytest.raises(
        ValueError, match=r"holds 2 records, this pyfaidx\.Fasta shows 1; open it without a filter"
    ):
        Genome(pyfaidx.Fasta(str(file), filt_function=lambda name: name == "chr1"))


def test_ambiguity_codes_are_n_or_refused(tmp_path):
    file = write(tmp_path, "x.fa", b">a\nACGT\n>b\nACNRyk\n")
    genome = Genome(file)
    assert letters(genome)["b"] == "ACNNnn" and genome.rows[1]["unknown"] == 4
    with pytest.raises(
        ValueError,
        match=r"record b holds 3 ambiguity codes .*, the first at position 4; set "
        r"data\.iupac=unknown",
    ):
        Genome(file, iupac="refuse")
    assert Genome(file, keep="a", iupac="unknown").names == ["a"]
    with pytest.raises(ValueError, match="iupac 'maybe'"):
        Genome(file, iupac="maybe")


@pytest.mark.parametrize(
    ("keep", "names"),
    [
        (None, ["chr1", "chr10", "chrX", "chr1_alt"]),
        ("chr([0-9]+|X)", ["chr1", "chr10", "chrX"]),
        (["chrX"], ["chrX"]),
        (["X", 1], ["chr1", "chrX"]),
    ],
)
def test_records_are_chosen_by_name(tmp_path, keep, names):
    file = write(
        tmp_path, "x.fa", formats.fasta({"chr1": "A", "chr10": "C", "chrX": "G", "chr1_alt": "T"})
    )
    genome = Genome(file, keep)
    assert genome.names == names and letters(genome) == {
        n: t for n, t in letters(Genome(file)).items() if n in names
    }
    for wrong, message in (
        ("chr(", "is not a regular expression"),
        ("scaffold.*", "leaves no record; the records are chr1"),
        (["2"], "data.keep: no record is called 2; the records are chr1"),
    ):
        with pytest.raises(ValueError, match=message):
            Genome(file, wrong)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give"),
        (b"\n \n", "is empty; give"),
        (b"ACGT\n", "is not FASTA: line 1 is 'ACGT', expected a header"),
        (b"\r\n\r\n@read\nACGT\n", "is not FASTA: line 3 is '@read'"),
        (
            b">a\nACGT\n\nAC-T\n",
            r"line 4: record a: letter '-' at column 3 is not a nucleotide; allowed are A, C",
        ),
        (b">a\nACGT\n>p\nMKV*\n", r"line 4: record p: letter '\*' at column 4"),
        (">a\nACé\n".encode(), "line 2: record a: letter 'é' at column 3"),
        (b">a\nAC>b\nAC\n", "line 2: '>' in the middle of a sequence line"),
        (b">a\nAC\n>\nAC\n", "line 3: a record has no name; write one after its '>'"),
        (b">a\nAC\n>b\n\n>c\nAC\n", "line 3: record b has no sequence; remove it"),
        (b">a\nAC\n>b\n", "line 3: record b has no sequence"),
        (b">a\nAC\n>a x\nGT\n", "line 3: record a has the name of an earlier record; rename one"),
        (gzip.compress(b">a\n" + b"ACGTTGCA" * 99, mtime=0)[:25], "is damaged or cut short"),
        (formats.twobit({"a": "ACGT" * 20})[:-5], "is a damaged or cut short 2bit file"),
        (
            formats.twobit({"a": "ACGT"}, version=7),
            "is a 2bit file of version 7; expected version 0 or 1",
        ),
        (formats.genbank({"X": "acgt"}).replace(b"acgt", b"ac*t"), r"letter '\*' at column 3"),
    ],
    ids=map(str, range(16)),
)
def test_a_malformed_file_is_named_with_line_and_remedy(tmp_path, content, message, cache_folder):
    file = write(tmp_path, "bad.fa", content)
    with pytest.raises(ValueError, match=message) as caught:
        Genome(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    assert not list((cache_folder / "genomes").glob(".*"))  # nothing half-made is left


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.fa does not exist"):
        Genome(tmp_path / "nothing.fa")
    with pytest.raises(ValueError, match="path names no file"):
        Genome([])


def test_bgzip_cut_between_two_blocks_is_noticed(tmp_path):
    content = formats.bgzip(formats.fasta({"a": "ACGT" * 200, "b": "TTTT"}))
    borders = [
        place for place in range(1, len(content)) if content[place:].startswith(b"\x1f\x8b\x08\x04")
    ]
    assert (
        len(borders) > 3 and letters(Genome(write(tmp_path, "whole.fa.gz", content)))["b"] == "TTTT"
    )
    for border in borders:
        with pytest.raises(
            ValueError,
            match=r"cut\.fa\.gz is damaged or cut short: it is bgzip and does not end with .*; "
            r"fetch it again",
        ):
            Genome(write(tmp_path, "cut.fa.gz", content[:border]))


def test_genbank_cut_after_any_line_is_noticed(tmp_path):
    lines = formats.genbank({"U1": "acgtnacgta" * 13, "U2": "ttga"}).splitlines(keepends=True)
    first = lines.index(b"//\n") + 1  # a file that ends here is whole
    for end in [*range(1, first), *range(first + 1, len(lines))]:
        with pytest.raises(ValueError, match=r"cut\.gb.*this is read as GenBank"):
            Genome(write(tmp_path, "cut.gb", b"".join(lines[:end])))
    for wrong, message in (
        (
            b"".join(lines[:12]),
            r"cut\.gb: the last record does not end with //: fetch the file again",
        ),
        (
            b"".join(lines).replace(b"130 bp", b"131 bp"),
            "line 1: record U1 has 130 bases, LOCUS says 131",
        ),
        (b"".join(lines[:-1]), "the last record does not end with //"),
    ):
        with pytest.raises(ValueError, match=message):
            Genome(write(tmp_path, "cut.gb", wrong))


def test_genbank_cut_after_any_byte_of_a_later_record_is_noticed(tmp_path):
    content = formats.genbank({"U1": "acgt", "U2": "ttga"})
    first = content.index(b"//\n") + 3
    path = write(tmp_path, "cut.gb", b"")
    for end in [*range(first + 1, first + 40), *range(len(content) - 30, len(content) - 1)]:
        if content[first:end].strip() and not content[:end].endswith(b"//"):
            with pytest.raises(ValueError, match=r"cut\.gb.*this is read as GenBank"):
                path.write_bytes(content[:end])
                with path.open("rb") as raw:
                    list(events_of(str(path), raw))


def test_a_genbank_length_without_a_unit_is_not_believed(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"x\.gb: line 1: a record begins with 'LOCUS .*, expected LOCUS, a name and a length",
    ):
        Genome(
            write(tmp_path, "x.gb", formats.genbank({"U1": "acgt"}).replace(b" 4 bp ", b" 4 bq "))
        )


def test_a_name_and_a_length_of_prokka_that_run_together_are_named(tmp_path):
    content = formats.genbank({"U1": "acgt" * 30})
    rest = content[content.index(b"\n") :]
    joined = b"LOCUS       CONTIG_7_length_long_name_c9.123120 bp   DNA linear" + rest
    with pytest.raises(ValueError, match=r"x\.gb: line 1: .* as Prokka writes .*put a space betwe"):
        Genome(write(tmp_path, "x.gb", joined))


def test_genbank_without_a_date_or_with_names_in_another_encoding_is_read(tmp_path, recwarn):
    content = formats.genbank({"U1": "acgt" * 30})
    rest = content[content.index(b"\n") :]
    path = write(tmp_path, "x.gb", b"\xef\xbb\xbfLOCUS       X 120 bp DNA" + rest)
    assert Genome(path).lengths == {"U1": 120}
    authors = b"\n  AUTHORS   Proven\xe7al,J.\nFEATURES"
    path.write_bytes(content.replace(b"\nFEATURES", authors).replace(b"made", b"d\xe9but"))
    (record,) = read_sequences(path)
    assert record == ("U1", "d?but", b"ACGT" * 30)
    assert not recwarn.list


def test_a_damaged_byte_in_a_genbank_sequence_is_named(tmp_path):
    content = formats.genbank({"U1": "acgtnacgta" * 13}).replace(
        b"acgtnacgta acg", b"acgtnacgta \xe7cg", 1
    )
    with pytest.raises(
        ValueError, match=r"line \d+: record U1: byte 0xe7 at column 11 is not a nuc"
    ):
        Genome(write(tmp_path, "x.gb", content))


def test_a_line_of_genbank_with_another_position_is_refused(tmp_path):
    content = formats.genbank({"U1": "acgtnacgta" * 13})
    assert content.count(b"\n       61 ") == 1
    for wrong in (b"\n       62 ", b"\n          "):
        with pytest.raises(
            ValueError, match=r"a line of sequence begins with '.*', expected the position 61"
        ):
            Genome(write(tmp_path, "x.gb", content.replace(b"\n       61 ", wrong)))


def test_a_compressed_twobit_is_read(tmp_path):
    content = formats.twobit(SMALL)
    for packing in ("gzip", "bgzip"):
        genomes = tmp_path / packing
        genomes.mkdir()
        packed = formats.COMPRESSED[packing](content)
        write(genomes, "x.2bit.gz", packed)
        assert letters(Genome(genomes)) == SMALL
        damaged = packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]  # within a checksum
        with pytest.raises(ValueError, match="is damaged or cut short"):
            Genome(write(tmp_path, "y.2bit.gz", damaged))


def test_a_twobit_with_a_wrong_number_of_records_or_blocks_is_refused(tmp_path):
    content = formats.twobit({"a": "ACGTNN" * 9, "b": "TTTTg"})
    fewer = content[:8] + struct.pack("<I", 1) + content[12:]
    huge = content.replace(struct.pack("<III", 54, 9, 4), struct.pack("<III", 54, 2**31, 4))
    after = content.replace(struct.pack("<III", 54, 9, 4), struct.pack("<III", 54, 9, 60))
    overlapping = content.replace(
        b"\1b" + content[content.index(b"\1b") + 2 :][:4],
        b"\1b" + content[content.index(b"\1a") + 2 :][:4],
    )
    assert len({content, fewer, huge, after, overlapping}) == 5
    for damaged, message in (
        (fewer, "its records overlap, or bytes between them belong to none"),
        (overlapping, "its records overlap, or bytes between them belong to none"),
        (content + b"x", "bytes follow the last record"),
        (huge, "bytes are missing"),
        (after, "blocks of N or lower case overlap or exceed the 54 bases"),
    ):
        with pytest.raises(
            ValueError,
            match=rf"x\.2bit is a damaged or cut short 2bit file \({message}|[\d,]+ {message}",
        ):
            Genome(write(tmp_path, "x.2bit", damaged))


@pytest.mark.parametrize("path", [5, [None], "", ["  "], {"human": 5}, [[1.5]], True, b"a.fa"])
def test_what_is_no_path_is_named(path):
    with pytest.raises(
        ValueError, match=r"^data\.path is .*; expected the name of a file or of a folder, .*"
    ):
        Genome(path)


@pytest.mark.parametrize("keep", [5, [None], [True], {"chr1": 1}, [["chr1"]]])
def test_what_names_no_records_is_named(tmp_path, keep):
    file = write(tmp_path, "x.fa", b">1\nACGT\n>X\nTTTT\n")
    with pytest.raises(ValueError, match=r"^keep\S* .* must be "):
        Genome(file, keep)
    assert Genome(file, [1]).names == ["1"]  # a yaml reads [1] as a number


def test_a_genome_of_other_bases_has_another_digest(tmp_path):
    one, same, other = (
        write(tmp_path, f"{i}.fa", b">a\nACGT\n>b\n" + text)
        for i, text in enumerate((b"TTTT", b"TTTT", b"TTTA"))
    )
    digests = [Genome(path).digest for path in (one, same, other)]
    assert digests[0] == digests[1] != digests[2] and Genome(one, "a").digest != digests[0]


def test_genbank_records_without_an_accession_are_named_by_their_locus(tmp_path):
    content = formats.genbank({"pUC19": "acgt", "pBR322": "ttga"})
    lines = [
        line[:12] + b"." if line.startswith((b"ACCESSION", b"VERSION")) else line
        for line in content.split(b"\n")
    ]
    assert Genome(write(tmp_path, "x.gb", b"\n".join(lines))).lengths == {
        "pUC19": 4,
        "pBR322": 4,
    }
