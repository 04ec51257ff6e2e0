import csv
from pathlib import Path

import pytest

from dnadiff.config import compose

TABLE = Path(__file__).parents[2] / "genomic_benchmarks" / "published.csv"


def test_published_numbers_name_their_source_and_the_training_size_of_their_task():
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 * 9
    for row in rows:
        assert 0.5 < float(row["accuracy"]) < 1
        assert row["source"]
        settings = compose("finetune", ["checkpoint=x", f"task={row['task']}", "task.path=x"])["task"]
        assert int(row["train"]) == settings["expected"]["train"]
    mdlm = {row["task"]: row for row in rows if row["model"] == "Caduceus MDLM"}
    assert (mdlm["human_nontata_promoters"]["accuracy"], mdlm["human_nontata_promoters"]["spread"]) == (".940", ".007")
    assert float(mdlm["dummy_mouse_enhancers_ensembl"]["spread"]) == pytest.approx(0.029)
