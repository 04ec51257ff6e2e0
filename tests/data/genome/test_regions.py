import contextlib
import gzip
import importlib.util
import logging
from pathlib import Path

import numpy as np
import pytest

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.genome.genome import Genome, _kept
from dnadiff.data.records import Interval
from dnadiff.data.splits import ChromosomeSplit, RegionSplit
from dnadiff.formats.regions import (
    Region,
    is_gff,
    read_bed,
    read_gtf,
    read_regions,
    record_of,
    records_of,
)

formats = importlib.util.module_from_spec(
    spec := importlib.util.spec_from_file_location(
        "formats", Path(__file__).with_name("formats.py")
    )
)
spec.loader.exec_module(formats)


def write(folder, text, name="r.bed"):
    (folder / name).write_text(text)
    return folder / name


def test_bed_row_is_half_open_and_gtf_row_is_not(make_genome, tmp_path):
    genome = make_genome(chr1="ACGTACGT")
    (region,) = read_bed(write(tmp_path, "chr1\t0\t4\n"), genome.lengths)
    assert genome.tokenizer.decode(genome.window(region.chrom, region.start, region.end)) == "ACGT"
    coding = 'chr1\tx\tCDS\t5\t8\t.\t-\t0\tgene_id "g1"; transcript_id "t1"\n'
    exon = "chr1\tx\texon\t1\t2\t.\t+\t.\tID=e1;Parent=t1\n"
    gtf = write(tmp_path, coding + exon, "r.gtf")
    assert read_gtf(gtf, feature="CDS") == [Region("chr1", 4, 8, "g1", "-")]
    assert read_gtf(gtf)[1] == Region("chr1", 0, 2, "e1", "+")


def test_headers_comments_blank_lines_and_gzip_are_read(tmp_path):
    text = (
        '#c\ntrack name="x"\nbrowser position chr1\n\nchr1\t1\t5\tname with '
        "spaces\t0\t-\r\nchr1 7 9 b 0 .\n"
    )
    (tmp_path / "r.bed.gz").write_bytes(gzip.compress(text.encode()))
    assert read_bed(tmp_path / "r.bed.gz") == [
        Region("chr1", 1, 5, "name with spaces", "-"),
        Region("chr1", 7, 9, "b"),
    ]


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


@pytest.mark.parametrize(
    ("records", "meant"),
    [
        (["1", "MT"], {"1": "1", "chr1": "1", "M": "MT", "chrM": "MT", "chrMT": "MT"}),
        (["chr1", "chrM"], {"1": "chr1", "chr1": "chr1", "MT": "chrM", "M": "chrM"}),
        (["1", "chr1"], {"1": "1", "chr1": "chr1", "chrchr1": "chr1", "chrX": None}),
        # hg19 has both mitochondria, of different lengths
        (["chrM", "chrMT"], {"M": "chrM", "MT": "chrMT", "chrMT": "chrMT"}),
        (["MT", "chrMT"], {"chrM": None, "M": None, "MT": "MT"}),
        (["Mt", "x"], {"MT": None, "chrx": "x"}),
        (
            ["human:chr1", "human:MT"],
            {"human:1": "human:chr1", "human:chrM": "human:MT", "1": None},
        ),
    ],
)
def test_names_mean_records_with_or_without_chr(records, meant):
    assert {name: record_of(name, records) for name in meant} == meant


def test_chr1_is_1_in_every_file_and_string_of_regions(tmp_path):
    lengths, found = {"1": 100, "chrM": 50}, [Region("1", 0, 4), Region("chrM", 8, 9)]
    bed = write(tmp_path, "chr1\t0\t4\nMT\t8\t9\n")
    assert read_bed(bed, lengths) == read_bed(bed, lengths, skip_unknown=True) == found
    gtf = "".join(
        f"{c}\tx\tgene\t{s + 1}\t{e}\t.\t.\t.\t\n" for c, s, e in (("chr1", 0, 4), ("M", 8, 9))
    )
    assert read_gtf(write(tmp_path, gtf, "r.gtf"), lengths=lengths) == found
    assert read_regions(["chr1:1-4", "MT:9-9"], lengths) == found
    assert read_regions("M", lengths) == [Region("chrM", 0, 50)]
    with pytest.raises(ValueError, match=r"line 1 has the region 1:0-101, which ends beyond 1"):
        read_bed(write(tmp_path, "chr1\t0\t101\n"), lengths)
    around = write(
        tmp_path,
        "chrMT\tx\tregion\t1\t50\t.\t.\t.\tIs_circular=true\nMT\tx\tgene\t40\t60\t.\t.\t.\t\n",
        "c.gff",
    )
    assert read_gtf(around, lengths=lengths) == [Region("chrM", 0, 50)]


def test_chr1_is_1_in_genomes_splits_and_blacklists(tmp_path):
    path = tmp_path / "g.fa"
    path.write_text("".join(f">{name}\n{'ACGTTGCA' * 20}\n" for name in ("1", "2", "MT")))
    genome = Genome(path)
    np.testing.assert_array_equal(genome.window("chr2", 3, 9), genome.window("2", 3, 9))
    assert Genome(path, ["chrM", "chr1"]).names == ["1", "MT"]
    lengths = list(genome.lengths.values())
    parts = ChromosomeSplit("chr2", ["M"])(genome.names, lengths)
    assert [[each.record for each in parts[part]] for part in ("train", "valid", "test")] == [
        [0],
        [1],
        [2],
    ]
    with pytest.raises(
        ValueError, match=r"data\.split\.valid and data\.split\.test both name 1; a"
    ):
        ChromosomeSplit("1", "chr1")(genome.names, lengths)
    bed = write(tmp_path, "chr1\t0\t160\ttrain\nchrMT\t0\t80\tvalid\nM\t80\t160\ttest\n")
    assert RegionSplit(bed)(genome.names, lengths) == {
        "train": [Interval(0, 0, 160)],
        "valid": [Interval(2, 0, 80)],
        "test": [Interval(2, 80, 160)],
    }
    data = GenomeDataModule(
        path=path,
        length=16,
        batch_size=1,
        split=RegionSplit(bed),
        blacklist=write(tmp_path, "chr1\t16\t160\n", "black.bed"),
    )
    data.prepare()
    assert [(i.record, i.start, i.end) for i in data.intervals["train"]] == [(0, 0, 16)]


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="contains no region"):
        read_bed(write(tmp_path, "# nothing\n"))


def test_bundled_coding_sequences_begin_with_start_codons():
    genome = Genome("bundled:ecoli_K12_MG1655.fa.gz")
    regions = read_bed("bundled:ecoli_K12_MG1655.CDS.bed.gz", genome.lengths)
    codons = [
        genome.tokenizer.decode(genome.window(r.chrom, r.start, r.end, r.strand)[:3])
        for r in regions
    ]
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
        ("chr1:8-5", "'chr1:8-5' has the region chr1:8-5, whose end is not after its start"),
        ("chr1:0-5", "starts before the record"),
        ("chr1:90-101", r"ends beyond chr1 \(100 bases\)"),
        ("2:5-8", r"no record is called 2; the records are chr1"),
        (
            "chr1-5",
            "is not a file, a region chrom:first-last or the name of a record; write "
            "chr1:1001-2000",
        ),
        ("nothing.bed", "does not exist"),
    ],
)
def test_a_place_that_is_none_is_named(text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_regions(text, LENGTHS)


def test_files_are_told_apart_by_their_names(tmp_path):
    bed = write(tmp_path, "chr1\t4\t8\n")
    gff = write(
        tmp_path,
        "chr1\tx\tCDS\t5\t8\t.\t.\t0\tID=a\nchr1\tx\texon\t1\t9\t.\t.\t0\tID=b\n",
        "r.gff3",
    )
    assert read_regions(bed, LENGTHS) == [Region("chr1", 4, 8)]
    assert read_regions([str(bed), str(gff)], LENGTHS, "CDS") == [
        Region("chr1", 4, 8),
        Region("chr1", 4, 8, "a"),
    ]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["all.bed"], "all.bed is BED"),
        (["rows.txt"], "rows.txt is BED"),
        (["chr1:5-8", "all.bed"], "chr1:5-8 is not a file"),
        (["chr1"], "chr1 is"),
    ],
)
def test_a_feature_without_a_gff_file_is_refused(tmp_path, monkeypatch, names, kind):
    monkeypatch.chdir(tmp_path)
    for name in ("all.bed", "rows.txt"):
        write(tmp_path, "chr1\t4\t8\n", name)
    assert read_regions(names, LENGTHS)
    with pytest.raises(
        ValueError,
        match=f"^feature 'CDS' chooses rows of a GTF or GFF file, and {kind}.*; leave feature out",
    ):
        read_regions(names if len(names) > 1 else names[0], LENGTHS, "CDS")


def test_an_unknown_strand_of_gff_is_none_and_that_of_bed_is_refused(tmp_path):
    gff = write(tmp_path, "chr1\tRefSeq\tgene\t5\t8\t.\t?\t.\tID=a\n", "r.gff3")
    assert read_gtf(gff) == read_regions(gff, LENGTHS) == [Region("chr1", 4, 8, "a", ".")]
    with pytest.raises(
        ValueError, match=r"line 1 has the strand '\?'; '\+', '-' and '\.' are allowed"
    ):
        read_bed(write(tmp_path, "chr1\t4\t8\ta\t0\t?\n"))


def test_a_contig_may_be_called_as_a_header_begins(tmp_path):
    text = (
        "track name=x\nbrowser position "
        "chr1:1-9\ntrack1\t1\t5\ntrack\t2\t6\nbrowserA\t0\t9\nbrowser 3 "
        "7\ntrack\ttype=bed\tuse=1\n"
    )
    names = [(r.chrom, r.start, r.end) for r in read_bed(write(tmp_path, text))]
    assert names == [("track1", 1, 5), ("track", 2, 6), ("browserA", 0, 9), ("browser", 3, 7)]
    gff = write(
        tmp_path,
        "trackA\tx\tCDS\t5\t8\t.\t.\t0\tID=a\nbrowser\tx\tCDS\t1\t2\t.\t.\t0\tID=b\n",
        "r.gff3",
    )
    assert [r.chrom for r in read_gtf(gff)] == ["trackA", "browser"]


@pytest.mark.parametrize("start", ["##FASTA\n>chr1\n", ">chr1\n"])
def test_the_sequences_that_gff_may_carry_are_not_rows(tmp_path, start):
    gff = write(
        tmp_path,
        f"##gff-version 3\nchr1\tx\tCDS\t5\t8\t.\t+\t0\tID=a\n{start}ACGTACGT\nACGT ACGT\n",
        "r.gff3",
    )
    assert read_gtf(gff) == [Region("chr1", 4, 8, "a", "+")]


def test_bgzip_of_regions_cut_between_two_blocks_is_noticed(tmp_path):
    (tmp_path / "r.bed.gz").write_bytes(formats.bgzip(b"chr1\t1\t5\n" * 100)[:-28])
    with pytest.raises(ValueError, match=r"r\.bed\.gz is damaged or cut short: it is bgzip"):
        read_bed(tmp_path / "r.bed.gz")


@pytest.mark.parametrize(
    "text", ["chr1:,-5", "chr1:5-,", "chr1:,-,", 1.5, True, [None], {"chr1": 2}]
)
def test_what_is_no_region_is_named(text):
    with pytest.raises(ValueError, match=r"(write chr1:1001-2000|is no region; give a file)"):
        read_regions(text, LENGTHS)


def test_a_number_may_be_the_name_of_a_record():
    assert read_regions(20, {"20": 7}) == read_regions([20], {"20": 7}) == [Region("20", 0, 7)]


def test_rows_of_other_records_may_be_left_out_with_a_warning(tmp_path, caplog):
    bed = write(tmp_path, "chr1\t0\t4\nchrX\t0\t9\nchr1\t5\t6\n")
    with caplog.at_level(logging.WARNING):
        assert read_bed(bed, {"chr1": 10, "chr2": 5}, skip_unknown=True) == [
            Region("chr1", 0, 4),
            Region("chr1", 5, 6),
        ]
    assert (
        "r.bed: line 2: no record is called chrX; the records are chr1, chr2; found were chr1; "
        "rows of other records" in caplog.text
    )
    for lengths, message in (
        ({"chr1": 5}, "ends beyond chr1"),
        ({"chr2": 9}, "no record is called chr1, chrX; the records are chr2"),
        ({"chr1": 9, "X": 8}, "line 2 has the region X:0-9, which ends beyond X"),
    ):
        with pytest.raises(ValueError, match=message):
            read_bed(bed, lengths, skip_unknown=True)


class Counted(str):
    """A name that counts how often it is looked at."""

    looks = 0

    def __eq__(self, other):
        Counted.looks += 1
        return str.__eq__(self, other)

    def __hash__(self):
        Counted.looks += 1
        return str.__hash__(self)


@pytest.mark.parametrize(
    "how", [lambda names: records_of(names, names, "here"), lambda names: _kept(names, names)]
)
def test_many_names_are_looked_up_in_linear_time(how):
    names = [Counted(f"contig{i}") for i in range(1000)]
    Counted.looks = 0
    how(names)
    assert 0 < Counted.looks < 20 * len(names)


def test_every_damaged_bit_of_a_compressed_gff_with_sequences_is_noticed(tmp_path):
    rows = "".join(f"c\tx\tgene\t{i}\t{i + 50}\t.\t+\t.\tID=g{i}\n" for i in range(1, 20))
    content = gzip.compress((rows + "##FASTA\n>c\n" + "ACGT" * 50 + "\n").encode(), mtime=0)
    path = tmp_path / "x.gff3.gz"
    path.write_bytes(content)
    regions = read_gtf(path)
    for bit in range(0, 8 * len(content), 3):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            assert read_gtf(path) == regions, (
                bit
            )  # bits of the header without a meaning, such as the time, are accepted


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        (
            "r.bed",
            "chr1\t0\t4\ta\t0\t+\nchr1\t2\t6\tb\n",
            "line 2 has 4 columns, the first row has 6",
        ),
        (
            "r.gff",
            "c\tx\tCDS\t5\t8\t.\t+\t0\tID=a\nc\tx\tCDS\t5\t8\t.\t+\t0\n",
            "line 2 has 8 columns, the first row has 9",
        ),
    ],
)
def test_a_row_with_missing_fields_is_refused(tmp_path, name, rows, message):
    with pytest.raises(ValueError, match=message):
        (read_bed if name == "r.bed" else read_gtf)(write(tmp_path, rows, name))


@pytest.mark.parametrize("number", ["+1", "1_0", "\u0663", "1e1", "", "1" * 400])
def test_positions_are_plain_integers(tmp_path, number):
    with pytest.raises(ValueError, match=r"line 1 has the positions .*, which are not integers"):
        read_bed(write(tmp_path, f"c\t{number}\t40\n", "r.bed"))


def test_millions_of_blank_lines_are_refused(tmp_path):
    few, many = tmp_path / "few.bed", tmp_path / "many.bed"
    few.write_text("chr1\t1\t5\n" + "\n" * 1_000_000 + "chr1\t7\t9\n")
    many.write_text("chr1\t1\t5\n" + " \n" * 1_000_001 + "chr1\t7\t9\n")
    assert len(read_bed(few)) == 2
    with pytest.raises(ValueError, match=r"many\.bed has 1,000,000 blank lines in a row; remove"):
        read_bed(many)


def test_a_feature_that_no_row_has_is_named_with_those_that_are_there(tmp_path):
    (tmp_path / "x.gtf").write_text("c\tx\texon\t3\t9\t.\t+\t.\t\nc\tx\tCDS\t3\t9\t.\t+\t0\t\n")
    with pytest.raises(
        ValueError,
        match=r"x\.gtf has no row with the feature 'cds' in its third column; it has exon, CDS$",
    ):
        read_gtf(tmp_path / "x.gtf", feature="cds")


def test_features_across_the_end_of_a_circular_record_are_left_out_with_a_warning(tmp_path, caplog):
    declared = "c\tx\tregion\t1\t100\t.\t+\t.\tID=c;Is_circular=true\n"
    genes = "".join(
        f"c\tx\tgene\t{first}\t{last}\t.\t+\t.\tID=g{first}\n"
        for first, last in ((5, 8), (90, 110), (95, 101))
    )
    with caplog.at_level(logging.WARNING):
        assert read_gtf(write(tmp_path, declared + genes, "c.gff3"), "gene", {"c": 100}) == [
            Region("c", 4, 8, "g5", "+")
        ]
    assert (
        len(caplog.records) == 1
        and "c.gff3: 2 features cross the end of a circular record" in caplog.text
        and "c:90-110" in caplog.text
    )
    with pytest.raises(
        ValueError,
        match=r"line 2 has the region c:90-110, which ends beyond c \(100 bases\); records are "
        r"read as linear",
    ):
        read_gtf(write(tmp_path, genes, "l.gff3"), "gene", {"c": 100})
    with pytest.raises(ValueError, match="ends beyond c"):  # not across the end
        read_gtf(
            write(tmp_path, declared + "c\tx\tgene\t101\t120\t.\t+\t.\tID=g\n", "b.gff3"),
            "gene",
            {"c": 100},
        )


@pytest.mark.parametrize(
    "path",
    ["https://h/genes.gtf.gz?download=1", "cached:https://h/genes.GFF3?x=1", "s3://b/genes.gff"],
)
def test_the_query_of_an_address_does_not_hide_the_kind_of_a_file(path):
    assert is_gff(path) and not is_gff("https://h/genes.bed?from=x.gtf")


@pytest.mark.parametrize("name", ["t.bed", "t.gtf", "t.gff3"])
def test_transcripts_are_spliced_from_blocks_and_from_exons(tmp_path, name):
    """The same two transcripts, whose exons are [2, 5), [7, 8) and [11, 14), and [2, 5)."""
    exons = (("+", 3, 5, "a"), ("-", 12, 14, "b"), ("-", 8, 8, "b"), ("-", 3, 5, "b"))
    rows = {
        "t.bed": "c\t2\t5\ta\t0\t+\t2\t5\t0\t1\t3,\t0,\n"
        "c\t2\t14\tb\t0\t-\t2\t14\t0\t3\t3,1,3\t0,5,9\n",
        "t.gtf": 'c\tx\tgene\t1\t16\t.\t+\t.\tgene_id "g"\n'
        + "".join(
            f'c\tx\texon\t{first}\t{last}\t.\t{strand}\t.\tgene_id "g"; transcript_id "{t}"\n'
            for strand, first, last, t in exons
        ),
        "t.gff3": "".join(
            f"c\tx\texon\t{first}\t{last}\t.\t{strand}\t.\tID=e{first};Parent={t}\n"
            for strand, first, last, t in exons
        ),
    }[name]
    first, second = read_regions(write(tmp_path, rows, name), {"c": 16}, spliced=True)
    assert first == Region("c", 2, 5, "a", "+", ((2, 5),))
    assert second == Region("c", 2, 14, "b", "-", ((2, 5), (7, 8), (11, 14)))
    assert [first.size, second.size] == [3, 7]
    assert second.pieces() == [(11, 14), (7, 8), (2, 5)]
    assert second.pieces(2, 5) == [(11, 12), (7, 8), (4, 5)]
    assert second.part(2, 5) == Region("c", 4, 12, "b", "-", ((4, 5), (7, 8), (11, 12)))
    assert second._replace(strand="+").pieces(2, 5) == [(4, 5), (7, 8), (11, 12)]
    assert read_regions(write(tmp_path, rows, name), {"c": 16})[-1].blocks == ()


def test_an_exon_of_gff_belongs_to_each_of_its_parents(tmp_path):
    rows = "c\tx\texon\t1\t2\t.\t+\t.\tParent=a,b\nc\tx\texon\t5\t6\t.\t+\t.\tParent=b\n"
    found = read_gtf(write(tmp_path, rows, "x.gff"), spliced=True)
    assert [(r.name, r.blocks) for r in found] == [("a", ((0, 2),)), ("b", ((0, 2), (4, 6)))]


def test_a_transcript_with_an_exon_across_the_end_of_a_circular_record_is_left_out(tmp_path):
    rows = "c\tx\tregion\t1\t9\t.\t+\t.\tID=c;Is_circular=true\n" + "".join(
        f"c\tx\texon\t{first}\t{last}\t.\t+\t.\tParent={name}\n"
        for first, last, name in ((1, 2, "a"), (4, 5, "b"), (8, 11, "b"))
    )
    assert [
        r.name for r in read_gtf(write(tmp_path, rows, "x.gff"), None, {"c": 9}, spliced=True)
    ] == ["a"]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("r.bed", "c\t0\t9\n", "r.bed: line 1 has 3 columns, and spliced=true reads the blocks"),
        *(
            ("r.bed", f"c\t0\t9\tn\t0\t+\t0\t9\t0\t{blocks}\n", "not 2 ascending blocks")
            for blocks in ("2\t3\t0", "2\t3,3\t0,5", "2\t3,3\t1,6", "2\t5,5\t0,4", "2\t3,3,3\t0,6")
        ),
        ("r.gtf", 'c\tx\texon\t1\t2\t.\t+\t.\tgene_id "g"\n', "line 1 has no transcript_id or"),
        ("r.gtf", 'c\tx\tCDS\t1\t2\t.\t+\t.\tgene_id "g"\n', "no row with the feature 'exon'"),
        (
            "r.gff",
            "c\tx\texon\t1\t2\t.\t+\t.\tParent=t\nc\tx\texon\t4\t5\t.\t-\t.\tParent=t\n",
            "the transcript t has exons on several strands",
        ),
    ],
)
def test_rows_that_cannot_be_spliced_are_refused(tmp_path, name, rows, message):
    with pytest.raises(ValueError, match=message):
        read_regions(write(tmp_path, rows, name), {"c": 9}, spliced=True)


def test_spliced_without_a_file_of_exons_is_refused(tmp_path):
    message = "^spliced=true joins exons of GTF, GFF and BED12 files, not of chr1:5-8; leave"
    with pytest.raises(ValueError, match=message):
        read_regions("chr1:5-8", LENGTHS, spliced=True)
    gtf = 'chr1\tx\texon\t5\t8\t.\t+\t.\ttranscript_id "t";\n'
    assert (
        len(read_regions(["chr1:5-8", write(tmp_path, gtf, "r.gtf")], LENGTHS, spliced=True)) == 2
    )
