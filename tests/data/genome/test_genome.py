import itertools

import pytest
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.formats.sequences import read_sequences


@pytest.fixture
def tiny(make_genome):
    return make_genome(a="ACGTNacgtn", b="TTT")


def test_case_is_kept_separately_from_the_ids(tiny):
    genome = tiny
    assert (genome.names, genome.lengths, genome.total) == (["a", "b"], {"a": 10, "b": 3}, 13)
    assert genome.window("a", 3, 7).tolist() == [10, 11, 7, 8]
    assert genome.soft_masked("a", 3, 7).tolist() == [False, False, True, True]
    assert genome.records[0].tolist() == [7, 8, 9, 10, 11] * 2


def test_minus_strand_is_the_reverse_complement(tiny):
    genome = tiny
    assert genome.tokenizer.decode(genome.window("a", 0, 6, "-")) == "TNACGT"
    assert genome.soft_masked("a", 0, 6, "-").tolist() == [True] + [False] * 5
    assert genome.window("a", 0, 6, ".").tolist() == genome.window("a", 0, 6).tolist()


@settings(deadline=None)
@given(
    sequence=st.text("ACGTNacgtn", min_size=1, max_size=50),
    cut=st.tuples(st.integers(0, 49), st.integers(1, 50)),
)
def test_every_window_equals_biopythons_slice(make_genome, sequence, cut):
    start, end = cut[0] % len(sequence), min(cut[1], len(sequence))
    genome = make_genome(a=sequence)
    if start < end:
        part = Seq(sequence)[start:end].upper()
        assert genome.tokenizer.decode(genome.window("a", start, end)) == part
        assert (
            genome.tokenizer.decode(genome.window("a", start, end, "-"))
            == part.reverse_complement()
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("c", 0, 1), "no record is called c; the records are a, b"),
        (("a", 0, 11), "window a:0-11 is not inside the record, 0-10"),
        (("a", -1, 3), "is not inside"),
        (("a", 3, 3), "is not inside"),
        (("a", 0, 3, "x"), "strand is 'x'"),
    ],
)
def test_windows_outside_the_record_are_refused(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny.window(*arguments)


def test_several_files_make_one_genome(tmp_path):
    (tmp_path / "1.fa").write_text(">a\nAC\n")
    (tmp_path / "2.fa").write_text(">b\nGT\n")
    genome = Genome([tmp_path / "1.fa", tmp_path / "2.fa"])
    assert genome.lengths == {"a": 2, "b": 2}
    with pytest.raises(ValueError, match="record a is also in"):
        Genome([tmp_path / "1.fa", tmp_path / "1.fa"])
    with pytest.raises(ValueError, match="path names no file"):
        Genome([])


def test_real_genomes_come_back_letter_by_letter(shared_data):
    path = shared_data / "genomes" / "small_genomes.fa.gz"
    genome = Genome(path)
    for record, ids in zip(read_sequences(path), genome.records):
        plain = bytes(b if b in b"ACGT" else ord("N") for b in record.sequence.upper())
        assert genome.tokenizer.decode(ids).encode() == plain


def test_a_record_is_sliced_like_a_string(tiny):
    record = tiny["a"]
    letters = "ACGTNACGTN"
    assert (len(record), record.name, record[4], record[-1]) == (10, "a", "N", "N")
    bounds = [None, -11, -3, -1, 0, 2, 10, 12]
    for start, end in itertools.product(bounds, bounds):
        assert record[start:end] == letters[start:end]
    assert (record[:], record.window(0, 6, "-")) == (letters, "TNACGT")
    with pytest.raises(IndexError):
        record[10]
    with pytest.raises(ValueError, match="slices of record a have a step of 1, got -1; window"):
        record[::-1]


def test_a_genome_is_read_by_the_names_of_its_records(tiny):
    assert (list(tiny), len(tiny), bool(tiny)) == (["a", "b"], 2, True)
    assert "a" in tiny and "chrb" in tiny and "c" not in tiny and tiny["chrb"].name == "b"
    assert repr(tiny) == "Genome(g.fa: 2 records, 13 bases)"
    assert repr(tiny["b"]) == "GenomeRecord(b, 3 bases)"
    with pytest.raises(ValueError, match="genome: no record is called c; the records are a, b"):
        tiny["c"]


def test_the_package_opens_genomes(tmp_path):
    for name in ("1.fa", "2.fa"):
        (tmp_path / name).write_text(f">{name[0]}\nAC\n")
    genome = dnadiff.Genome([tmp_path / "1.fa", tmp_path / "2.fa"], keep=["2"])
    assert (type(genome), genome["2"][:]) == (Genome, "AC")
    assert repr(genome) == "Genome(2 files: 1 record, 2 bases)"
    with pytest.raises(ValueError, match="iupac 'maybe' is not known; choose one of"):
        dnadiff.Genome(tmp_path / "1.fa", iupac="maybe")
