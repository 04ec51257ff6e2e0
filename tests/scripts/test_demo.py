"""The demo fits its total time to the measured speed."""

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest

from dnadiff.report.page import Page

PATH = Path(__file__).parents[2] / "scripts" / "demo.py"
sys.path.insert(0, str(PATH.parent))  # of demo_report
spec = importlib.util.spec_from_file_location("demo", PATH)
demo = importlib.util.module_from_spec(spec)
sys.modules["demo"] = demo  # dataclasses look up their module
spec.loader.exec_module(demo)


def stages(speed):
    return [speed.designing, speed.variants, speed.evaluation, speed.finetuning]


@pytest.mark.parametrize("slowness", [1, 2, 4, 8])
def test_stages_after_training_leave_its_share_of_ten_minutes(slowness):
    speed = demo.Speed(
        start=5 * min(slowness, 3),
        training=60_000 / slowness,
        forward=160_000 / slowness,
        short=40_000 / slowness,
    )
    available = 0.95 * 600 - speed.report - demo.TRAINING_SHARE * 600
    chosen = demo.choose(available, stages(speed))
    assert sum(stage(chosen) for stage in stages(speed)) <= available or chosen == demo.LADDER[-1]


def test_a_slower_machine_never_gets_more():
    speeds = [
        demo.Speed(5 * s, 60_000 / s, 160_000 / s, 40_000 / s) for s in (0.5, 1, 2, 4, 8, 100)
    ]
    rungs = [demo.LADDER.index(demo.choose(200, stages(speed))) for speed in speeds]
    assert rungs == sorted(rungs)
    assert rungs[0] == 0 and rungs[-1] == len(demo.LADDER) - 1


def test_every_rung_costs_less_than_the_one_before():
    speed = demo.Speed(5, 30_000, 80_000, 20_000)
    costs = [sum(stage(settings) for stage in stages(speed)) for settings in demo.LADDER]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) == len(costs)


def test_a_later_choice_never_grows_again():
    assert (
        demo.choose(1e9, stages(demo.Speed(1, 1e6, 1e6, 1e6)), demo.at_most(demo.LADDER[3]))
        == demo.LADDER[3]
    )


def test_what_is_shortened_is_named():
    assert demo.LADDER[0].shortened(demo.LADDER[0]) == []
    assert demo.Settings(seeds=1, num_draws=2).shortened(demo.LADDER[0]) == [
        "2 draws per window instead of 4",
        "1 seed of fine-tuning instead of 3",
    ]


def test_the_page_has_designs_variants_and_the_pages_of_commands(tmp_path):
    real = "A" * 30 + "CCCC" + "G" * 30
    designs = demo.Designs([real, real.replace("CCCC", "CCTT")], real, 30, 34, "chr:31-34")
    assert designs.identity() == 0.75 and designs.frequencies().shape == (4 + 2 * 12, 4)
    rows = [("chr", 31, "C", alt, -0.5, 0.2) for alt in "AGT"]
    effects = pd.DataFrame(rows, columns=["chrom", "pos", "ref", "alt", "LLR", "information"])
    parts = [Page("Held-out likelihood", "1.9 bits per base.")]
    page = sys.modules["demo_report"].write_demo_page(
        tmp_path / "r.html", designs, effects, parts, ["python -m dnadiff.x"]
    )
    text = page.read_text()
    assert "<svg" in text and "75 % of the designed bases" in text and "1.9 bits" in text
