from dnadiff.report.page import ENVIRONMENT


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
