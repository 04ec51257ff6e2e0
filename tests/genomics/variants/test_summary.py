"""The first pass over the variants."""

import logging

import pytest

from dnadiff.formats.regions import Rows, open_source
from dnadiff.genomics.variants.effects import InputSummary, RowScorer, TrainingPart
from dnadiff.genomics.variants.variant import Alleles, Sequences

GENOME = Sequences({"chr1": "ACGTACGTAC", "chrM": "ACGT", "chr2": "AC"})
COLUMNS = "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"


def summary_of(source, *rows) -> InputSummary:
    scorer = RowScorer(Alleles(GENOME, 8), lambda edits: [])
    return scorer.summarize(source, TrainingPart({}, ""), True, *rows)


@pytest.fixture
def b37(tmp_path):
    """A VCF file with another MT than the genome, and a row on it."""
    header = [
        "##fileformat=VCFv4.2",
        "##contig=<ID=1,length=10>",
        "##contig=<ID=MT,length=3>",
        "##contig=<ID=9,length=7>",
        COLUMNS,
    ]
    rows = ["1\t2\t.\tC\tT\t.\t.\t.", "1\t3\t.\tG\tT\t.\t.\t.", "MT\t1\t.\tA\tC\t.\t.\t."]
    (tmp_path / "x.vcf").write_text("\n".join([*header, *rows]) + "\n")
    return open_source(tmp_path / "x.vcf")


def test_a_contig_of_another_length_is_refused_where_a_row_uses_it(b37, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("dnadiff"), "propagate", True)
    for rows in ((), (2, 3)):
        with pytest.raises(
            ValueError,
            match=r"x.vcf: line 8: the header says that MT has 3 bases, and the genome has 4: a "
            r"different assembly",
        ):
            summary_of(b37, *rows)
    assert not caplog.messages
    assert summary_of(b37, 0, 2).rows == 2
    (message,) = caplog.messages
    assert (
        "x.vcf has contigs whose length differs from the genome, on which no variant was read: MT "
        "(3 bases, in the genome 4)" in message
    )


def test_the_length_of_a_contig_is_checked_wherever_it_is_in_its_line(tmp_path):
    lines = [
        "##fileformat=VCFv4.2",
        "##contig=<length=12345,ID=1>",
        COLUMNS,
        "1\t2\t.\tC\tT\t.\t.\t.",
    ]
    (tmp_path / "x.vcf").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="that 1 has 12,345 bases, and the genome has 10: a"):
        summary_of(open_source(tmp_path / "x.vcf"))


def test_contigs_have_the_names_that_the_rows_use():
    found = summary_of(
        Rows([("MT", 1, "A", "C"), ("1", 2, "C", "T"), ("chr1", 3, "G", "T"), ("1", 4, "T", "G")])
    )
    assert list(found.contigs(GENOME.lengths).items()) == [
        ("1", 10),
        ("chr1", 10),
        ("MT", 4),
        ("chr2", 2),
    ]
