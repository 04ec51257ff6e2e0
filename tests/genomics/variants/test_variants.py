"""The command, its files, and the same from Python."""

import gzip
import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from pyarrow import parquet

import dnadiff
from dnadiff.formats.table import has_page_checksums
from dnadiff.genomics.variants.effects import RowScorer
from dnadiff.genomics.variants.variant import Edit, Sequences
from dnadiff.genomics.variants.work import training_part
from dnadiff.jobs.journal import ResumableOutput
from dnadiff.store.files import open_text
from dnadiff.weights import checkpoint

COLUMNS = [
    "chrom",
    "pos",
    "id",
    "ref",
    "alt",
    "LLR",
    "SE",
    "LLR_forward",
    "LLR_reverse",
    "entropy",
    "information",
]


@pytest.fixture
def inputs(tmp_path):
    """A genome of two records and a VCF file of every kind of variant."""
    draw = random.Random(1)
    two = "".join(draw.choices("ACGT", k=300))
    (tmp_path / "g.fa").write_text(
        f">chr1\n{'ACGTTGA' * 60}\n>chr2\n{two[:100]}nn{two[102:].lower()}\n"
    )
    rows = [
        f"chr1\t{pos}\tv{pos}\t{ref}\t{alt}\t.\tPASS\tDP=3;SE=1"
        for pos, ref, alt in (
            (8, "A", "C,*,T"),
            (15, "AC", "TT"),
            (22, "A", "ACC"),
            (29, "ACG", "A"),
            (36, "A", "<DUP>"),
        )
    ]
    rows += [
        f"chr2\t{pos}\t.\t{two[pos - 1]}\t{'A' if two[pos - 1] != 'A' else 'G'}\t.\t.\t.\tGT\t0/1"
        for pos in (1, 90, 300)
    ]
    rows = [f"{row}\tGT\t0/1" if row.count("\t") == 7 else row for row in rows]
    header = [
        "##fileformat=VCFv4.2",
        "##contig=<ID=chr1,length=420>",
        "##contig=<ID=chr2,length=300>",
        "##INFO=<ID=SE,Number=1,Type=Float>",
    ]
    header.append("#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tme")
    (tmp_path / "x.vcf").write_text("\n".join([*header, *rows]) + "\n")
    return ["vcf=x.vcf", "genome=g.fa", "block=4", "num_orders=2", "accelerator=cpu"]


def read(path):
    return pandas.read_csv(
        path, sep="\t", na_values=dict.fromkeys(["SE", "entropy"], "."), keep_default_na=False
    )


def test_a_vcf_file_gets_a_table(cli, trained, inputs, tmp_path):
    status, out, err = cli("variants", f"checkpoint={trained}", *inputs, "output=y.tsv", "L2=true")
    assert status == 0, err
    found = read("y.tsv")
    assert list(found) == [*COLUMNS, "L2"] and len(found) == 8
    assert found["alt"].tolist()[:5] == ["C", "T", "TT", "ACC", "A"]
    np.testing.assert_allclose(
        found["LLR"], (found["LLR_forward"] + found["LLR_reverse"]) / 2, atol=2e-6
    )
    assert found["SE"].isna().tolist() == [True, True, False, False, False, True, True, True]
    np.testing.assert_allclose(found["information"], 2 - found["entropy"] / math.log(2), atol=2e-6)
    assert (found["L2"] > 0).all() and "skipped: a symbolic allele" in out and "SNVs" in out
    about = json.loads((tmp_path / "y.tsv.json").read_text())
    assert (
        about["alleles"] == {"SNVs": 5, "MNVs": 1, "indels": 2}
        and about["skipped"]["a symbolic allele"] == 1
    )
    assert sorted(p.name for p in tmp_path.iterdir() if p.name[0] in ".y") == [
        "y.tsv",
        "y.tsv.json",
    ]


def test_rows_that_fail_a_filter_are_left_out_and_counted(cli, trained, inputs, tmp_path):
    text = (tmp_path / "x.vcf").read_text().replace("PASS", "q10;s50", 2)
    (tmp_path / "x.vcf").write_text(text)
    for name, chosen, number in (("y", "PASS", 5), ("z", "[PASS,s50]", 8)):
        given = f"filter={chosen}", f"output={name}.tsv", f"report={name}.html"
        status, _, err = cli("variants", f"checkpoint={trained}", *inputs, *given)
        assert status == 0, err
        assert len(read(f"{name}.tsv")) == number
        text = (tmp_path / f"{name}.html").read_text()
        assert f"{number} alleles in 8 rows: LLR (nats) from " in text
        assert ("FILTER is q10;s50" in text) == (name == "y") and "transition" in text
        skipped = json.loads((tmp_path / f"{name}.tsv.json").read_text())["skipped"]
        assert skipped.get("FILTER is q10;s50", 0) == (4 if name == "y" else 0)
    again = "filter=PASS", "output=z.tsv", "resume=true"
    status, _, err = cli("variants", f"checkpoint={trained}", *inputs, *again)
    assert status == 1 and "names other settings" in err
    (tmp_path / "t.tsv").write_text("chrom\tpos\tref\talt\nchr1\t8\tA\tC\n")
    for source, message in (("vcf=t.tsv", "and t.tsv is a table"), ("saturate=chr1:1-9", "vcf=")):
        given = "genome=g.fa", source, "filter=PASS", "output=w.tsv"
        status, _, err = cli("variants", f"checkpoint={trained}", *given)
        assert status == 1 and message in err and not (tmp_path / "w.tsv").exists()


def test_contig_lines_that_a_vcf_lacks_are_those_of_the_genome(cli, trained, inputs, tmp_path):
    text = (tmp_path / "x.vcf").read_text().replace("chr2\t", "2\t")
    one, two = "##contig=<ID=chr1,length=420>\n", "##contig=<ID=chr2,length=300>\n"
    assert one in text and two in text
    for name, without in (("y", two), ("z", one + two)):
        (tmp_path / "x.vcf").write_text(text.replace(without, ""))
        status, _, err = cli("variants", f"checkpoint={trained}", *inputs, f"output={name}.vcf.gz")
        assert status == 0, err
        lines = gzip.decompress((tmp_path / f"{name}.vcf.gz").read_bytes()).decode().split("\n")
        assert sorted(line for line in lines if line.startswith("##contig")) == [
            "##contig=<ID=2,length=300>",
            one.strip(),
        ]


def test_every_format_has_the_same_numbers(cli, trained, inputs):
    for name in ("y.tsv", "y.parquet", "y.vcf", "Y.VCF.GZ"):
        status, _, err = cli("variants", f"checkpoint={trained}", *inputs, f"output={name}")
        assert status == 0 and err.count("does not keep the INFO fields SE of x.vcf") == (
            "vcf" in name.lower()
        )
    table = read("y.tsv")
    pandas.testing.assert_frame_equal(pandas.read_parquet("y.parquet"), table, check_dtype=False)
    metadata = parquet.read_metadata("y.parquet")
    assert has_page_checksums(Path("y.parquet"), metadata, range(metadata.num_columns))
    with open_text("Y.VCF.GZ") as file, open("y.vcf") as plain:
        text = file.read()
        assert text == plain.read()
    lines = [line for line in text.splitlines() if not line.startswith("##")]
    assert len(lines) == 9 and lines[0].endswith("FORMAT\tme") and text.count("##INFO=<ID=SE,") == 1
    info = dict(cell.partition("=")[::2] for cell in lines[1].split("\t")[7].split(";"))
    assert info["DP"] == "3" and info["LLR"].split(",") == [
        f"{table.LLR[0]:.6f}",
        ".",
        f"{table.LLR[1]:.6f}",
    ]
    assert lines[5].split("\t")[7] == "DP=3" and lines[1].endswith("GT\t0/1")
    pysam = pytest.importorskip("pysam")
    with pysam.VariantFile("Y.VCF.GZ") as file:
        assert [record.pos for record in file] == [8, 15, 22, 29, 36, 1, 90, 300]


@pytest.mark.parametrize(
    "name",
    [
        "y.tsv",
        "y.vcf.gz",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("y.TSV.gz", "y.parquet")),
    ],
)
def test_a_stopped_run_resumes_to_the_same_bytes(name, cli, trained, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(RowScorer, "chunk", 3)
    more = {"y.tsv": ["sites_per_window=4"], "y.vcf.gz": ["phased=true"]}.get(name, [])
    args = [f"checkpoint={trained}", *inputs, *more]
    text = (tmp_path / "x.vcf").read_text()
    (tmp_path / "x.vcf").write_text(text.replace("0/1", "1|1"))
    assert cli("variants", *args, f"output=whole_{name}")[0] == 0
    append, calls = ResumableOutput.append, []

    def stop(self, *args, **notes):
        if len(calls) == (1 if "phased=true" in more else 2):
            raise KeyboardInterrupt
        calls.append(1)
        append(self, *args, **notes)

    with monkeypatch.context() as patch:
        patch.setattr(ResumableOutput, "append", stop)
        assert cli("variants", *args, f"output={name}")[0] == 130
    assert not (tmp_path / name).exists()
    status, _, err = cli("variants", *args, f"output={name}", "resume=true", "seed=2")
    assert status == 1 and "was started with seed=1, not 2" in err
    assert cli("variants", *args, f"output={name}", "resume=true")[0] == 0
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole_{name}").read_bytes()
    assert "complete already" in cli("variants", *args, f"output={name}", "resume=true")[1]
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_regions_are_saturated_and_drawn(cli, trained, inputs, tmp_path):
    (tmp_path / "r.bed").write_text("chr1\t30\t42\tr\n")
    args = [
        f"checkpoint={trained}",
        "saturate=r.bed",
        "genome=g.fa",
        "deletions=true",
        "block=2",
        "num_orders=2",
    ]
    status, out, err = cli(
        "variants", *args, "output=y.tsv", "report=pages/report.html", "sites_per_window=8"
    )
    assert status == 0, err
    found = read("y.tsv")
    assert len(found) == 12 * 4 and (found["ref"].str.len() == 2).sum() == 12
    page = (tmp_path / "pages" / "report.html").read_text()
    assert (
        "chr1:31-42" in page
        and (tmp_path / "pages" / "report_heat_map_1.png").read_bytes()[1:4] == b"PNG"
    )
    assert "error of several sites per window" in out and "8 of 8 sites that share one" in out
    # The alternatives of a site and the base itself add up to 1: LLR and entropy belong to one
    # distribution if one strand is read.
    args[-3:] = ["stranded=true"]
    assert cli("variants", *args, "output=one.tsv")[0] == 0
    (rows,) = [r for _, r in read("one.tsv").groupby("pos") if (r["pos"] == 35).all()]
    ratios = np.exp([0.0, *rows["LLR"][:3]])
    probs = ratios / ratios.sum()
    assert -(probs * np.log(probs)).sum() == pytest.approx(rows["entropy"].iloc[0], abs=1e-5)


def test_a_dependency_matrix_of_one_variant(cli, trained, inputs, tmp_path):
    (tmp_path / "one.tsv").write_text("chrom\tpos\tref\talt\n1\t50\tA\tC\n")
    args = [f"checkpoint={trained}", "genome=g.fa", "dependency=d.tsv", "dependency_span=5"]
    assert cli("variants", "vcf=one.tsv", "output=y.tsv", *args)[0] == 0
    found = read("d.tsv")
    assert (
        found["pos"].tolist() == [*range(45, 50), *range(51, 56)]
        and "".join(found["base"]) == "GTTGACGTTG"
    )
    assert (found[["A", "C", "G", "T"]].abs().sum(axis=1) > 0).any()
    for vcf, matrix, message in (
        (
            "x.vcf",
            "z.tsv",
            "dependency writes the matrix of a single variant, and there are 8 alleles",
        ),
        ("one.tsv", "z.txt", "dependency z.txt has another format; its name must end in .tsv"),
        ("one.tsv", "y2.tsv", "dependency y2.tsv is the output as well"),
        ("one.tsv", "one.tsv/d.tsv", "one.tsv is a file; choose another folder"),
        ("one.tsv", "d.tsv", "d.tsv exists; set overwrite=true"),
    ):
        status, _, err = cli(
            "variants", f"vcf={vcf}", "output=y2.tsv", *args[:-2], args[-1], f"dependency={matrix}"
        )
        assert (
            status == 1 and message in err and len(err.splitlines()) == 1
        )  # before anything is scored
    assert not list(tmp_path.glob("*y2*"))


def test_a_feature_chooses_the_rows_of_a_gtf_file(cli, trained, inputs, tmp_path):
    (tmp_path / "r.gtf").write_text(
        "chr1\tx\tgene\t20\t60\t.\t+\t.\t\nchr1\tx\tCDS\t31\t34\t.\t+\t0\t\n"
    )
    args = [f"checkpoint={trained}", "saturate=r.gtf", "feature=CDS", "genome=g.fa", "output=y.tsv"]
    status, _, err = cli("variants", *args)
    assert status == 0, err
    assert sorted(set(read("y.tsv")["pos"])) == [31, 32, 33, 34]


@pytest.mark.parametrize(
    ("variants", "key"),
    [
        ("vcf=one.tsv dependency_span=5", "dependency=d.tsv"),
        ("saturate=r.bed", "report=page.html"),
    ],
)
def test_a_file_that_is_missing_is_written_to_complete_scores(
    variants, key, cli, trained, inputs, tmp_path
):
    (tmp_path / "r.bed").write_text("chr1\t30\t34\n")
    (tmp_path / "one.tsv").write_text("chrom\tpos\tref\talt\n1\t50\tA\tC\n")
    args = [
        f"checkpoint={trained}",
        *variants.split(),
        "genome=g.fa",
        "output=y.tsv",
        key,
        "resume=true",
    ]
    made = tmp_path / key.partition("=")[2]
    assert cli("variants", *args)[0] == 0
    content = made.read_bytes()
    made.write_bytes(b"kept")
    out = cli("variants", *args)[1]
    # a page is written again
    assert "complete already" in out and (made.read_bytes() == b"kept") == ("tsv" in key)
    made.unlink()
    assert "complete already" in cli("variants", *args)[1] and made.read_bytes() == content


def test_genes_are_on_the_page_and_a_missing_file_is_refused_first(cli, trained, inputs, tmp_path):
    args = ["saturate=chr1:31-34", "genome=g.fa", "report=r.html", "output=y.tsv"]
    (tmp_path / "damaged.ckpt").write_text("not read")
    status, _, err = cli("variants", "checkpoint=damaged.ckpt", *args, "genes=absent.gtf")
    assert status == 1 and "absent.gtf" in err and err.count("\n") == 1
    (tmp_path / "g.gtf").write_text('1\tx\tgene\t1\t32\t.\t+\t.\tgene_id "mine";\n')
    assert cli("variants", f"checkpoint={trained}", *args, "genes=g.gtf")[0] == 0
    page = (tmp_path / "r.html").read_text()
    assert '"gene": "mine"' in page and '"genes \\u2192"' in page
    for more, place in (('gene_id "b1"; gene_name "thrX";', "gtf"), ("ID=b1;Name=thrX", "gff3")):
        (tmp_path / f"n.{place}").write_text(f"1\tx\tgene\t1\t32\t.\t+\t.\t{more}\n")
        more = ["overwrite=true", f"genes=n.{place}"]
        assert cli("variants", f"checkpoint={trained}", *args, *more)[0] == 0
        assert '"gene": "thrX"' in (tmp_path / "r.html").read_text()


def test_an_older_page_is_removed_if_there_is_nothing_to_show(cli, trained, inputs, tmp_path):
    pytest.importorskip("igv_notebook")
    (tmp_path / "b.html").write_text("of other variants")
    (tmp_path / "none.tsv").write_text("chrom\tpos\tref\talt\n1\t5\tG\t<DEL>\n")
    args = [f"checkpoint={trained}", "vcf=none.tsv", "genome=g.fa", "on_mismatch=skip"]
    status, _, err = cli("variants", *args, "output=y.tsv", "browser=b.html", "overwrite=true")
    assert status == 0 and "b.html is not written" in err, err
    assert not (tmp_path / "b.html").exists()


def test_a_report_that_cannot_be_written_is_refused_first(cli, trained, inputs, tmp_path):
    (tmp_path / "r.bed").write_text("chr1\t30\t34\n")
    args = [f"checkpoint={trained}", "saturate=r.bed", "genome=g.fa", "output=y.tsv"]
    status, _, err = cli("variants", *args, "report=r.bed/page.html")
    assert (
        status == 1
        and "r.bed is a file; choose another folder" in err
        and len(err.splitlines()) == 1
    )
    # pictures of another page, and files of other names, are not in the way
    for name in ("r_heat_map.png", "my_r_heat_map_1.png", "r_heat_map_x.png"):
        (tmp_path / name).touch()
    for name in ("r_heat_map_2.svg", "r_heat_map_1.png"):
        (tmp_path / name).write_bytes(b"kept")
        status, _, err = cli("variants", *args, "report=r.html")
        assert status == 1 and f"{name} exists; set overwrite=true" in err
        assert (tmp_path / name).read_bytes() == b"kept"
    assert not list(tmp_path.glob("*y.tsv*"))
    assert cli("variants", *args, "report=r.html", "overwrite=true")[0] == 0
    assert (tmp_path / "r_heat_map_1.png").read_bytes()[1:4] == b"PNG"


def test_a_table_becomes_a_vcf_file_that_can_be_read(cli, trained, inputs, tmp_path):
    (tmp_path / "t.tsv").write_text(
        "chrom\tpos\tref\talt\n1\t0\tN\t<DEL>\n1\t8\tA\tC,<DEL>\nMT\t3\tG\tT\n"
    )
    (tmp_path / "g.fa").write_text((tmp_path / "g.fa").read_text() + ">chrM\nACGTACGTACGT\n")
    args = [f"checkpoint={trained}", *inputs[1:]]
    assert cli("variants", *args, "vcf=t.tsv", "output=y.vcf.gz")[0] == 0
    with open_text("y.vcf.gz") as file:
        lines = file.read().splitlines()
    contigs = [
        "##contig=<ID=1,length=420>",
        "##contig=<ID=chr2,length=300>",
        "##contig=<ID=MT,length=12>",
    ]
    assert lines[1:4] == contigs and [line.split("\t")[0] for line in lines if line[0] != "#"] == [
        "1",
        "1",
        "MT",
    ]
    assert cli("variants", *args, "vcf=y.vcf.gz", "output=z.tsv")[0] == 0
    assert read("z.tsv")[["chrom", "alt"]].values.tolist() == [["1", "C"], ["MT", "T"]]
    pytest.importorskip("pysam")
    from pysam import bcftools

    bcftools.index("--tbi", "y.vcf.gz", catch_stdout=False)
    query = "%CHROM:%POS %REF>%ALT\n"
    assert bcftools.query("--format", query, "y.vcf.gz").split("\n")[:3] == [
        "1:0 N><DEL>",
        "1:8 A>C,<DEL>",
        "MT:3 G>T",
    ]
    assert (
        bcftools.query("--format", query, "--regions", "MT", "y.vcf.gz") == "MT:3 G>T\n"
        and bcftools.query.get_messages() == ""
    )


def test_an_unsorted_file_keeps_its_order(cli, trained, inputs, tmp_path):
    lines = (tmp_path / "x.vcf").read_text().splitlines(keepends=True)
    head = [line for line in lines if line[0] == "#"]
    (tmp_path / "z.vcf").write_text("".join([*head, *reversed(lines[len(head) :])]))
    args = [f"checkpoint={trained}", *inputs]
    assert cli("variants", *args, "output=x.tsv")[0] == 0
    status, _, err = cli("variants", *args, "vcf=z.vcf", "output=z.vcf.gz")
    assert status == 0 and "z.vcf is not sorted by position, so z.vcf.gz is not either" in err
    with open_text("z.vcf.gz") as file:
        rows = [line.split("\t") for line in file if line[0] != "#"]
    sorted_llr = read("x.tsv").groupby(["chrom", "pos"], sort=False)["LLR"].first()
    found = {
        (r[0], int(r[1])): float(r[7].partition("LLR=")[2].split(";")[0].split(",")[0])
        for r in rows
        if "LLR=" in r[7]
    }
    assert [row[1] for row in rows] == ["300", "90", "1", "36", "29", "22", "15", "8"]
    np.testing.assert_allclose([found[key] for key in sorted_llr.index], sorted_llr, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "chr1\t8\tv8\tA",
            "chr1\t8\tv8\tG",
            "REF differs from the genome in 1 of 8 rows: x.vcf: line 6: chr1:8 has REF G, the "
            "genome A",
        ),
        ("chr1\t36", "chr1\t422", "position 422 is not inside chr1"),
        ("chr2\t90", "chr2\t301", "position 301 is not inside chr2"),
        (
            "length=420",
            "length=421",
            "x.vcf: line 6: the header says that chr1 has 421 bases, and the genome has 420: a "
            "different assembly",
        ),
        ("TT\t", "TX\t", "is not an allele of nucleotides"),
        ("chr2\t90", "chr9\t90", "the genome lacks a contig: no record is called chr9"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    old, new, message, cli, trained, inputs, tmp_path
):
    text = (tmp_path / "x.vcf").read_text()
    assert old in text
    (tmp_path / "x.vcf").write_text(text.replace(old, new))
    status, _, err = cli("variants", f"checkpoint={trained}", *inputs, "output=y.tsv")
    assert status == 1 and message in err and len(err.strip().splitlines()) <= 2
    assert not (tmp_path / "y.tsv").exists() and not (tmp_path / "runs").exists()


def test_an_allele_longer_than_the_window_is_skipped_and_counted(cli, trained, inputs, tmp_path):
    text = (tmp_path / "x.vcf").read_text()
    (tmp_path / "x.vcf").write_text(text.replace("ACC\t", "A" * 70 + "\t"))
    status, out, err = cli("variants", f"checkpoint={trained}", *inputs, "output=y.vcf")
    assert status == 0 and "skipped: longer than the window of 64 bases" in out, err
    about = json.loads((tmp_path / "y.vcf.json").read_text())
    assert about["skipped"]["longer than the window of 64 bases"] == 1


def test_regions_on_the_other_strand_are_refused_for_one_strand_alone(
    cli, trained, inputs, tmp_path
):
    (tmp_path / "s.bed").write_text("chr1\t4\t9\tone\t0\t+\nchr1\t40\t44\ttwo\t0\t-\n")
    arguments = [
        f"checkpoint={trained}",
        *(each for each in inputs if not each.startswith("vcf=")),
        "saturate=s.bed",
        "output=y.tsv",
    ]
    status, _, err = cli("variants", *arguments, "stranded=true")
    assert (
        status == 1
        and "1 of 2 regions of saturate have strand -" in err
        and not (tmp_path / "y.tsv").exists()
    )
    assert cli("variants", *arguments)[0] == 0


def test_a_genome_without_the_contig_and_other_wrong_use(cli, trained, inputs, tmp_path):
    (tmp_path / "h.fa").write_text(">chr3\nACGT\n")
    for more, message in (
        (["genome=h.fa"], "the genome lacks a contig: no record is called chr1"),
        (["output=y.xyz"], "output y.xyz has no name of a known format"),
        (["saturate=r.bed"], "give either vcf="),
        (["deletions=true"], "deletions belongs to saturate"),
        (["feature=CDS"], "feature belongs to saturate"),
        (["variant_method=masked"], "variant_method masked compares alleles of equal length"),
        (["variant_method=log_prob"], "cannot use a masked diffusion model"),
        (["variant_method=window", "num_draws=7"], "num_draws 7 must be even"),
        (["sites_per_window=30"], "sites_per_window 30 leaves fewer than 8 bases"),
        (["resume=true"], "resume=true needs output="),
        (["dependency=d.txt"], "dependency d.txt has another format; its name must end in .tsv"),
    ):
        status, _, err = cli("variants", f"checkpoint={trained}", *inputs, *more)
        assert status == 1 and message in err, err


def test_mismatches_are_skipped_or_marked(cli, trained, inputs, tmp_path):
    text = (tmp_path / "x.vcf").read_text()
    (tmp_path / "x.vcf").write_text(text.replace("chr1\t8\tv8\tA", "chr1\t8\tv8\tG"))
    args = [f"checkpoint={trained}", *inputs]
    assert (
        cli("variants", *args, "output=skip.tsv", "on_mismatch=skip")[0] == 0
        and len(read("skip.tsv")) == 6
    )
    assert cli("variants", *args, "output=flag.tsv", "on_mismatch=flag")[0] == 0
    assert read("flag.tsv")["REF_mismatch"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert cli("variants", *args, "output=flag.vcf", "on_mismatch=flag")[0] == 0
    rows = [line for line in (tmp_path / "flag.vcf").read_text().splitlines() if line[0] != "#"]
    assert ["REF_mismatch" in row for row in rows] == [True] + [False] * 7


def test_variants_from_python(trained, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = dnadiff.load(trained, "cpu")
    rows = [("1", 8, "A", "C,T"), ("chr1", 15, "AC", "TT")]
    genome = {"chr1": "ACGTTGA" * 60}
    found = model.variants(rows, genome)
    assert list(found) == [*COLUMNS, "REF_mismatch", "reason"] and found["alt"].tolist() == [
        "C",
        "T",
        "TT",
    ]
    assert (found["reason"] == "").all() and found["LLR"].notna().all()
    frame = pandas.DataFrame(rows, columns=["chrom", "pos", "ref", "alt"])
    pandas.testing.assert_frame_equal(model.variants(frame, "g.fa"), found)
    whole = model.variants("x.vcf", "g.fa", L2=True)
    assert len(whole) == 10 and (whole["L2"].isna() == (whole["reason"] != "")).all()
    with pytest.raises(ValueError, match="REF differs"):
        model.variants([("1", 8, "C", "A")], genome)


def test_lists_of_alleles_and_missing_ones_are_scored_as_in_a_file(trained):
    model, genome = dnadiff.load(trained, "cpu"), {"1": "ACGTACGTTAGCTAGCATCGATCG"}
    expected = model.variants([("chr1", 3, "G", "A,C"), ("chr1", 4, "T", ".")], genome)
    assert expected["reason"].tolist() == ["", "", "no ALT (.)"]
    frame = pandas.DataFrame({"chrom": ["chr1"] * 2, "pos": [3, 4], "ref": ["G", "T"]})
    for both, none in (
        (["A", "C"], np.nan),
        (("A", "C"), None),
        (np.array(["A", "C"]), pandas.NA),
        ("A,C", ""),
        (["A", "C"], []),
    ):
        frame["alt"] = pandas.Series([both, none], dtype=object)
        for given in (frame, frame.to_dict("records"), list(frame.itertuples(index=False))):
            pandas.testing.assert_frame_equal(model.variants(given, genome), expected)


def test_info_fields_are_replaced_wherever_their_name_is_in_their_line(
    cli, trained, inputs, tmp_path
):
    text = (tmp_path / "x.vcf").read_text()
    (tmp_path / "x.vcf").write_text(text.replace("<ID=SE,Number=1", '<Number=1,Note="ID=x",ID=SE'))
    args = [f"checkpoint={trained}", *inputs, "output=y.vcf"]
    assert "does not keep the INFO fields SE of x.vcf" in cli("variants", *args)[2]
    assert (tmp_path / "y.vcf").read_text().count("ID=SE") == 1


def test_regions_may_name_chr1_as_1(cli, trained, inputs, tmp_path):
    (tmp_path / "r.bed").write_text("1\t30\t32\n")
    args = [f"checkpoint={trained}", "genome=g.fa", "saturate=[r.bed,'1:31-32',chr1:31-32]"]
    assert cli("variants", *args, "output=y.tsv")[0] == 0
    found = read("y.tsv")
    assert set(found["chrom"]) == {"chr1"} and found["pos"].tolist() == ([31] * 3 + [32] * 3) * 3


def test_skipped_alleles_are_rows_without_values_in_their_order(trained):
    genome = {
        "chr1": "ACGTTGA" * 60,
        "n": "ACGTN" + "ACGTTGCA" * 20 + "N" * 64,
        "short": "ACGTTGACCA",
    }
    variants = [
        {"chrom": "chr1", "pos": 8, "ref": "A", "alt": "<DEL>,C,*", "id": "rs1"},
        {"chrom": "n", "pos": 5, "ref": "A", "alt": "C"},
        {"chrom": "n", "pos": 165, "ref": "A", "alt": "AGG"},
        {"chrom": "short", "pos": 2, "ref": "CGTTGAC", "alt": "C"},
        {"chrom": "chr1", "pos": 8, "ref": "C", "alt": "T"},
    ]
    found = dnadiff.load(trained, "cpu").variants(
        variants, genome, on_mismatch="skip", stranded=True
    )
    assert found["reason"].tolist() == [
        "a symbolic allele",
        "",
        "* (a deletion in another row)",
        "N in the genome at REF",
        "N at the end of a window",
        "the record is too short for windows of equal length",
        "REF differs from the genome",
    ]
    assert found["LLR"].notna().tolist() == [False, True] + [False] * 5 and found["id"].tolist()[
        :4
    ] == ["rs1"] * 3 + ["."]
    assert found["alt"].tolist()[:3] == ["<DEL>", "C", "*"] and found["REF_mismatch"].tolist() == [
        False
    ] * 6 + [True]


def test_wrong_arguments_in_python_have_the_messages_of_the_command(trained):
    model, rows, genome = (
        dnadiff.load(trained, "cpu"),
        [("chr1", 8, "A", "C")],
        {"chr1": "ACGTTGA" * 60},
    )
    for arguments, message in (
        ({"on_mismatch": "no"}, "on_mismatch 'no' is not known; choose one of error, skip, flag"),
        (
            {"sites_per_window": 9},
            "sites_per_window 9 leaves fewer than 8 bases between the sites of a window of 64; set "
            "less",
        ),
        ({"sites_per_window": 0}, "sites_per_window 0 must be an integer of at least 1"),
        ({"window": 2.5}, "window 2.5 must be an integer of at least 1"),
        ({"batch_size": 0}, "batch_size 0 must be an integer of at least 1"),
        ({"seed": -1}, "seed -1 must be an integer of at least 0"),
        ({"stranded": "no"}, "stranded=no is neither true nor false"),
        ({"L2": 1}, "L2 1 must be true or false"),
        ({"method": "masked"}, "variant_method is a str, not a method; choose by_kind, masked"),
        ({"genome": 5}, "genome is of type int; give a sequence file"),
        (
            {"genome": {"chr1": "ACGT!"}},
            "genome: record chr1: letter '!' at position 5 is not a nucleotide",
        ),
        ({"variants": 5}, "variants is of type int; give a file"),
        ({"variants": [5]}, "variant 0 is 5; expected (chrom, pos, ref, alt)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            model.variants(**{"variants": rows, "genome": genome, **arguments})


def test_variants_of_the_training_part_are_counted(trained, tmp_path):
    loaded = checkpoint.load(trained)
    letters = "ACGTTGA" * 860
    part = training_part(loaded, Sequences({"one": letters, "two": "ACGT"}))
    assert part.known and [
        part.contains(Edit("one", at, "A", "C")) for at in (0, 4815, 4816, 6019)
    ] == [True, True, False, False]
    assert not part.contains(Edit("two", 0, "A", "C")) and part.contains(Edit("one", 4815, "", "C"))
    other = training_part(loaded, Sequences({"one": letters[:-7] + "CCCCCCC"}))
    assert not other.known and "not known" in other.note


def test_the_recorded_split_counts_variants_without_the_training_data(cli, tmp_path):
    loaded, lengths = checkpoint.load("human_chr20"), {"1": 249_250_621, "chr20": 63_025_520}
    part = training_part(loaded, SimpleNamespace(lengths=lengths))
    assert part.note == "split regions (bundled:human_chr20_GRCh37.split.bed); bases not compared"
    assert [
        part.contains(Edit(chrom, at, "A", "C"))
        for chrom, at in (("chr20", 0), ("chr20", 8_500_000), ("chr20", 9_500_000), ("1", 0))
    ] == [True, False, False, False]
    for other in ({"20": 64_444_167}, {"1": 63_025_520}, {}):  # GRCh38, and no chromosome 20
        part = training_part(loaded, SimpleNamespace(lengths=other))
        assert not part.known and part.note == (
            "not known (data is missing: this model was exported without the path of its data "
            "(human chr20 (GRCh37)))"
        )
    (tmp_path / "g.fa").write_text(f">20\n{'ACGTTGCA' * 10}\n")
    (tmp_path / "x.tsv").write_text("chrom\tpos\tref\talt\n20\t10\tC\tA\n")
    args = ["checkpoint=human_chr20", "vcf=x.tsv", "genome=g.fa", "window=32", "accelerator=cpu"]
    status, out, err = cli("variants", *args, "output=y.tsv")
    assert status == 0 and f"in the training part of the model  {part.note}\n" in out, err
    assert json.loads((tmp_path / "y.tsv.json").read_text())["training_part"] == part.note


def test_an_interrupted_gzip_is_one_file(tmp_path):
    output = ResumableOutput(tmp_path / "x.vcf.gz", {}, bgzip=True)
    output.append(b"a" * 100_000, 1)
    output.append(b"b" * 10, 1)
    output.finish()
    with gzip.open(tmp_path / "x.vcf.gz") as file:
        assert file.read() == b"a" * 100_000 + b"b" * 10
