import numpy as np
import pytest

from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.ensemble import Query
from dnadiff.supervised.metrics import summarize_metrics
from dnadiff.supervised.predictions import PredictionTable


def metrics_of(path, records: int, windows: int):
    """The metrics of records whose windows are all right or all wrong, and the scored windows."""
    target, right = ClassTarget(["a", "b"]), np.random.default_rng(0).random(records) < 0.6
    table = PredictionTable(target, [1], windows=True, labels=True, per_seed=True)
    log_probs = np.log(
        np.repeat(np.where(right[:, None], [[0.75, 0.25]], [[0.25, 0.75]]), windows, 0)
    ).astype(np.float32)
    queries = [
        Query("same", 5 * w, 5 * w + 10, np.zeros(10, np.uint8), 0)
        for _ in range(records)
        for w in range(windows)
    ]
    path.write_bytes(
        "\t".join(table.columns).encode()
        + b"\n"
        + table.rows(queries, target.predicted(log_probs[None]))
    )
    return table.metrics(path, len(queries)), target.scored(
        log_probs.astype(float), np.zeros(len(queries), int)
    )


def test_the_windows_of_a_record_are_drawn_together(tmp_path):
    found, scored = metrics_of(tmp_path / "p.tsv", records=20, windows=10)
    accuracy = {"accuracy": ClassTarget(["a", "b"]).metrics["accuracy"]}
    together = summarize_metrics([scored], accuracy, np.repeat(np.arange(20), 10))["accuracy"]
    single = summarize_metrics([scored], accuracy)["accuracy"]
    for name in ("each_seed", "averaged"):
        one = found[name]["accuracy"]
        assert (one["value"], one["low"], one["high"]) == (
            together["value"],
            together["low"],
            together["high"],
        )
        assert one["high"] - one["low"] > 2 * (single["high"] - single["low"])


@pytest.mark.parametrize(("windows", "has_interval"), [(1, True), (10, False)])
def test_windows_of_few_records_have_no_interval(tmp_path, caplog, windows, has_interval):
    found, _ = metrics_of(tmp_path / "p.tsv", records=4, windows=windows)
    assert (found["averaged"]["accuracy"]["low"] is not None) == has_interval
    assert ("windows of 4 records, and intervals expect 5 or more" in caplog.text) != has_interval
