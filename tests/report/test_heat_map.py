import re

import pandas

from dnadiff.formats.regions import Region
from dnadiff.report import variants
from dnadiff.report.page import write
from dnadiff.report.variants import heat_maps

COLUMNS = ("ref", "alt", "LLR", "information")


def alleles(first=1, size=4, score="LLR"):
    return [
        {"chrom": "one", "pos": pos, "ref": "A", "alt": alt, score: -0.5, "information": 0.2}
        for pos in range(first, first + size)
        for alt in "CGT"
    ]


def draw_regions(path, regions, rows, about, genes=()):
    """Write the page of some alleles, if there is one."""

    def read(chrom, pos):
        frame = pandas.DataFrame(rows(), columns=None if rows() else ["chrom", "pos", *COLUMNS])
        return frame[frame["chrom"].isin(chrom) & frame["pos"].isin(pos)]

    page = heat_maps(path, read, regions, about, genes)
    if page is not None:
        write(page, path)


def test_the_number_of_pictures_is_limited(tmp_path):
    wanted = {}

    def read(**values):
        wanted.update(values)
        return pandas.DataFrame([], columns=["chrom", "pos", *COLUMNS])

    regions = [
        Region("one", 0, variants.LARGEST + 1),
        *(Region("one", i, i + 9) for i in range(60)),
    ]
    assert heat_maps(tmp_path / "x.html", read, regions, {}) is None
    # the last one is from 49 to 58, and a deletion may be written with the base before a region
    assert wanted == {"chrom": {"one"}, "pos": {*range(59)}}
    wanted.clear()
    assert heat_maps(tmp_path / "x.html", read, regions[:1], {}) is None and not wanted


def test_two_pages_in_one_folder_have_their_own_pictures(tmp_path):
    for name in ("a", "b"):
        draw_regions(tmp_path / f"{name}.html", [Region("one", 0, 4)], alleles, {"method": name})
    files = {f"{name}{end}" for name in "ab" for end in (".html", "_heat_map_1.png")}
    assert {path.name for path in tmp_path.iterdir()} == files | {
        "a_heat_map_1.svg",
        "b_heat_map_1.svg",
    }


def test_a_page_of_regions_names_the_strongest_variant(tmp_path):
    rows = alleles()
    rows[4]["LLR"] = -2.0
    regions = [Region("one", 0, 4), Region("one", 2, 4), Region("two", 0, 9)]
    genes = [Region("one", 1, 3, "thr</script>", "+")]
    draw_regions(tmp_path / "x.html", regions, lambda: rows, {"checkpoint": "/a/b/c/d/e"}, genes)
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "Of 12 variants of 2 regions, one:2 A&gt;G has the strongest effect: LLR -2.00" in page
    assert "thr</script>" not in page and "Row -" not in page and "c/d/e" in page
    assert "/a/b" not in page and page.count('class="chart"') == 2


def test_deletions_and_contributions_are_explained_if_they_are_there(tmp_path):
    rows = alleles(score="difference")
    rows.append({**rows[0], "ref": "AA", "alt": "A", "difference": 1.0, "information": None})
    for row in rows:
        del row["information"]
    draw_regions(tmp_path / "x.html", [Region("one", 0, 4)], lambda: rows, {})
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "Row -: the deletion of the base" in page and "its contribution" in page


def test_a_page_without_variants_is_not_written(tmp_path):
    draw_regions(tmp_path / "x.html", [Region("one", 0, 4)], list, {})
    assert not list(tmp_path.iterdir())


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    draw_regions(tmp_path / "x.html", [Region("one", 0, 4)], alleles, {})
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["']?http|@import|url\(["']?http""", body)
    assert "default-src 'none'" in page
