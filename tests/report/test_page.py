import re

import numpy as np
import pandas as pd

from dnadiff.plot import figure
from dnadiff.report import charts
from dnadiff.report.page import MAX_ROWS, Facts, Page, Picture, Section, Table, write


def drawn():
    with figure(3, 2) as (made, _):
        return made


def written(tmp_path, **parts):
    page = Page("Title", "The result in one sentence.", **parts)
    return write(page, tmp_path / "x.html").read_text(encoding="utf-8")


def test_paths_show_no_folders(tmp_path):
    path = "/home/someone/a.fa, /home/someone/b.fa, bundled:c.fa"
    facts = Facts("Data", {"path": path, "x": {"checkpoint": ["/a/b/c/d", "/a/e"]}, "_y_<i>": 1})
    shown = written(tmp_path, sections=[Section("Data", [facts, Facts("Nothing", {})])])
    assert "a.fa, b.fa, bundled:c.fa<" in shown and "Nothing" not in shown
    assert "checkpoint b/c/d, /a/e<" in shown and "someone" not in shown


def test_long_names_break_after_underscores_and_are_escaped(tmp_path):
    long = "the_name_of_a_column<i>.x&"
    cells = written(tmp_path, table=Table(("a", "b"), [("sample_10", long)]))
    broken = "the_<wbr>name_<wbr>of_<wbr>a_<wbr>column&lt;i&gt;.x&amp;"
    assert broken in cells and ">sample_10<" in cells


def test_cells_have_four_digits_and_sequences_letters_of_one_width(tmp_path):
    rows = [["a" * 20, -9.6, 1000.0, 1e-5], ["ACGTN" * 5, 0.0, 12.5, 1.25]]
    cells = written(tmp_path, table=Table(("name", "x", "y", "z"), rows))
    for text in ("-9.600", "1000", "1.000e-05", "0.000", "12.50", "1.250"):
        assert f">{text}</td>" in cells
    assert f"<code>{'ACGTN' * 5}</code>" in cells and f">{'a' * 20}</th>" in cells


def test_axes_of_points_fit_their_intervals_and_contain_0_if_it_is_asked_for():
    frame = pd.DataFrame({"model": ["a"], "bits": [1.9], "low": [1.8], "high": [2.0]})
    for zero in (False, True):
        drawn = charts.dots(frame, "bits", "model", ("low", "high"), zero=zero).to_dict()
        for layer in drawn["layer"]:
            assert layer["encoding"]["x"]["scale"]["zero"] is zero


def test_the_parts_of_a_page_have_a_fixed_order(tmp_path):
    page = written(
        tmp_path,
        pictures=[Picture("p", "a label", "a caption", drawn())],
        table=Table(["name", "bits"], [["first", 1.25], ["<b>", None]]),
        sections=[Section("Section one", ["a paragraph", Facts("Model", {"seed": 3})])],
        made={"checkpoint": "/a/b/c/d"},
        commands=["python -m dnadiff.x"],
    )
    marks = (
        "<h1>Title",
        "one sentence",
        'label="a label"',
        "a caption",
        "<table class",
        "Section one",
    )
    marks += (
        "a paragraph",
        "How it was made",
        "b/c/d",
        "python -m dnadiff.x",
        "Written by dnadiff",
    )
    places = [page.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "&lt;b&gt;" in page and "1.25" in page
    assert "unsafe-eval" not in page and "responsible-use" not in page and len(page) < 40_000


def test_charts_are_escaped_labeled_and_need_no_network(tmp_path):
    frame = pd.DataFrame(
        {"x": [1.0, 2.0, float("nan")], "y": [1, 2, 3], "name": ["</script>", "b", "c"]}
    )
    made = [
        charts.scatter(frame, "x", "y", "name"),
        charts.scatter(frame, "x", "y", "y"),
        charts.lines(frame, "x", "y", "name", band=("x", "y")),
        charts.dots(frame, "x", "name", ("x", "y")),
        charts.histogram(frame, "x", "name"),
    ]
    pictures = [Picture(f"p{i}", f"label {i}", "", chart) for i, chart in enumerate(made)]
    page = written(tmp_path, pictures=pictures, synthetic=True)
    specs = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert len(specs) == 5 and all(f"label {i}" in spec for i, spec in enumerate(specs))
    assert "NaN" not in "".join(specs) and "responsible-use" in page
    assert "connect-src" not in page and "default-src 'none'" in page
    assert page == written(tmp_path, pictures=pictures, synthetic=True)


def test_long_tables_and_charts_are_cut():
    rows = [[f"row {i}", i] for i in range(MAX_ROWS + 5)]
    table = Table(["name", "value"], rows, "All rows.")
    assert len(table.shown) == MAX_ROWS
    assert table.text == "All rows. The first 1,000 of 1,005 rows; the output has all."
    frame = pd.DataFrame({"x": range(20_001)})
    kept = charts.records(frame)
    assert len(kept) == charts.MAX_POINTS and (kept[0]["x"], kept[-1]["x"]) == (0, 20_000)


def test_names_of_columns_may_have_dots_and_brackets():
    frame = pd.DataFrame({"p.1": [0.1, 0.2], "x[a]": [1, 2]})
    spec = charts.scatter(frame, "p.1", "x[a]").to_dict()
    assert spec["encoding"]["x"] | {"scale": 0} == {
        "field": r"p\.1",
        "title": "p.1",
        "type": "quantitative",
        "scale": 0,
    }
    assert [each["field"] for each in spec["encoding"]["tooltip"]] == [r"p\.1", r"x\[a\]"]
    assert spec["datasets"][spec["data"]["name"]][0] == {"p.1": 0.1, "x[a]": 1}


def test_a_histogram_has_the_shares_of_each_group():
    frame = pd.DataFrame({"x": [0.0] * 3 + [8.0] + [4.0, np.nan], "name": [*"aaaab", "b"]})
    spec = charts.histogram(frame, "x", "name").to_dict()
    (values,) = spec["datasets"].values()
    assert [(each["x"], each["name"]) for each in values[3:]] == [(8.0, "a"), (4.0, "b")]
    bars, means = spec["layer"]
    assert bars["transform"][0]["groupby"] == ["name"]
    assert bars["encoding"]["y"]["field"] == "share"
    assert means["encoding"]["x"]["aggregate"] == "mean"


def test_numbers_are_aligned_on_the_right(tmp_path):
    table = Table(["name", "value", "text"], [["a", 1.5, "2"], ["b", None, "3"]], numbers=[2])
    page = written(tmp_path, table=table)
    assert '<th scope="col" class="number">value' in page and '<td class="number">1.500<' in page
    assert '<td class="number">3<' in page and '<th scope="row">a<' in page
