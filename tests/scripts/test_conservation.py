"""The parts of scripts/studies/conservation.py that need no trained network."""

import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "studies"))
import conservation

from dnadiff.data.alignment import write_alignment
from dnadiff.diffusion.vocab import CHANNELS


def test_scores_of_columns_are_log_ratios_of_both_alleles(tmp_path):
    columns = np.zeros((90, CHANNELS))
    columns[40, :4], columns[40, 4:8] = np.log([0.1, 0.2, 0.3, 0.4]), np.log([0.7, 0.1, 0.1, 0.1])
    columns[:, 8], columns[40, 9] = -1, np.log(3)
    zeros = np.zeros(90, np.uint8)
    aligned = write_alignment(tmp_path / "x.aln", {"x": 90}, zeros, zeros[None], columns)
    row = {"record": "x", "position": 40, "ref": "A", "alt": "T"}
    found = conservation.column_scores(aligned, pandas.DataFrame([row]))
    assert found["mixture"][0] == pytest.approx(np.log(4), abs=0.01)
    assert found["frequencies"][0] == pytest.approx(-np.log(7), abs=0.01)
    assert found["depth"][0] == 2 and found["rate"][0] == -1


def test_auroc_is_given_for_groups_with_enough_items_of_both_classes():
    number = 2 * conservation.FEW
    table = pandas.DataFrame({"positive": [True, False] * number, "unit": np.arange(2 * number)})
    scores = {"mixture": np.zeros(2 * number), "other": table.positive.to_numpy()}
    groups = {"all": table.unit >= 0, "few": table.unit < number // 2, "one": table.positive}
    rows = conservation.aurocs(scores, table, groups)
    assert list(rows["other"]) == ["all"]
    assert rows["other"]["all"]["value"] == 1 and rows["mixture"]["all"]["value"] == 0.5
    assert rows["other"]["all"]["minus"]["mixture"] == {"value": 0.5, "low": 0.5, "high": 0.5}


@pytest.mark.parametrize(
    ("text", "kept"), [("ATGAAATAA", True), ("ATGTAATAA", False), ("ATGAAAAAA", False)]
)
def test_a_reading_frame_has_one_stop_at_its_end(text, kept):
    assert conservation.keeps_frame(conservation.bases(text)) == kept


def test_a_table_has_a_row_for_each_score_of_a_finished_piece(tmp_path):
    made = conservation.Study(tmp_path, {"quick": True})
    interval = {"value": 0.9, "low": 0.8, "high": 0.95}
    made.kept.keep("mtdna", {"rows": {"mixture": {"missense": interval}, "rate": {}}})
    assert "| mixture | 0.900 (0.800 to 0.950) |" in made.table()
