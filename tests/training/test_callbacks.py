import io
import os
from types import SimpleNamespace

import pytest
import torch

from dnadiff.training.callbacks import EMA, ProgressBar
from dnadiff.training.loggers import MetricsFile
from dnadiff.training.trainer import AtomicCheckpoints


def test_the_decay_warms_up():
    ema = EMA(decay=0.9999)
    averaged, current = [torch.zeros(1)], [torch.ones(1)]
    ema.average(averaged, current, torch.tensor(1))  # min(0.9999, 2/11)
    assert averaged[0].item() == pytest.approx(1 - 2 / 11)
    averaged = [torch.zeros(1)]
    ema.average(averaged, current, torch.tensor(10**7))
    assert averaged[0].item() == pytest.approx(1e-4)


def test_an_interrupted_write_leaves_the_old_checkpoint(tmp_path):
    target = tmp_path / "last.ckpt"
    AtomicCheckpoints().save_checkpoint({"x": torch.ones(2)}, target)

    class Dies:
        def __reduce__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpoints().save_checkpoint({"x": torch.zeros(2), "y": Dies()}, target)
    assert torch.load(target, weights_only=True)["x"].tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_the_metrics_file_is_continued_from_the_step_of_a_resumed_run(tmp_path):
    module = SimpleNamespace(tokens_seen=100)
    first = MetricsFile(tmp_path)
    first.begin(module, 0)
    for step in (9, 19, 29):
        first.log_metrics({"train/loss": 1.5, "epoch": 0}, step)
    again = MetricsFile(tmp_path)
    again.begin(module, 20)
    again.log_metrics({"valid/nll": 1.25}, 24)
    assert [r["step"] for r in again.rows()] == ["10", "20", "25"]
    assert again.rows()[-1]["valid_nll"] == "1.25" and again.rows()[-1]["train_loss"] == ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda text: text.replace("step,", "stop,"),
            r"metrics\.csv is damaged: its columns are not step, tokens, .*'stop'",
        ),
        (
            lambda text: text.replace("\n10,", "\n1o,"),
            r"metrics\.csv, line 2: step is '1o', which is not a number",
        ),
        (
            lambda text: text.replace("\n10,", "\n,"),
            r"metrics\.csv, line 2: step is '', which is not a number",
        ),
        (
            lambda text: text.replace("10,100,", "10,"),
            r"metrics\.csv, line 2: the row has \d fields",
        ),
    ],
)
def test_a_damaged_metrics_file_is_refused_in_one_line(damage, message, tmp_path):
    log = MetricsFile(tmp_path)
    log.begin(SimpleNamespace(tokens_seen=100), 0)
    log.log_metrics({"train/loss": 1.5}, 9)
    log.path.write_text(damage(log.path.read_text().replace("\r", "")))
    with pytest.raises(ValueError, match=message):
        MetricsFile(tmp_path).begin(SimpleNamespace(tokens_seen=100), 20)


def test_a_row_that_a_killed_run_left_half_written_is_dropped(tmp_path):
    log = MetricsFile(tmp_path)
    log.begin(SimpleNamespace(tokens_seen=100), 0)
    for step in (9, 19):
        log.log_metrics({"train/loss": 1.5}, step)
    log.path.write_text(log.path.read_text()[:-5])
    again = MetricsFile(tmp_path)
    again.begin(SimpleNamespace(tokens_seen=100), 20)
    assert [row["step"] for row in again.rows()] == ["10"]


def test_impossible_decay_is_refused():
    with pytest.raises(ValueError, match="decay 1"):
        EMA(1.0)


def test_network_calls_of_validation_are_no_steps():
    shown = ProgressBar()
    trainer = SimpleNamespace(estimated_stepping_batches=100, global_step=0, is_global_zero=True)
    shown.on_train_start(trainer, SimpleNamespace(tokens_seen=0))
    bar = shown.bar
    bar.display.every, bar.display.stream = 0, io.StringIO()
    bar.beat(8)
    bar.update(1, tokens=8)
    bar.beat(40)
    shown.on_validation_batch_end(SimpleNamespace(num_val_batches=[16]), None, None, None, 4)
    bar.close()
    assert bar.position == 1 and "1/100  valid batch 5/16" in bar.display.stream.getvalue()
