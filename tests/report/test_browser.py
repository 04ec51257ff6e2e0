"""Genome browsers with tracks and variants of commands."""

import base64
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from dnadiff.formats.tracks import write_track
from dnadiff.genomics.variants.work import PLACE
from dnadiff.options.base import Result
from dnadiff.predict import PredictOptions
from dnadiff.report import browser, variants
from dnadiff.report.page import write
from dnadiff.score import ScoreOptions
from dnadiff.variants import VariantsOptions


@pytest.fixture(autouse=True)
def igv():
    pytest.importorskip("igv_notebook")


def decoded(page):
    """The bases, the other files of a page by the names of their tracks, and the first place."""
    config = page.pictures[0].content
    addresses = {each["name"]: each["url"] for each in config["tracks"]}
    addresses["bases"] = config["reference"]["fastaURL"]
    found = {k: base64.b64decode(x.partition(",")[2]).decode() for k, x in addresses.items()}
    return found.pop("bases"), found, config["locus"]


@pytest.mark.parametrize("ending", ["bedgraph", "bw"])
def test_a_page_has_the_bases_the_track_and_the_regions(tmp_path, ending, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "g.fa").write_text(">one\nACGTNACGTT\n>two\nTTTT\n")
    (tmp_path / "r.bed").write_text("one\t2\t6\ta\t0\t-\n")
    track = tmp_path / f"x.{ending}"
    if ending == "bw":
        pytest.importorskip("pyBigWig")
    write_track(track, {"one": 10, "two": 4}, [("one", [(2, 3, 0.5), (3, 6, -1.25)])])
    given = {"genome": str(tmp_path / "g.fa"), "regions": str(tmp_path / "r.bed")}
    options = ScoreOptions(
        checkpoint="ecoli", per_base=f"~/{track.name}", browser="b.html", **given
    )
    page = browser.page(Result({}, (tmp_path / "s.tsv",)), options)
    bases, files, locus = decoded(page)
    assert bases == ">one\nACGTNACGTT\n" and locus == "one:1-157"
    rows = [line.split("\t") for line in files.pop(track.name).splitlines()]
    assert [(*r[:3], float(r[3])) for r in rows] == [
        ("one", "2", "3", 0.5),
        ("one", "3", "6", -1.25),
    ]
    assert files == {"regions": "one\t2\t6\ta\n"}
    text = write(page, tmp_path / "b.html").read_text()
    assert "connect-src data: blob:" in text and "default-src 'none'" in text
    assert json.loads(re.search(r'application/json">(.*?)</script>', text)[1])["tracks"]


@pytest.fixture
def page_of(tmp_path):
    """page_of(rows, ending): the page of variants of a genome with the record chr1."""

    def make(rows, ending="tsv"):
        (tmp_path / "g.fa").write_text(">chr1\nACGTNACGTT\n")
        path = tmp_path / f"v.{ending}"
        frame = pd.DataFrame(rows, columns=[*PLACE, "LLR"]).astype({"pos": int, "LLR": float})
        if ending == "tsv":
            frame.to_csv(path, sep="\t", index=False)
        else:
            frame.to_parquet(path)
        genome = str(tmp_path / "g.fa")
        options = VariantsOptions(checkpoint="ecoli", vcf="x.vcf", genome=genome, browser="b.html")
        return browser.page(Result({}, (path,)), options)

    return make


@pytest.mark.parametrize("chrom", ["1", "chr1"])
def test_variants_are_a_vcf_with_the_names_of_the_genome(page_of, chrom):
    page = page_of([(chrom, 2, "v", "C", "T", -1.5), (chrom, 9, ".", "TT", "T", 0.25)])
    bases, files, locus = decoded(page)
    assert bases == ">chr1\nACGTNACGTT\n" and locus == "chr1:1-152"
    assert files["v.tsv"].splitlines()[2:] == [
        "chr1\t2\tv\tC\tT\t.\t.\tLLR=-1.5",
        "chr1\t9\t.\tTT\tT\t.\t.\tLLR=0.25",
    ]


def test_windows_are_those_of_the_strongest_variants(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    number = browser.PLACES + 10
    (tmp_path / "g.fa").write_text(f">one\n{'ACGT' * 2_000_000}\n")
    (tmp_path / "v.txt").write_text("chrom\tpos\tref\talt\none\t1\tA\tC\n")
    rows = [("one", 1 + 30_000 * i, ".", "A", "C", -float(i)) for i in range(number)]
    frame = pd.DataFrame(rows, columns=[*PLACE, "LLR"])
    frame.to_csv("v.tsv", sep="\t", index=False)
    options = VariantsOptions(
        checkpoint="ecoli", vcf="v.txt", genome="g.fa", browser="b c.html", report="p/r.html"
    )
    content = {"rows": number, "skipped": {}, "without_value": 0, "alleles": {}}
    content |= {"training_part": "none", "settings": {"window": 64}}
    result = Result(content, (tmp_path / "v.tsv",))
    bases, files, locus = decoded(browser.page(result, options))
    last = 30_000 * (number - 1)
    window = f"one_{last - 9_999}_{last + 10_000}"
    assert locus == f"{window}:9851-10151" and bases.startswith(f">{window}\n")
    places = [line.split("\t")[:2] for line in files["v.tsv"].splitlines()[2:]]
    assert [window, "10001"] in places and len(places) == browser.PLACES
    # Every place of the table is one of theirs.
    text = write(variants.page(result, options), tmp_path / "r.html").read_text()
    found = re.findall(r'<a href="([^"]+)">one:([\d,]+)</a>', text)
    assert len(found) == variants.STRONGEST == browser.PLACES
    assert found[0] == (f"../b%20c.html#one:{last + 1:,}", f"{last + 1:,}")


@pytest.mark.parametrize("ending", ["tsv", "parquet"])
def test_without_rows_there_is_no_page(page_of, ending, caplog):
    assert page_of([], ending) is None
    assert f"v.{ending} has no rows to show; b.html is not written" in caplog.text


def test_a_row_that_ends_where_a_window_begins_is_not_in_it():
    rows = pd.DataFrame({"chrom": "a", "start": [0, 4, 9], "end": [4, 9, 12], "value": 1.0})
    windows = {"a_5_9": ("a", 4, 9)}
    assert browser.inside(rows, windows, "bedgraph") == "a_5_9\t0\t5\t1\n"
    places = pd.DataFrame({"chrom": "a", "start": [3, 4, 8, 9]})
    lines = browser.inside(places, windows, "vcf").splitlines()
    assert lines[2:] == ["a_5_9\t1", "a_5_9\t5"]


def test_of_larger_records_the_surroundings_of_the_first_rows_are_shown():
    starts = np.array([10, 20, 300_000, 320_000, 9_999_990])
    rows = pd.DataFrame({"chrom": "big", "start": starts, "end": starts + 5, "value": 1.0})
    rows.loc[len(rows)] = ["small", 3, 4, 2.0]
    windows = browser.windows_of(rows, {"big": 10_000_000, "small": 9})
    assert windows == {
        "big_1_10000": ("big", 0, 10_000),
        "big_290001_310000": ("big", 290_000, 310_000),
        "big_310001_330000": ("big", 310_000, 330_000),
        "big_9990001_10000000": ("big", 9_990_000, 10_000_000),
        "small": ("small", 0, 9),
    }
    lines = browser.inside(rows, windows, "bedgraph").splitlines()
    assert lines[2:] == [
        "big_290001_310000\t10000\t10005\t1",
        "big_310001_330000\t10000\t10005\t1",
        "big_9990001_10000000\t9990\t9995\t1",
        "small\t3\t4\t2",
    ]
    many = pd.DataFrame({"chrom": "big", "start": np.arange(0, 9_000_000, 20_000)})
    assert len(browser.windows_of(many, {"big": 10_000_000})) == browser.PLACES


def test_a_browser_needs_a_track_and_a_page():
    given = {"checkpoint": "x", "input": "x.fa"}
    for options, key in ((ScoreOptions, "per_base"), (PredictOptions, "track")):
        with pytest.raises(ValueError, match=f"browser=b.html shows {key}=; give it too"):
            options(**given, browser="b.html")
    with pytest.raises(ValueError, match=r"browser b.htm has another format"):
        ScoreOptions(**given, per_base="x.bedgraph", browser="b.htm")
    with pytest.raises(ValueError, match=r"browser=b.html is for sequences .* t.csv.gz is a table"):
        PredictOptions(checkpoint="x", input="t.csv.gz", track="x.bw", browser="b.html")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("score", ("input=x.fa", "per_base=x.bedgraph", "report=b.html", "browser=./b.html")),
        ("variants", ("genome=x.fa", "saturate=one:1-4", "browser=run/report.html")),
    ],
)
def test_two_pages_are_two_files(cli, tmp_path, name, given):
    (tmp_path / "x.fa").write_text(">one\nACGT\n")
    status, _, err = cli(name, "checkpoint=ecoli", "hydra.run.dir=run", *given)
    assert status == 1 and "report and browser are the same file" in err.splitlines()[-1]
    assert not list(tmp_path.rglob("*.html"))


def test_without_the_extra_nothing_is_computed(tmp_path, without):
    (tmp_path / "x.fa").write_text(">one\nACGT\n")
    given = ["checkpoint=ecoli", "input=x.fa", "per_base=x.bedgraph", "browser=b.html"]
    code = f"{without('igv_notebook')}from dnadiff.score import main\nmain({given})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "pip install -e '.[browser]'" in last, done.stderr
    assert [path.name for path in tmp_path.glob("*.*")] == ["x.fa"]
