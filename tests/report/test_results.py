import csv

import numpy as np
import pytest

from dnadiff.report.run import read_metrics, smoothed


def test_metrics_are_read_with_empty_cells(tmp_path):
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows(
            [["step", "train_nll", "valid_nll"], [1, 1.25, ""], [2, "", 1.5]]
        )
    metrics = read_metrics(path)
    assert (
        metrics["step"].tolist() == [1, 2]
        and metrics["train_nll"][0] == 1.25
        and np.isnan(metrics["valid_nll"][0])
    )
    path.write_text("step,train_nll\n1,abc\n")
    with pytest.raises(ValueError, match="line 2: train_nll is 'abc'"):
        read_metrics(path)
    path.write_text("step,train_nll\n1,2\n2\n")
    with pytest.raises(ValueError, match="line 3: the row has 1 fields, the header 2"):
        read_metrics(path)


def test_smoothing_keeps_a_constant_and_the_length():
    assert smoothed(np.full(100, 2.0)).tolist() == [2.0] * 100
    assert smoothed(np.array([1.0, 2.0, 6.0])).tolist() == [1.5, 3.0, 4.0]
