import re

import pandas as pd
import pytest

from dnadiff.options.base import Reported
from dnadiff.options.command import command_names, named
from dnadiff.plot.style import panel
from dnadiff.report import charts
from dnadiff.report.page import ENVIRONMENT, MAX_ROWS, Facts, Page, Picture, Section, Table, write
from dnadiff.store.objects import imported


def test_paths_show_no_folders():
    facts = ENVIRONMENT.get_template("parts.html.j2").module.facts
    shown = facts(
        "Data",
        {
            "path": "/home/someone/a.fa, /home/someone/b.fa, bundled:c.fa",
            "x": {"checkpoint": ["/a/b/c/d", "/a/e"]},
        },
    )
    assert (
        "a.fa, b.fa, bundled:c.fa<" in shown
        and "checkpoint b/c/d, /a/e<" in shown
        and "someone" not in shown
    )


def written(tmp_path, **parts):
    page = Page("Title", "The result in one sentence.", **parts)
    return write(page, tmp_path / "x.html").read_text(encoding="utf-8")


def test_the_parts_of_a_page_have_a_fixed_order(tmp_path):
    page = written(
        tmp_path,
        pictures=[Picture("p", "a label", "a caption", figure=panel(lambda axes: None))],
        table=Table(["name", "bits"], [["first", 1.25], ["<b>", None]], links={(0, 0): "#p"}),
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
    assert '<a href="#p">first</a>' in page and "&lt;b&gt;" in page and "1.25" in page
    assert "unsafe-eval" not in page and "responsible-use" not in page and len(page) < 40_000


def test_charts_are_escaped_labeled_and_need_no_network(tmp_path):
    frame = pd.DataFrame(
        {"x": [1.0, 2.0, float("nan")], "y": [1, 2, 3], "name": ["</script>", "b", "c"]}
    )
    made = [
        charts.scatter(frame, "x", "y", "name"),
        charts.scatter(frame, "x", "y", "y", link="name"),
        charts.lines(frame, "x", "y", "name", band=("x", "y"), log=True),
        charts.bars(frame, "x", "name", interval=("x", "y")),
        charts.histogram(frame, "x", "name"),
    ]
    pictures = [Picture(f"p{i}", f"label {i}", "", chart=chart) for i, chart in enumerate(made)]
    page = written(tmp_path, pictures=pictures, synthetic=True)
    specs = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert len(specs) == 5 and all(f"label {i}" in spec for i, spec in enumerate(specs))
    assert "NaN" not in "".join(specs) and "responsible-use" in page
    assert "connect-src" not in page and "default-src 'none'" in page
    assert page == written(tmp_path, pictures=pictures, synthetic=True)


def test_long_tables_and_charts_are_cut():
    rows = [[f"row {i}", i] for i in range(MAX_ROWS + 5)]
    table = Table(["name", "value"], rows, "All rows.")
    assert len(table.shown) == MAX_ROWS and table.aligned == {1}
    assert table.text == "All rows. The first 1,000 of 1,005 rows; the output has all."
    frame = pd.DataFrame({"x": range(20_001)})
    kept = charts.records(frame)
    assert len(kept) == charts.MAX_POINTS and (kept[0]["x"], kept[-1]["x"]) == (0, 20_000)


def test_a_picture_is_one_figure_or_chart_with_a_label():
    with pytest.raises(ValueError, match="picture 'p'"):
        Picture("p", "", "", figure=panel(lambda axes: None))
    with pytest.raises(ValueError, match="either a figure or a chart"):
        Picture("p", "label", "")


def test_every_command_with_a_report_has_its_page():
    for name in command_names():
        if issubclass(named(name).options, Reported):
            assert callable(imported(f"dnadiff.report.{name}").page)
