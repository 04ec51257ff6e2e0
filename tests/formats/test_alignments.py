"""Files of alignments as blocks."""

import gzip

import pytest

from dnadiff.formats.alignments import (
    AlignedFasta,
    Block,
    Maf,
    Paf,
    Sam,
    alignment_format,
    texts_of_cs,
)

LENGTHS = {"chr1": 20, "chr2": 12}
MAF = """##maf version=1
a score=23.5
s hg.chr1  2 5 + 20 ACG-TA
s pan.chr7 0 6 + 40 ACGGTA
s rat.chr3 3 4 - 30 A-GG-A

a score=7
s hg.chrX  0 2 + 99 AC
s rat.chr3 0 2 + 30 AC

a score=8
s hg.chr2  0 2 + 12 AC
i rat.chr3 N 0 C 0
s rat.chr3 0 2 + 30 AC
s hg.chr1  0 2 + 20 AC
"""


def written(tmp_path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_maf_names_genomes_and_records(tmp_path):
    found = list(Maf.blocks(written(tmp_path, "x.maf", MAF), LENGTHS))
    assert found == [
        Block("chr1", 2, "ACG-TA", "ACGGTA", 23.5, "pan.chr7", 40, 0, False, "pan"),
        Block("chr1", 2, "ACG-TA", "A-GG-A", 23.5, "rat.chr3", 30, 3, True, "rat"),
        Block("chr2", 0, "AC", "AC", 8.0, "rat.chr3", 30, 0, False, "rat"),
    ]


def test_maf_of_one_other_genome_has_names_of_records_with_dots(tmp_path):
    text = "a score=1\ns NC_1.3 0 2 + 5 AC\ns NZ_9.1 4 2 + 9 AG\n"
    path = tmp_path / "x.maf.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert alignment_format(str(path)) is Maf
    (block,) = Maf.blocks(str(path), {"NC_1.3": 5})
    assert (block.genome, block.record, block.other_record) == ("", "NC_1.3", "NZ_9.1")


def test_a_maf_whose_reference_is_not_first_is_refused(tmp_path):
    text = "a score=1\ns rat.chr3 0 2 + 30 AC\ns hg.chr1 4 2 + 20 AC\n\n"
    with pytest.raises(ValueError, match=r"line 4: .* but with rat\.chr3; the target must be the"):
        list(Maf.blocks(written(tmp_path, "x.maf", text), LENGTHS))
    text = "a score=1\ns hg.chr1 4 2 - 20 AC\ns rat.chr3 0 2 + 30 AC\n\n"
    with pytest.raises(ValueError, match=r"does not begin with the \+ strand of the target"):
        list(Maf.blocks(written(tmp_path, "x.maf", text), LENGTHS))


@pytest.mark.parametrize(
    "row", ["s hg.chr1 0 3 + 20 AC", "s hg.chr1 0 2 + AC", "s hg.chr1 a 2 + 20 AC"]
)
def test_a_damaged_row_of_maf_is_named(tmp_path, row):
    with pytest.raises(ValueError, match=r"x\.maf: line 2 is not a row of MAF"):
        list(Maf.blocks(written(tmp_path, "x.maf", f"a score=1\n{row}\n"), LENGTHS))


def test_cs_tags_become_texts():
    assert texts_of_cs(":3*ag+ac-gt:1") == ("===a--gt=", "===gac--=")
    assert texts_of_cs("=ACG*ag+ac-gt=T") == ("===a--gt=", "ACGgac--T")
    assert texts_of_cs(":1~gt5ag:1") == ("=NNNNN=", "=-----=")


def test_paf_counts_the_start_on_the_strand_that_is_aligned(tmp_path):
    row = "q\t30\t5\t9\t{}\tchr1\t20\t2\t6\t4\t4\t60\tAS:i:12\ttp:A:P\tcs:Z::4\n"
    path = written(
        tmp_path,
        "x.paf",
        row.format("+") + row.format("-") + row.format("+").replace("chr1", "chr9"),
    )
    assert list(Paf.blocks(path, LENGTHS)) == [
        Block("chr1", 2, "====", "====", 12.0, "q", 30, 5, False),
        Block("chr1", 2, "====", "====", 12.0, "q", 30, 21, True),
    ]


@pytest.mark.parametrize("tag", ["", "\tcs:Z::3", "\tcg:Z:4M"])
def test_paf_without_its_cs_tag_is_refused(tmp_path, tag):
    path = written(tmp_path, "x.paf", f"q\t30\t5\t9\t+\tchr1\t20\t2\t6\t4\t4\t60{tag}\n")
    with pytest.raises(
        ValueError, match=r"line 1 is not a row of PAF with a cs tag .* minimap2 -c"
    ):
        list(Paf.blocks(path, LENGTHS))


SAM = """@SQ\tSN:chr1\tLN:20
@SQ\tSN:chrX\tLN:50
r1\t0\tchr1\t3\t60\t2S3M1I2M2D1M\t*\t0\t0\tNNACGTACT\t*\tAS:i:9
r2\t16\tchr1\t1\t60\t3H2M\t*\t0\t0\tAC\t*
r3\t256\tchr1\t1\t60\t2M\t*\t0\t0\t*\t*
r4\t4\t*\t0\t0\t*\t*\t0\t0\tACG\t*
r5\t0\tchrX\t1\t60\t2M\t*\t0\t0\tAC\t*
"""


@pytest.mark.parametrize("name", ["x.sam", "x.bam"])
def test_sam_and_bam_have_gaps_and_clips(tmp_path, name):
    pysam = pytest.importorskip("pysam", reason="pysam is not installed")
    path = written(tmp_path, "x.sam", SAM)
    if name == "x.bam":
        bam = str(tmp_path / name)
        with (
            pysam.AlignmentFile(path) as source,
            pysam.AlignmentFile(bam, "wb", template=source) as copy,
        ):
            for read in source:
                copy.write(read)
    assert list(Sam.blocks(str(tmp_path / name), LENGTHS)) == [
        Block("chr1", 2, "--===-=====", "NNACGTAC--T", 9.0, "r1", 9, 0, False),
        Block("chr1", 0, "==", "AC", 0.0, "r2", 5, 3, True),
    ]


def test_a_damaged_bam_is_refused(tmp_path):
    pytest.importorskip("pysam", reason="pysam is not installed")
    (tmp_path / "x.bam").write_bytes(b"BAM\x01 no")
    with pytest.raises(ValueError, match=r"x\.bam is damaged or cut short"):
        list(Sam.blocks(str(tmp_path / "x.bam"), LENGTHS))


def test_rows_of_aligned_fasta_are_genomes(tmp_path, caplog):
    path = written(tmp_path, "x.fa", ">t the target\nACG-TACG\nTACG\n>b\nACGGTAC-\n--CG\n")
    assert alignment_format(path) is AlignedFasta
    caplog.set_level("INFO", "dnadiff")
    (block,) = AlignedFasta.blocks(path, {"chr": 11})
    assert block == Block("chr", 0, "ACG-TACGTACG", "ACGGTAC---CG", 0.0, "b", 12, 0, genome="b")
    assert "1 columns with a gap in the target are left out" in caplog.text


def test_sequences_are_no_alignment(tmp_path):
    assert alignment_format(written(tmp_path, "x.fa", ">a-b c-d\nACGT\n>b\nAC\n")) is None
    assert alignment_format(written(tmp_path, "x.maf", ">a\nACGT\n")) is Maf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">t\nACGT\n>b\nAC-\n", "rows of different widths, or with the same name"),
        (">t\nACGT\n>b\nAC-T\n>b\nACGT\n", "give each genome its own name, once"),
        (">t\nAC-T\n>b\nACGT\n", "the first row, t, has 3 bases without gaps, as no record"),
    ],
)
def test_aligned_fasta_with_faults_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        list(AlignedFasta.blocks(written(tmp_path, "x.afa", text), {"t": 4}))


def test_several_genomes_need_names_with_the_genome(tmp_path):
    text = "a score=1\ns chr1 0 2 + 20 AC\ns pan.chr1 0 2 + 9 AC\ns rat.chr1 0 2 + 9 AC\n\n"
    with pytest.raises(
        ValueError, match=r"line 5: .* has 2 other rows, and the name of the target, chr1"
    ):
        list(Maf.blocks(written(tmp_path, "x.maf", text), LENGTHS))


def test_a_name_that_means_a_record_is_the_whole_name(tmp_path):
    text = "a score=1.5e1\ns 1 0 2 + 20 AC\ns c1 0 2 + 9 AC\n\na\ns 1 0 2 + 20 AC\ns 1 0 2 + 9 AC\n"
    found = list(Maf.blocks(written(tmp_path, "x.maf", text), LENGTHS))
    assert [(b.record, b.genome, b.other_record, b.score) for b in found] == [
        ("chr1", "", "c1", 15.0),
        ("chr1", "", "1", 0.0),
    ]


@pytest.mark.parametrize("score", ["abc", "nan", "1.5x", ""])
def test_a_score_that_is_no_number_is_refused(tmp_path, score):
    text = f"a score={score}\ns 1 0 2 + 20 AC\ns c1 0 2 + 9 AC\n"
    with pytest.raises(ValueError, match=r"x\.maf: line 1: the score is not a number"):
        list(Maf.blocks(written(tmp_path, "x.maf", text), LENGTHS))


def test_names_of_genomes_may_have_dots(tmp_path):
    text = "a score=1\ns GCF_1.2.NC_9.3 0 2 + 20 AC\ns GCF_4.1.NZ_7.1 0 2 + 9 AC\n"
    (block,) = Maf.blocks(written(tmp_path, "x.maf", text), {"NC_9.3": 20})
    assert (block.record, block.genome) == ("NC_9.3", "GCF_4")
