import gzip

import pytest

from dnadiff.data.fasta import Record
from dnadiff.data.genome import Genome
from dnadiff.data.regions import Region, read_bed, read_gtf, read_regions, zero_based


def write(folder, text, name="r.bed"):
    (folder / name).write_text(text)
    return folder / name


def test_bed_row_is_half_open_and_gtf_row_is_not(tmp_path):
    genome = Genome.from_records([Record("chr1", "", b"ACGTACGT")])
    (region,) = read_bed(write(tmp_path, "chr1\t0\t4\n"), genome.lengths)
    assert genome.tokenizer.decode(genome.window(region.chrom, region.start, region.end)) == "ACGT"
    assert zero_based(5, 8) == (4, 8)
    coding = 'chr1\tx\tCDS\t5\t8\t.\t-\t0\tgene_id "g1"; transcript_id "t1"\n'
    exon = "chr1\tx\texon\t1\t2\t.\t+\t.\tID=e1;Parent=t1\n"
    gtf = write(tmp_path, coding + exon, "r.gtf")
    assert read_gtf(gtf, feature="CDS") == [Region("chr1", 4, 8, "g1", "-")]
    assert read_gtf(gtf)[1] == Region("chr1", 0, 2, "e1", "+")


def test_headers_comments_blank_lines_and_gzip_are_read(tmp_path):
    text = '#c\ntrack name="x"\nbrowser position chr1\n\nchr1\t1\t5\tname with spaces\t0\t-\tmore\r\nchr1 7 9\n'
    (tmp_path / "r.bed.gz").write_bytes(gzip.compress(text.encode()))
    assert read_bed(tmp_path / "r.bed.gz") == [Region("chr1", 1, 5, "name with spaces", "-"), Region("chr1", 7, 9)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("chr1\t5\t5", "whose end is not after its start"),
        ("chr1\t-1\t5", "starts before the record"),
        ("chr1\tone\t5", "which are not integers"),
        ("chr1\t5", "has 2 columns; BED needs chrom, start and end"),
        ("chr1\t1\t5\tn\t0\tx", "has the strand 'x'"),
        ("chr1\t1\t101", r"ends beyond chr1 \(100 bases\)"),
        ("chrX\t1\t5", "no record is called chrX; the records are chr1, chr2"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_bed(write(tmp_path, f"#header\nchr2\t0\t4\n{row}\n"), {"chr1": 100, "chr2": 100})
    assert "r.bed: line 3" in str(caught.value)


def test_chr1_against_1_is_noticed(tmp_path):
    with pytest.raises(ValueError, match="no record is called chr1, chr2; the records are 1, 2") as caught:
        read_bed(write(tmp_path, "chr1\t0\t4\nchr2\t0\t4\n"), {"1": 100, "2": 100})
    assert "one side writes 'chr1' where the other writes '1'" in str(caught.value)


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no region"):
        read_bed(write(tmp_path, "# nothing\n"))


def test_bundled_coding_sequences_begin_with_start_codons():
    genome = Genome.from_fasta("bundled:ecoli_K12_MG1655.fa.gz")
    regions = read_bed("bundled:ecoli_K12_MG1655.CDS.bed.gz", genome.lengths)
    codons = [genome.tokenizer.decode(genome.window(r.chrom, r.start, r.end, r.strand)[:3]) for r in regions]
    assert len(regions) == 4379 and codons.count("ATG") / len(codons) > 0.85
    assert {r.strand for r in regions} == {"+", "-"}


LENGTHS = {"chr1": 100, "human:chr2": 5000, "odd:1-5": 9}


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("chr1:5-8", Region("chr1", 4, 8)),
        ("chr1:5-8:-", Region("chr1", 4, 8, strand="-")),
        ("chr1:5-8(+)", Region("chr1", 4, 8, strand="+")),
        ("human:chr2:1,001-2,000", Region("human:chr2", 1000, 2000)),
        ("chr1", Region("chr1", 0, 100)),
        ("odd:1-5", Region("odd:1-5", 0, 9)),
    ],
)
def test_a_place_is_written_as_browsers_write_it(text, region):
    assert read_regions(text, LENGTHS) == [region] == read_regions([text], LENGTHS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chr1:8-5", "'chr1:8-5' has the region chr1:7-5, whose end is not after its start"),
        ("chr1:0-5", "starts before the record"),
        ("chr1:90-101", r"ends beyond chr1 \(100 bases\)"),
        ("1:5-8", r"no record is called 1; the records are chr1.*one side writes"),
        ("chr1-5", "is neither a file nor chrom:first-last, and no record is called so; write chr1:1001-2000"),
        ("nothing.bed", "does not exist"),
    ],
)
def test_a_place_that_is_none_is_named(text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_regions(text, LENGTHS)


def test_files_are_told_apart_by_their_names(tmp_path):
    bed = write(tmp_path, "chr1\t4\t8\n")
    gff = write(tmp_path, "chr1\tx\tCDS\t5\t8\t.\t.\t0\tID=a\nchr1\tx\texon\t1\t9\t.\t.\t0\tID=b\n", "r.gff3")
    assert read_regions(bed, LENGTHS) == [Region("chr1", 4, 8)]
    assert read_regions([str(bed), str(gff)], LENGTHS, "CDS") == [Region("chr1", 4, 8), Region("chr1", 4, 8, "a")]
