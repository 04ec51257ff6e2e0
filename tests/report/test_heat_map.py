import numpy as np

from dnadiff.formats.regions import Region
from dnadiff.report import heat_map
from dnadiff.report.heat_map import Saturated, collect, drawn


def result(pos, ref, alt, value=1.0, chrom="one"):
    return {"chrom": chrom, "pos": pos, "ref": ref, "alt": alt, "LLR": value, "information": 0.5}


def test_alleles_are_in_the_rows_of_their_bases():
    regions = [Region("one", 0, 4), Region("one", 2, 6), Region("two", 2, 3)]
    results = [
        result(1, "A", "C", -1.0),
        result(3, "G", "T", -2.0),
        result(2, "CG", "C", -3.0),
        result(3, "A", "T", -4.0, "two"),
    ]
    first, second, third = collect(results, regions)
    assert first.llr[0].tolist()[:2] == [0.0, -1.0] and first.bases == ["A", "N", "G", "N"]
    assert (
        first.llr[2, 3] == second.llr[0, 3] == -2.0 and first.llr[2, 4] == second.llr[0, 4] == -3.0
    )  # overlapping regions
    assert (
        third.llr[0, 3] == -4.0
        and np.isnan(third.llr[0, 4])
        and np.isfinite(second.information).tolist() == [True] + [False] * 3
    )


def test_the_first_deletions_of_a_record_have_their_places():
    (found,) = collect(
        [result(1, "AC", "C", -1.0), result(1, "AC", "A", -2.0)], [Region("one", 0, 2)]
    )
    assert found.llr[:, 4].tolist() == [-1.0, -2.0]
    (same,) = collect(
        [result(1, "AA", "A", -1.0)], [Region("one", 1, 2)]
    )  # either base: the same sequence
    assert same.llr[:, 4].tolist() == [-1.0]


def test_the_number_of_pictures_is_limited():
    regions = [
        Region("one", 0, heat_map.LARGEST + 1),
        *(Region("one", i, i + 9) for i in range(60)),
    ]
    assert drawn(regions) == regions[1:51]


def test_two_pages_in_one_folder_have_their_own_pictures(tmp_path):
    regions = [Saturated(Region("one", 0, 4)), Saturated(Region("one", 4, 9))]
    for name, saturated in zip(("a.html", "b.html"), regions):
        saturated.llr[:, :4], saturated.information[:] = 0.5, 1.0
        written = heat_map.write_heat_maps(tmp_path / name, [saturated], {})
        assert [path.name for path in written] == [f"{name[0]}_heat_map_1.png", name]
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.html",
        "a_heat_map_1.png",
        "b.html",
        "b_heat_map_1.png",
    }
