from functools import partial

from dnadiff.report.page import ENVIRONMENT, overview, rendered
from dnadiff.report.suite import accuracy_differences


def test_overview_is_1200_pixels_wide_and_repeatable():
    differences = [{"a": "x", "b": "y", "difference": 0.05, "low": 0.02, "high": 0.08}]
    draw = 2 * [partial(accuracy_differences, finetune={"differences": differences})]
    first, second = (rendered(overview(draw), "png") for _ in range(2))
    assert first == second and int.from_bytes(first[16:20]) == 1200


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
