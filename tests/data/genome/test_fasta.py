import gzip
import itertools
import os

import pytest
from Bio import SeqIO
from hypothesis import given, settings
from hypothesis import strategies as st

from dnadiff.data.genome.genome import Genome
from dnadiff.formats.sequences import Record, parse, read_sequences, write_fasta
from dnadiff.store.files import resolve


def test_two_records_with_case_and_description(tmp_path):
    file = tmp_path / "a.fa"
    file.write_text("\n>one first record\nACGT\nacgt\n\n>two\tsecond\nNNRY\n")
    assert read_sequences(file) == [
        Record("one", "first record", b"ACGTacgt"),
        Record("two", "second", b"NNRY"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("ACGT\n", "is not FASTA: line 1 is 'ACGT'"),
        ("\n{json}\n", "is not FASTA: line 2 is"),
        (">a\nACGT\n>b\n>c\nAC\n", "line 3: record b has no sequence"),
        (">a\n", "line 1: record a has no sequence"),
        (">\nACGT\n", "line 1: a record has no name"),
        (">a\nAC\n>a x\nGT\n", "line 3: record a has the name of an earlier record"),
        (
            ">a\nACGT\n>b\nACGT\nACXT\n",
            "line 5: record b: letter 'X' at column 3 is not a nucleotide",
        ),
        (">p\nMKV*\n", r"line 2: record p: letter '\*' at column 4"),
        (">a\nACé\n", "line 2: record a: letter 'é' at column 3"),
    ],
)
def test_a_malformed_file_is_named_in_one_line(tmp_path, content, message):
    file = tmp_path / "bad.fa"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read_sequences(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_folder_binary_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.fa does not exist"):
        read_sequences(tmp_path / "nothing.fa")
    with pytest.raises(ValueError, match="is a folder"):
        read_sequences(tmp_path)
    (tmp_path / "binary.fa").write_bytes(b"\xff\xfe\x00>")
    with pytest.raises(ValueError, match="is not FASTA: line 1 is"):
        read_sequences(tmp_path / "binary.fa")
    whole = gzip.compress(b">a\n" + os.urandom(2000).hex().translate({ord("0"): "A"}).encode())
    (tmp_path / "cut.fa.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged or cut short"):
        read_sequences(tmp_path / "cut.fa.gz")
    with pytest.raises(
        FileNotFoundError,
        match=r"bundled:yeast\.fa does not ship with dnadiff; what does: "
        r"ecoli_K12_MG1655\.CDS\.bed\.gz",
    ):
        read_sequences("bundled:yeast.fa")


def test_written_records_are_wrapped_at_sixty_and_say_what_they_are(tmp_path):
    about = "synthetic sampler=ancestral calls=64 label=yeast seed=7"
    record = Record("sample_1", about, b"ACGT" * 16)
    assert write_fasta(tmp_path / "deep" / "s.fa", [record]) == 1
    lines = (tmp_path / "deep" / "s.fa").read_text().splitlines()
    assert lines == [
        ">sample_1 synthetic sampler=ancestral calls=64 label=yeast seed=7",
        "ACGT" * 15,
        "ACGT",
    ]


@pytest.mark.parametrize("name", ["s.fa", "s.fa.gz"])
def test_same_records_same_bytes(tmp_path, name):
    records = [Record(f"r{i}", "", b"ACGT" * i) for i in range(1, 30)]
    for folder in ("a", "b"):
        write_fasta(tmp_path / folder / name, iter(records))
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert read_sequences(tmp_path / "a" / name) == records


def test_an_existing_file_is_kept_unless_overwrite_is_set(tmp_path):
    file = tmp_path / "s.fa"
    file.write_text("precious")
    with pytest.raises(FileExistsError, match="exists; set overwrite=true"):
        write_fasta(file, [Record("a", "", b"ACGT")])
    assert file.read_text() == "precious"
    write_fasta(file, [Record("a", "", b"ACGT")], overwrite=True)
    assert file.read_text() == ">a\nACGT\n"


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path):
    def broken():
        yield Record("a", "", b"ACGT")
        raise RuntimeError("the sampler stopped")

    file = tmp_path / "s.fa"
    file.write_text("precious")
    with pytest.raises(RuntimeError):
        write_fasta(file, broken(), overwrite=True)
    assert file.read_text() == "precious" and os.listdir(tmp_path) == ["s.fa"]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no record to write"),
        ([Record("a b", "", b"A")], "white space"),
        ([Record("a", "", b"A"), Record("a", "", b"C")], "repeated"),
        ([Record("a", "x\ny", b"A")], "contains a line break"),
        ([Record("a", "", b"A_C")], "letter '_' at position 2"),
        ([Record("a", "", b"")], "no sequence"),
    ],
)
def test_a_record_that_could_not_be_read_back_is_not_written(tmp_path, records, message):
    with pytest.raises(ValueError, match=message):
        write_fasta(tmp_path / "s.fa", records)
    assert not (tmp_path / "s.fa").exists()


record_lists = st.lists(
    st.tuples(
        st.from_regex(r"[!-~]{1,8}", fullmatch=True),
        st.text("ACGTNRYKMSWBDHVacgtnu", min_size=1, max_size=200),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda pair: pair[0],
)


@settings(max_examples=60, deadline=None)
@given(
    pairs=record_lists,
    width=st.integers(1, 90),
    newline=st.sampled_from(["\n", "\r\n"]),
    blank=st.booleans(),
    final_newline=st.booleans(),
    compressed=st.booleans(),
)
def test_any_layout_reads_as_the_same_records(
    tmp_path_factory, pairs, width, newline, blank, final_newline, compressed
):
    lines = []
    for name, sequence in pairs:
        lines += [
            f">{name} words",
            *(sequence[i : i + width] for i in range(0, len(sequence), width)),
            *([""] if blank else []),
        ]
    content = (newline.join(lines) + (newline if final_newline else "")).encode()
    folder = tmp_path_factory.mktemp("layout")
    (folder / "in.fa").write_bytes(gzip.compress(content) if compressed else content)
    records = read_sequences(folder / "in.fa")
    assert [(r.name, r.sequence.decode()) for r in records] == pairs
    for name in ("out.fa", "out.fa.gz"):
        write_fasta(folder / name, records)
        assert read_sequences(folder / name) == records


@settings(max_examples=80, deadline=None)
@given(
    pairs=record_lists,
    width=st.integers(1, 40),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\r\n"]), min_size=1, max_size=7),
    chunk=st.integers(1, 20),
)
def test_mixed_line_ends_read_alike_as_records_and_as_a_genome(
    tmp_path_factory, pairs, width, ends, chunk
):
    lines = [
        text
        for name, seq in pairs
        for text in (f">{name}", *(seq[i : i + width] for i in range(0, len(seq), width)))
    ]
    content = "".join(line + end for line, end in zip(lines, itertools.cycle(ends))).encode()
    file = tmp_path_factory.mktemp("ends") / "in.fa"
    file.write_bytes(content)
    assert [(r.name, r.sequence.decode()) for r in read_sequences(file)] == pairs
    pieces = [content[i : i + chunk] for i in range(0, len(content), chunk)]
    events = list(parse("x", pieces))
    assert b"".join(e for e in events if isinstance(e, bytes)).decode() == "".join(
        sequence for _, sequence in pairs
    )
    assert [e.name for e in events if not isinstance(e, bytes)] == [name for name, _ in pairs]


def test_a_carriage_return_ends_a_header(tmp_path):
    (tmp_path / "x.fa").write_bytes(b">a\rACGT\r>b\nGGGG\n")
    assert [(r.name, r.sequence) for r in read_sequences(tmp_path / "x.fa")] == [
        ("a", b"ACGT"),
        ("b", b"GGGG"),
    ]
    assert Genome(tmp_path / "x.fa").lengths == {"a": 4, "b": 4}


@pytest.mark.parametrize("read", [read_sequences, Genome])
def test_a_header_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, read):
    (tmp_path / "x.fa").write_bytes(b">a" + b"x" * 10_000_000)
    with pytest.raises(
        ValueError, match=r"x\.fa: line 1: a header of more than 1,048,576 bytes; shorten it$"
    ):
        read(tmp_path / "x.fa")


@pytest.mark.parametrize("read", [read_sequences, Genome])
def test_endless_blank_lines_are_refused(tmp_path, read):
    blank = gzip.compress(b"\n" * (1 << 24)) * 17
    (tmp_path / "x.fa.gz").write_bytes(gzip.compress(b">a\nA") + blank)
    with pytest.raises(ValueError, match=r"more than 268,435,456 bytes of blank lines; remove"):
        read(tmp_path / "x.fa.gz")


@pytest.mark.parametrize("tail", [b"x", b"\x1f\x8b", b"\0\0x", b"more text\n"])
@pytest.mark.parametrize("read", [read_sequences, Genome])
def test_bytes_after_the_end_of_a_gzip_file_are_refused(tmp_path, read, tail):
    (tmp_path / "x.fa.gz").write_bytes(gzip.compress(b">a\nACGT\n") + tail)
    with pytest.raises(ValueError, match=r"is damaged or cut short"):
        read(tmp_path / "x.fa.gz")


def test_biopython_reads_what_is_written_and_bgzip_is_read(tmp_path, shared_data):
    records = read_sequences(shared_data / "genomes" / "small_genomes.fa.gz")
    write_fasta(tmp_path / "copy.fa", records)
    theirs = [(r.id, str(r.seq).encode()) for r in SeqIO.parse(tmp_path / "copy.fa", "fasta")]
    assert theirs == [(r.name, r.sequence) for r in records] and len(records) == 6


def test_bundled_genome_is_e_coli_whole():
    (record,) = read_sequences("bundled:ecoli_K12_MG1655.fa.gz")
    assert record.name == "U00096.3" and len(record.sequence) == 4_641_652
    assert resolve("bundled:ecoli_K12_MG1655.fa.gz").with_name("README.md").is_file()
