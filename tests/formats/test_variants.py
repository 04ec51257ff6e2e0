import base64
import gzip

import numpy as np
import pandas
import pytest

from dnadiff.formats.regions import BcfSource, Region, Rows, TableSource, VcfSource, open_source
from dnadiff.genomics.variants.variant import Saturation, Sequences
from dnadiff.jobs.journal import bgzip_blocks
from dnadiff.store.files import BGZIP_END

HEADER = [
    "##fileformat=VCFv4.2",
    "##contig=<ID=chr1,length=10>",
    "##contig=<ID=chr2>",
    "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO",
]
ROWS = [
    "chr1\t2\trs1\tC\tT,<DEL>\t.\tPASS\tAF=0.1",
    "chr1\t2\t.\tC\tG\t.\t.\t.",
    "chr2\t1\t.\tA\tC\t.\t.\t.",
]


def vcf(path, header=HEADER, rows=ROWS):
    path.write_text("\n".join([*header, *rows]) + "\n")
    return path


def table(path, rows="chr1\t3\tG\tA\n"):
    path.write_text(f"chrom\tpos\tref\talt\n{rows}")
    return path


def test_a_vcf_file_is_read_in_its_order(tmp_path):
    for path in (vcf(tmp_path / "x.vcf"), tmp_path / "x.vcf.gz", tmp_path / "y.vcf.gz"):
        if path.suffix == ".gz":
            text = (tmp_path / "x.vcf").read_bytes()
            path.write_bytes(
                gzip.compress(text) if path.name[0] == "x" else bgzip_blocks(text) + BGZIP_END
            )
        source = open_source(path)
        assert isinstance(source, VcfSource)
        for _ in range(2):  # as often as needed
            found = [(r.chrom, r.pos, r.id, r.ref, r.alts) for r in source]
            assert found[0] == ("chr1", 2, "rs1", "C", ("T", "<DEL>")) and len(found) == 3
        assert [r.where.endswith(f"line {n}") for n, r in enumerate(source, 5)] == [True] * 3


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (HEADER, ["chr1\t5\t.\tA"], "line 5 has 4 columns, the header has 8"),
        (
            HEADER,
            ["chr1\t-1\t.\tA\tC\t.\t.\t."],
            "line 5: the position '-1' is not an integer of at least 1",
        ),
        (HEADER[:3], [], "ends without the line #CHROM"),
        (HEADER[:3], ROWS, "ends without the line #CHROM"),
        (HEADER[1:], ROWS, "does not begin with ##fileformat=VCF"),
    ],
)
def test_wrong_files_are_refused(header, rows, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        list(open_source(vcf(tmp_path / "x.vcf", header, rows)))


def test_a_truncated_bgzip_file_is_refused(tmp_path):
    text = vcf(tmp_path / "x.vcf").read_bytes()
    for content in (bgzip_blocks(text), (bgzip_blocks(text) + BGZIP_END)[:-40]):
        (tmp_path / "x.vcf.gz").write_bytes(content)
        with pytest.raises(ValueError, match="damaged or cut short"):
            list(open_source(tmp_path / "x.vcf.gz"))


@pytest.mark.parametrize(
    "line",
    [
        "<ID=chr2,length=12345>",
        "<length=12345,ID=chr2>",
        "<length=12345,ID=chr2,species=Homo sapiens>",
        "<ID=chr2, length=12345>",
        "<ID = chr2 , length = 12345 >",
        '<ID=chr2,length="12345">',
        '<assembly="a, b,length=9,ID=x",ID=chr2,md5=00,length=12345>',
        '<assembly="x\\",length=9",ID=chr2,length=12345>',
        '<assembly="<x>",length=12345,ID="chr2">',
        "<ID=chr2,URL=ftp://x/y.fa,length=12345,IDX=3>",
    ],
)
def test_a_contig_line_has_its_fields_in_any_order(line, tmp_path):
    source = open_source(vcf(tmp_path / "x.vcf", [HEADER[0], f"##contig={line}", HEADER[-1]]))
    assert source.contigs == {"chr2": 12345}


def test_contigs_have_the_length_that_the_header_declares(tmp_path):
    assert open_source(vcf(tmp_path / "x.vcf")).contigs == {"chr1": 10, "chr2": 0}
    assert open_source(table(tmp_path / "x.tsv")).contigs == {}


def test_a_table_needs_four_columns(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("name\tCHROM\tpos\tALT\tref\tid\nx\tchr1\t3\tA,C\tG\trs2\n")
    (row,) = open_source(path)
    assert row[1:6] == ("chr1", 3, "rs2", "G", ("A", "C"))
    path.write_text("chrom\tpos\tref\nchr1\t3\tG\n")
    with pytest.raises(ValueError, match="has no column alt; give a VCF"):
        TableSource(path)
    with pytest.raises(ValueError, match="line 2: the position 'x'"):
        list(TableSource(table(path, "chr1\tx\tG\tA\n")))


def test_a_file_of_blank_lines_has_no_columns(tmp_path):
    (tmp_path / "v.tsv").write_text("\n \n")
    with pytest.raises(ValueError, match=r"v\.tsv has no column chrom, pos, ref, alt; give a VCF"):
        open_source(tmp_path / "v.tsv")


@pytest.mark.parametrize(
    ("delimiter", "word"), [(",", "commas"), (";", "semicolons"), (" ", "spaces"), ("|", "bars")]
)
def test_a_table_of_variants_with_another_delimiter_is_named(tmp_path, delimiter, word):
    path = tmp_path / "v.csv"
    path.write_text(delimiter.join(["#CHROM", "pos", "ref", "alt"]) + "\n")
    message = rf"v\.csv is separated by {word}, not by '\\t'; write it with tabs"
    with pytest.raises(ValueError, match=message):
        open_source(path)


def test_bcf_needs_pysam(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pysam", None)
    (tmp_path / "x.bcf").write_bytes(DAMAGED_BCF)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[vcf\]'"):
        BcfSource(tmp_path / "x.bcf")


DAMAGED_BCF = base64.b64decode(
    "H4sIBAAAAAAA/wYAQkMCANwAdc/LCoJAGAVgczc9ReV2CC/RqgnMaWjA0tSibdmfCt4Yp6C3LysXEe2/czhn4TBV"
    "HfYURdMuWQ6XShRHSfYOu03GZl/TGHejZUBmnBLfDkNMoYlFVsusKsnIzvPBMyVBNIP62DRwHmFOD0SfP5NxVcos"
    "eSXjVBg4hzKRKZnquv4PmR2adMj4RVaHrA6ZLeIb5r0I9fHmWpxAEANH9xoILyUkIL6nf5a2/c4q8NbI90LEKQqW"
    "DNluhLY720Xv86it7isPA+0tqCoBAAAfiwgEAAAAAAD/BgBCQwIAoQBTZ0CA40DMCMYN9YwMTGAx9zIjAwPxEHFH"
    "QQZBRkFmdSTl2ozYlBsDlbuLh2Aq78eq3ASo3FncHaJcE0n5Z6BaFjTl5impOe7Ojo7O4s6o5jPidb0jNuW4XQ93"
    "DrJy3K6He1YTSTlO1zs6A12PFrWYTKS5ngmv67Eqx+16eMxqIinH7Xp3R7gGANWFuBw6AgAAH4sIBAAAAAAA/wYA"
    "QkMCABsAAwAAAAAAAAAAAA=="
)


# The second number of the block's extra field is another one.
@pytest.mark.parametrize("at", [None, 14])
def test_a_damaged_bcf_file_is_not_called_missing(tmp_path, at):
    pytest.importorskip("pysam")
    content = bytearray(DAMAGED_BCF)
    if at is not None:
        content[at] = 10
    (tmp_path / "v.bcf").write_bytes(content)
    with pytest.raises(ValueError, match=r"v\.bcf is damaged or cut short.*again") as caught:
        [*open_source(tmp_path / "v.bcf")]
    assert "No such file" not in str(caught.value)


def test_bcf_has_the_rows_of_the_vcf_file(tmp_path):
    pytest.importorskip("pysam")
    header = [
        *HEADER[:1],
        "##contig=<length=10,ID=chr1>",
        *HEADER[2:-1],
        '##INFO=<ID=AF,Number=A,Type=Float,Description="x">',
        HEADER[-1],
    ]
    rows = [ROWS[0].replace("AF=0.1", "AF=0.5,0.25"), *ROWS[1:]]
    from pysam import bcftools

    bcftools.view(
        "-Ob",
        "-o",
        str(tmp_path / "x.bcf"),
        str(vcf(tmp_path / "x.vcf", header, rows)),
        catch_stdout=False,
    )
    source = open_source(tmp_path / "x.bcf")
    assert isinstance(source, BcfSource) and [r.text for r in source] == rows
    assert source.contigs == {"chr1": 10, "chr2": 0}
    content = (tmp_path / "x.bcf").read_bytes()
    (tmp_path / "x.bcf").write_bytes(content[:-28])
    with pytest.raises(ValueError, match="damaged or cut short"):
        list(open_source(tmp_path / "x.bcf"))


def test_saturation_has_every_snv_and_every_deletion():
    genome = Sequences({"a": "ACNG"})
    found = [
        (r.pos, r.ref, r.alts) for r in Saturation([Region("a", 0, 4)], genome, deletions=True)
    ]
    assert found == [
        (1, "AC", ("C",)),
        (1, "A", ("C", "G", "T")),
        (1, "AC", ("A",)),
        (2, "C", ("A", "G", "T")),
        (3, "NG", ("N",)),
        (4, "G", ("A", "C", "T")),
    ]  # sorted, as VCF must be
    assert sum(len(r.alts) for r in Saturation([Region("a", 1, 4)], genome)) == 6


def test_rows_in_memory():
    found = list(Rows([("chr1", 3, "A", "C,G"), {"chrom": "2", "pos": 1, "ref": "A", "alt": "T"}]))
    assert [(r.chrom, r.pos, r.alts) for r in found] == [("chr1", 3, ("C", "G")), ("2", 1, ("T",))]
    with pytest.raises(ValueError, match=r"variant 0 is .* expected \(chrom, pos, ref, alt\)"):
        Rows([("chr1", 3, "A")])
    with pytest.raises(ValueError, match="variant 0: the position 'x'"):
        Rows([("chr1", "x", "A", "C")])


@pytest.mark.parametrize(
    "missing", [None, float("nan"), np.float32("nan"), pandas.NA, pandas.NaT], ids=repr
)
@pytest.mark.parametrize("column", ["chrom", "pos", "ref"])
def test_a_missing_value_in_memory_is_no_allele(column, missing):
    variant = {"chrom": "chr1", "pos": 3, "ref": "A", "alt": "C"} | {column: missing}
    for rows in (
        [variant],
        [tuple(variant.values())],
        pandas.DataFrame([variant], dtype=object).to_dict("records"),
    ):
        with pytest.raises(
            ValueError, match=rf"variant 0 is .* without {column}; expected \(chrom"
        ):
            Rows(rows)


@pytest.mark.parametrize(
    ("alt", "alleles"),
    [
        (["A", "C"], ("A", "C")),
        (("A", "C"), ("A", "C")),  # as pysam
        (np.array(["A", "C"]), ("A", "C")),
        (np.array(["A", "C"], object), ("A", "C")),
        (pandas.Series(["A", "C"]), ("A", "C")),
        (pandas.array(["A", None], dtype="string"), ("A", ".")),
        (["A,C", "T"], ("A", "C", "T")),
        (["<DEL>", "G[chr2:5["], ("<DEL>", "G[chr2:5[")),
        (np.str_("A,C"), ("A", "C")),
        (np.array("A"), ("A",)),
        *(
            (none, (".",))
            for none in ("", ".", None, float("nan"), pandas.NA, pandas.NaT, [], (), [None], [""])
        ),
    ],
    ids=repr,
)
def test_alternative_alleles_are_text_a_list_or_missing(alt, alleles):
    rows = [("chr1", 3, "G", alt)], [{"chrom": "chr1", "pos": 3, "ref": "G", "alt": alt}]
    frame = pandas.DataFrame({"chrom": ["chr1"], "pos": [3], "ref": ["G"], "alt": [alt]})
    frames = frame.to_dict("records"), frame.to_records(index=False), frame.itertuples(index=False)
    for each in (*rows, *frames):
        assert Rows(each).rows[0][1:6] == ("chr1", 3, ".", "G", alleles)


def test_a_row_without_the_column_alt_is_refused():
    with pytest.raises(ValueError, match=r"variant 0 is .* without alt; expected \(chrom, pos"):
        Rows([{"chrom": "chr1", "pos": 3, "ref": "A", "id": "x"}])


@pytest.mark.parametrize("row", ["chr1", b"chr1", ("chr1", 3, "A", "C", "x"), 5])
def test_a_row_of_another_form_is_refused(row):
    with pytest.raises(ValueError, match=r"variant 0 is .*; expected \(chrom, pos, ref, alt\)"):
        Rows([row])


def test_bytes_are_text_and_names_of_records_may_be_numbers():
    row = Rows([(b"1", 3, b"G", b"C,T"), (1, 3, "G", [b"C"])]).rows
    assert [r[1:6] for r in row] == [("1", 3, ".", "G", a) for a in (("C", "T"), ("C",))]
    assert Sequences({1: "ACGT"}).lengths == {"1": 4}


def test_rows_of_a_data_frame_may_have_the_column_names_of_a_vcf_file():
    row = Rows([{"#CHROM": "chr1", "POS": 3, "ID": "rs1", "REF": "A", "ALT": "C,G"}]).rows[0]
    assert row[1:6] == ("chr1", 3, "rs1", "A", ("C", "G"))
