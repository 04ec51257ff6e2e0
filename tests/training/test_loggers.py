import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch.loggers import CSVLogger

from dnadiff.options.command import compose
from dnadiff.training.loggers import MetricsFile, MLflow, TensorBoard, build_loggers


def names(loggers):
    return [type(logger).__name__ for logger in loggers]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("csv", []),
        ("[csv,tensorboard]", ["TensorBoard"]),
        ("tensorboard", ["TensorBoard"]),
        ("[]", []),
    ],
)
def test_every_run_has_the_metrics_file_first_and_once(tmp_path, choice, expected):
    config = compose("train", [f"logger={choice}"])
    assert names(build_loggers(config.get("logger") or {}, tmp_path, False)) == [
        "MetricsFile",
        *expected,
    ]
    assert not any(tmp_path.iterdir())  # a run may still be refused


def test_configurations_of_other_shapes_are_understood(tmp_path):
    old = {"_target_": "dnadiff.callbacks.MetricsFile"}
    assert names(build_loggers(old, tmp_path, False)) == ["MetricsFile"]
    several = compose("train", ["logger=[csv,tensorboard]", "logger.tensorboard=null"])["logger"]
    assert names(build_loggers(several, tmp_path, False)) == ["MetricsFile"]
    assert names(
        build_loggers(
            compose("train", ["logger=tensorboard"])["logger"], tmp_path, False, writes=False
        )
    ) == ["MetricsFile"]


def test_any_logger_of_lightning_can_be_added(tmp_path):
    entry = {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": str(tmp_path)}
    first, second = build_loggers({"mine": entry}, tmp_path, False)
    assert isinstance(first, MetricsFile) and isinstance(second, CSVLogger)


def test_something_that_does_not_log_is_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"logger\.mine is a OrderedDict; name a class of lightning\.pytorch\.loggers",
    ):
        build_loggers({"mine": {"_target_": "collections.OrderedDict"}}, tmp_path, False)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(cli, train_args, tmp_path, monkeypatch, name):
    from lightning.fabric.loggers import tensorboard
    from lightning.pytorch.loggers import mlflow

    monkeypatch.setitem(sys.modules, "wandb", None)
    for module, flags in (
        (tensorboard, ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE")),
        (mlflow, ("_MLFLOW_AVAILABLE",)),
    ):
        for flag in flags:
            monkeypatch.setattr(module, flag, False)
    status, _, err = cli("train", *train_args("caduceus", 2, f"logger={name}"))
    assert status == 1 and err.count("error:") == 1
    assert (
        f"logger={name} needs a package that is not installed" in err
        and f"pip install -e '.[{name}]'" in err
    )
    assert not (tmp_path / "run").exists()


def test_tensorboard_shows_every_step_also_after_a_resume(cli, train_args, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def steps(tag):
        events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
        events.Reload()
        return [event.step for event in events.Scalars(tag)]

    settings = (
        "logger=[csv,tensorboard]",
        "trainer.log_every_n_steps=1",
        "trainer.val_check_interval=2",
    )
    for more, last in (((), 4), (("resume=true",), 6), (("overwrite=true",), 2)):
        status, _, err = cli("train", *train_args("caduceus", last, *settings, *more))
        assert status == 0, err
        assert steps("train/nll") == list(
            range(last)
        )  # without those of the run that was overwritten
    assert steps("valid/nll") == [1]
    assert "hparams.yaml" in [path.name for path in (tmp_path / "run" / "tensorboard").iterdir()]


@pytest.mark.slow
def test_wandb_offline_continues_its_run(cli, train_args, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from dnadiff.training.loggers import WandB

    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    status, _, err = cli("train", *train_args("caduceus", 2, "logger=wandb"))
    assert (
        status == 1
        and "found no API key: run `wandb login`" in err
        and not (tmp_path / "run").exists()
    )
    for steps, more in ((2, ()), (4, ("resume=true",))):
        status, _, err = cli(
            "train",
            *train_args("caduceus", steps, "logger=wandb", "logger.wandb.offline=true", *more),
        )
        assert status == 0, err
        assert len({path.stem for path in (tmp_path / "run" / "wandb").glob("*/run-*.wandb")}) == 1
    assert WandB.run_id(tmp_path / "run") is not None


@pytest.mark.slow
def test_mlflow_continues_its_run(cli, train_args, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    for steps, more in ((2, ()), (4, ("resume=true",))):
        status, _, err = cli(
            "train",
            *train_args("caduceus", steps, "logger=mlflow", "trainer.log_every_n_steps=1", *more),
        )
        assert status == 0, err
        client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
        (run,) = client.search_runs([client.get_experiment_by_name("dnadiff").experiment_id])
        assert [
            point.step for point in client.get_metric_history(run.info.run_id, "train/nll")
        ] == list(range(steps))


def test_a_folder_without_runs_has_no_previous_one(tmp_path):
    from dnadiff.training.loggers import WandB

    assert WandB.run_id(tmp_path) is None
    for name, when in (("offline-run-1-abc", 10), ("run-2-def", 20)):
        path = tmp_path / "wandb" / name / f"run-{name[-3:]}.wandb"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (when, when))
    assert WandB.run_id(tmp_path) == "def"
    assert TensorBoard(tmp_path).version == "tensorboard"


def test_the_filter_for_a_folder_with_quotes_is_valid():
    asked = []
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="1"),
        search_runs=lambda ids, text, max_results: (
            asked.append(text) or [SimpleNamespace(info=SimpleNamespace(run_id="r"))]
        ),
    )
    logger = SimpleNamespace(_mlflow_client=client, _experiment_name="dnadiff", TAG=MLflow.TAG)
    assert MLflow.tag_of(Path("/home/x/my run")) == "/home/x/my run"  # as in runs of older versions
    assert MLflow.previous(logger, MLflow.tag_of(Path("/home/o'brien/run"))) == "r"
    assert asked == ["tags.`dnadiff.run_dir` = '/home/o%27brien/run'"]
