"""Engines, and the filling of the columns of a target."""

import math
from pathlib import Path

import numpy as np
import pytest

from dnadiff.data.alignment import ABSENT, GAP, write_alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.formats.alignments import Block
from dnadiff.formats.sequences import Record, read_sequences, write_fasta
from dnadiff.genomics.alignment.engines import Engine, Last, Mappy, Minimap2, installed
from dnadiff.genomics.alignment.work import Aligned, Sequences, Stored, Target, relatives

TEXT = "ACGTACGTAC"
ENGINES = (Last, Minimap2, Mappy)


def engine_of(kind):
    """An engine, or a line that says that it is missing."""
    try:
        return kind()
    except ValueError as error:
        pytest.skip(str(error).partition(";")[0])


@pytest.fixture
def target(tmp_path):
    (tmp_path / "t.fa").write_text(f">chr\n{TEXT}\n>other\nGGNCC\n")
    return Target(Genome(tmp_path / "t.fa"), Engine())


def block(start, target, other, score=1.0, record="chr", at=0, size=100, reverse=False, of="q"):
    return Block(record, start, target, other, score, of, size, at, reverse)


def letters(codes) -> str:
    return "".join("ACGT-."[code] for code in codes)


def filled(target, *blocks) -> str:
    return letters(target.fill("b", "b.maf", blocks)[1])


def test_columns_have_bases_gaps_and_what_is_absent(target):
    blocks = [block(1, "CG-TA", "CTAT-"), block(1, "GNC", "ANc", record="other", at=20)]
    assert filled(target, *blocks) == ".CTT-......A.C."


def test_the_alignment_with_the_highest_score_fills_a_column(target):
    low, high = block(0, "ACGT", "TTTT", 1), block(2, "GTAC", "CCCC", 2, at=50)
    for blocks in ((low, high), (high, low)):
        assert filled(target, *blocks) == "TTCCCC........."


def test_each_base_of_a_genome_is_used_once(target):
    first, again = block(0, "ACGT", "AAAA", 2, at=10), block(4, "ACGT", "CCCC", 1, at=12)
    assert filled(target, first, again) == "AAAA..CC......."
    # the same bases on the other strand: 14, 13, 12, 11, of which 14 is free
    reverse = block(4, "ACGT", "CCCC", 1, at=100 - 15, reverse=True)
    assert filled(target, first, reverse) == "AAAAC.........."
    elsewhere = block(4, "ACGT", "CCCC", 1, at=12, of="another record")
    assert filled(target, first, elsewhere) == "AAAACCCC......."


def test_a_gap_uses_no_base(target):
    first, again = block(0, "ACGTA", "A--TA", 2), block(6, "GT", "CC", 1, at=1)
    assert filled(target, first, again) == "A--TA.........."
    again = block(6, "GT", "CC", 1, at=3)
    assert filled(target, first, again) == "A--TA.CC......."


def test_a_gap_counts_only_beside_a_base_of_the_same_alignment(target):
    first = block(0, "ACGT", "AAAA", 2, at=10)
    # its bases 12 and 13 are used, and 14 is not
    paralog = block(4, "ACGTA", "C-C-C", 1, at=12)
    assert filled(target, first, paralog) == "AAAA....C......"
    paralog = block(4, "ACGTAC", "C-CC-C", 1, at=12)
    assert filled(target, first, paralog) == "AAAA...C-C....."


def test_equal_signs_are_bases_of_the_target(target):
    assert filled(target, block(1, "==t=", "==a=")) == ".CGAA.........."
    assert filled(target, block(2, "===", "GCA")) == "..GCA.........."


def test_what_is_known_of_a_genome(target):
    blocks = [block(0, "ACGT", "ACGA", 3), block(2, "GTAC", "GTAC", 1, at=50)]
    genome, _ = target.fill("b", "b.maf", blocks)
    assert (genome.name, genome.file, genome.reason) == ("b", "b.maf", None)
    assert math.isclose(genome.identity, 5 / 6) and genome.coverage == 6 / 15
    assert genome.paralogs == 2 / 15  # two columns have two alignments
    assert target.fill("b", "", [])[0].coverage == 0


def test_an_alignment_of_another_assembly_is_refused(target):
    with pytest.raises(ValueError, match=r"b\.maf: b is aligned to chr:2-4 with other bases"):
        filled(target, block(1, "CCT", "CCT"))
    with pytest.raises(ValueError, match=r"chr:8-11 with other bases than the target"):
        filled(target, block(7, "TACG", "TACG"))


@pytest.mark.parametrize(
    "damaged",
    [
        block(0, "ACGT", "ACGT", size=3),
        block(0, "ACGT", "ACGT", size=3, reverse=True),
        block(0, "ACGT", "ACGT", at=-2),
        block(-1, "ACGT", "ACGT"),
        block(0, "ACGT", "ACG"),
    ],
)
def test_a_damaged_alignment_is_refused(target, damaged):
    with pytest.raises(ValueError, match=r"b\.maf: b is aligned to chr:.* or damaged"):
        filled(target, damaged)


@pytest.fixture(scope="module")
def homologs(tmp_path_factory):
    """A target of 30 kb, and a relative with 15 % other bases and short deletions."""
    folder, rng = tmp_path_factory.mktemp("homologs"), np.random.default_rng(1)
    bases = rng.choice(list(b"ACGT"), 30_000).astype(np.uint8)
    other = np.where(rng.random(30_000) < 0.2, rng.choice(list(b"ACGT"), 30_000), bases)
    kept = rng.random(30_000) > 0.01
    other = other.astype(np.uint8)[kept].tobytes()
    middle = len(other) // 2
    pair = bytes.maketrans(b"ACGT", b"TGCA")
    inverted = other[:middle] + other[middle:].translate(pair)[::-1]
    write_fasta(folder / "t.fa", [Record("t", "", bases.tobytes())])
    write_fasta(folder / "o.fa", [Record("o", "", inverted)])
    return folder, kept


@pytest.mark.parametrize("kind", ENGINES)
def test_engines_align_both_strands_of_a_homolog(kind, homologs, tmp_path):
    folder, kept = homologs
    target = Target(Genome(folder / "t.fa"), engine_of(kind))
    ((genome, row),) = Sequences("o", str(folder / "o.fa")).rows(target)
    assert genome.coverage > 0.9 and 0.82 < genome.identity < 0.88
    assert genome.chance is not None and genome.chance < 0.02
    deleted = row[~kept]  # a gap may be placed at an equal base next to it
    assert (deleted == GAP).mean() > 0.4 and (row[kept] == GAP).mean() < 0.02
    assert target.engine.version()[0].isdigit()


def test_coverage_by_chance_is_that_of_pieces_of_the_whole_genome(target, tmp_path):
    class Counted(Engine):
        def prepare(self, target, lengths):
            pass

        def blocks(self, query):
            (record,) = read_sequences(query)
            queries.append(record.sequence)
            return iter([block(0, "ACG", "ACG", of="x")])

    size = 5_000_000
    text = np.random.default_rng(0).choice(list(b"ACGT"), size).astype(np.uint8).tobytes()
    queries = []
    target.engine = Counted()
    write_fasta(tmp_path / "o.fa", [Record("o", "", text)])
    ((genome, _),) = Sequences("o", str(tmp_path / "o.fa")).rows(target)
    reverse, whole = queries
    assert whole == text and len(reverse) == size / 5
    assert reverse[::-1][50_000:100_000] == text[250_000:300_000]
    # five samples, each with 3 of 15 bases by chance
    assert genome.coverage == 3 / 15 and math.isclose(genome.chance, 1 - (12 / 15) ** 5)
    queries.clear()
    write_fasta(tmp_path / "s.fa", [Record("s", "", text[:120_000])])
    ((genome, _),) = Sequences("s", str(tmp_path / "s.fa")).rows(target)
    assert queries[0][::-1] == text[:120_000] and math.isclose(genome.chance, 3 / 15)


def test_a_program_that_fails_is_named(homologs):
    engine = engine_of(Last)
    engine.options = ("--no-such-option",)
    target = Target(Genome(homologs[0] / "t.fa"), engine)
    with pytest.raises(ValueError, match=r"engine=last: lastal ended with status \d+ \(.*option"):
        list(Sequences("o", str(homologs[0] / "o.fa")).rows(target))


def test_a_program_that_cannot_run_is_named(monkeypatch, tmp_path):
    for name in Last.executables:
        (tmp_path / name).write_text("#!/bin/sh\necho no library >&2\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ValueError, match=r"engine=last: lastal ended with status 3 \(no library\)"):
        Last().version()


def test_without_a_program_the_error_says_how_to_install_one(monkeypatch, target, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    how = r"installed; install LAST \(Debian: apt install last-align.*minimap2.*'\.\[align\]'"
    for kind in (Last, Minimap2):
        with pytest.raises(ValueError, match=f"is not {how}"):
            kind()
    assert installed().name in ("mappy", "none")
    with pytest.raises(ValueError, match=f"no program that aligns genomes is {how}"):
        list(Sequences("o", str(tmp_path / "t.fa")).rows(target))


def test_sources_are_told_by_their_content(tmp_path, target):
    paths = {
        "a.fa": ">x\nACGT\n>y\nAC\n",
        "b.fa": ">x\nAC-T\n",
        "c.maf": "##maf\n",
        "m.tsv": "path\tlabel\na.fa\tAlpha\n",
    }
    for name, text in paths.items():
        (tmp_path / name).write_text(text)
    records = target.genome.lengths
    codes = np.full((2, 15), ABSENT, np.uint8)
    write_alignment(tmp_path / "d.aln", records, target.codes, codes, np.zeros((15, 10)))
    given = [str(tmp_path / name) for name in (*paths, "d.aln")]
    found = relatives(given, False, target.genome)
    assert [(type(each), each.name) for each in found] == [
        (Sequences, "a"),
        (Aligned, "b"),
        (Aligned, "c"),
        (Sequences, "Alpha"),
        (Stored, "genome1"),
        (Stored, "genome2"),
    ]
    found = relatives(given[0], True, target.genome)
    assert [(each.name, each.part) for each in found] == [("x", "x"), ("y", "y")]
    assert Path(found[0].path).name == "a.fa"
