"""Training from the command line: run folders, averaged weights, interruption and resuming."""

import csv
import json
import shutil
import signal
import time

import pytest
import torch
import yaml

from dnadiff.data.windows import RandomWindows
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT
from dnadiff.options.command import compose
from dnadiff.training.run import absolute_path
from dnadiff.training.trainer import validation_interval
from dnadiff.weights import checkpoint
from dnadiff.weights.published import export_published


def test_a_run_folder_holds_configuration_tokenizer_metrics_and_checkpoints(
    cli, train_args, tmp_path
):
    status, out, err = cli("train", *train_args("caduceus", 8))
    assert status == 0, err
    run = tmp_path / "run"
    assert {p.name for p in run.iterdir()} == {
        "config.yaml",
        "tokenizer.json",
        "metrics.csv",
        "metrics.json",
        "checkpoints",
    }
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (
        config["backbone"]["_target_"] == "dnadiff.networks.backbone.caduceus.Caduceus"
        and "${" not in (run / "config.yaml").read_text()
    )
    metrics = json.loads((run / "metrics.json").read_text())
    assert (
        metrics["finished"]
        and metrics["step"] == 8
        and metrics["tokens"] == pytest.approx(8 * 4 * 64, rel=0.05)
    )
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    assert [r["step"] for r in rows if r["valid_nll"]] == ["4", "8"] and all(
        r["valid_nll_live"] for r in rows if r["valid_nll"]
    )
    assert "files are in run" in out and "tokens/s" in out


@pytest.mark.slow
def test_the_average_is_not_worse_than_the_live_weights(cli, train_args, tmp_path):
    # The averaged weights must be at most 1 % worse. Without the warm-up of their decay they would
    # hardly differ from the first ones.
    status, _, err = cli(
        "train",
        *train_args(
            "caduceus",
            60,
            "trainer.val_check_interval=60",
            "data.max_valid_windows=9",
            "callbacks.ema.decay=0.9999",
        ),
        *("optimizer.lr=2e-2", "data.batch_size=8", "data.length=32"),
    )
    assert status == 0, err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["valid_nll_live"] < 1.0  # it has learned something: uniform guessing gives 1.386
    assert metrics["valid_nll"] < 1.01 * metrics["valid_nll_live"]


def test_bfloat16_with_a_float32_residual_stream_trains(cli, train_args, tmp_path):
    status, _, err = cli(
        "train",
        *train_args(
            "caduceus", 4, "trainer.precision=bf16-mixed", "backbone.residual_in_fp32=true"
        ),
    )
    assert status == 0, err
    assert 0 < json.loads((tmp_path / "run" / "metrics.json").read_text())["valid_nll"] < 3


@pytest.mark.parametrize(
    ("kind", "backbone"),
    [
        ("dna", "dit"),
        ("text", "caduceus"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (("dna", "caduceus"), ("text", "dit"))
        ),
    ],
)
def test_dna_and_text_train_and_sample_on_every_diffusion_backbone(
    cli, train_args, tmp_path, kind, backbone
):
    # {DNA, text} x {dit, caduceus} with the same objective and samplers; other tests train the
    # usual pairs.
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 120)
    data = {"text": {"data": ("data=text", "data.path=book.txt")}, "dna": {}}[kind]
    status, _, err = cli("train", *train_args(backbone, 2, **data))
    assert status == 0, err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["objective"]["_target_"] == "dnadiff.diffusion.objective.mdlm.MDLM"
    for sampler in ("ancestral", "first_hitting", "grouped"):
        output = f"{sampler}.{'fa' if kind == 'dna' else 'txt'}"
        extra = ["sampler.num_groups=8"] if sampler == "grouped" else []
        status, _, err = cli(
            "sample",
            "checkpoint=run",
            "num_samples=2",
            "length=40",
            f"sampler={sampler}",
            f"output={output}",
            *extra,
        )
        assert status == 0, err
        assert (tmp_path / output).stat().st_size > 80


def weights(path):
    return torch.load(path, weights_only=True)["current_model_state"]


def test_resuming_ends_with_the_same_weights(cli, train_args, tmp_path):
    constant = [
        "lr_scheduler=constant",
        "lr_scheduler.warmup_steps=1",
    ]  # a schedule that does not depend on the number of steps
    assert cli("train", *train_args("dit", 8, "hydra.run.dir=full", *constant))[0] == 0
    # Samples for a page change nothing.
    args = [*constant, "hydra.run.dir=part", "report=x.html"]
    assert cli("train", *train_args("dit", 5, *args))[0] == 0
    status, _, err = cli("train", *train_args("dit", 8, *args, "resume=true", "overwrite=true"))
    assert status == 0 and "resuming" in err, err
    full, part = (
        weights(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("full", "part")
    )
    assert all(torch.equal(full[k], part[k]) for k in full)
    steps = [int(r["step"]) for r in csv.DictReader((tmp_path / "part" / "metrics.csv").open())]
    assert steps == sorted(steps)
    lines = (tmp_path / "part" / "samples.jsonl").read_text().splitlines()
    samples = {line["step"]: line["samples"] for line in map(json.loads, lines)}
    assert list(samples) == [5, 8] and [len(text) for text in samples[8]] == [64, 64]
    page = (tmp_path / "x.html").read_text()
    assert all(text in page for texts in samples.values() for text in texts)
    assert not (tmp_path / "full" / "samples.jsonl").exists()


def test_ctrl_c_saves_a_checkpoint_that_can_be_resumed(python, cli, train_args, tmp_path):
    # A real process and a real signal.
    args = [
        a
        for a in train_args(
            "caduceus", 100_000, "trainer.val_check_interval=100000", "trainer.log_every_n_steps=2"
        )
        if a != "hydra.run.dir=run"
    ]
    process = python("-m", "dnadiff.train", *args, cwd=tmp_path)
    deadline = time.monotonic() + 600  # of a machine that is busy with other things
    while (
        time.monotonic() < deadline
        and process.poll() is None
        and not list(tmp_path.glob("runs/train/*/metrics.csv"))
    ):
        time.sleep(0.02)
    (metrics,) = tmp_path.glob("runs/train/*/metrics.csv")
    while (
        time.monotonic() < deadline
        and process.poll() is None
        and len(metrics.read_text().splitlines()) < 3
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert (
        process.wait(300) == 130
        and "to resume it: python -m dnadiff.train" in process.output + process.errors
    ), process.errors
    (last,) = tmp_path.glob("runs/train/*/checkpoints/last.ckpt")
    step = checkpoint.load(last).step
    assert step > 0
    # The same configuration except for the number of steps: name the folder.
    more = [a for a in args if not a.startswith("trainer.max_steps")] + [
        f"trainer.max_steps={step + 3}",
        f"hydra.run.dir={last.parent.parent}",
        "resume=true",
    ]
    status, _, err = cli("train", *more)
    assert status == 0 and "resuming" in err, err
    assert checkpoint.load(last).step == step + 3


def test_resume_finds_the_unfinished_run_or_starts_a_new_one(cli, train_args, tmp_path):
    args = [a for a in train_args("caduceus", 3) if not a.startswith("hydra")]
    status, _, err = cli("train", *args, "resume=true")
    assert status == 0 and "starting a new one" in err
    (run,) = (tmp_path / "runs" / "train").iterdir()
    (run / "metrics.json").unlink()  # as if it had been killed after its last checkpoint
    described = (run / "config.yaml").read_text()
    status, _, err = cli(
        "train", *args, "resume=true", "hydra.run.dir=runs/train/named"
    )  # only that folder
    assert status == 0 and "runs/train/named has no checkpoint; starting a new run there" in err
    shutil.rmtree(tmp_path / "runs" / "train" / "named")
    status, _, err = cli("train", *args, "resume=true")
    assert (
        status == 0
        and f"resuming runs/train/{run.name}/checkpoints/last.ckpt" in err
        and (run / "metrics.json").is_file()
    )
    status, out, _ = cli("train", *args, "resume=true", f"hydra.run.dir=runs/train/{run.name}")
    assert status == 0 and out.startswith(f"runs/train/{run.name} is complete already; to continue")
    assert (run / "config.yaml").read_text() == described
    assert [p.name for p in (tmp_path / "runs" / "train").iterdir()] == [run.name]


def test_init_from_takes_network_and_weights(cli, train_args, tmp_path):
    assert cli("train", *train_args("caduceus", 4, "hydra.run.dir=first"))[0] == 0
    plain = [
        a
        for a in train_args(
            "caduceus", 1, "hydra.run.dir=second", "init_from=first", "optimizer.lr=0.0"
        )
        if "backbone" not in a
    ]
    status, _, err = cli("train", *plain)
    assert status == 0, err
    first, second = (
        checkpoint.load(tmp_path / name).denoiser.state_dict() for name in ("first", "second")
    )
    assert all(torch.equal(first[k], second[k]) for k in first)
    status, _, err = cli("train", *plain, "backbone.d_model=32", "hydra.run.dir=third")
    assert (
        status == 1
        and "(d_model 16, but 32 was requested; " in err
        and "leave out backbone.d_model=32" in err
    )
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("backbone", "more", "key"),
    [
        ("dit", ["time_conditioning=true"], "(time_conditioning=true)"),
        (
            "caduceus",
            ["objective=sedd"],
            "(time_conditioning=true, backbone.time_conditioning=true)",
        ),
    ],
)
def test_blocks_do_not_start_from_a_network_with_a_time(
    cli, train_args, tmp_path, backbone, more, key
):
    extra = ["backbone.time_conditioning=true"] if backbone == "caduceus" else []
    assert cli("train", *train_args(backbone, 1, "hydra.run.dir=first", *more, *extra))[0] == 0
    plain = [
        a
        for a in train_args(
            backbone, 1, "hydra.run.dir=second", "init_from=first", "objective=block_mdlm"
        )
        if "backbone" not in a
    ]
    status, _, err = cli("train", *plain)
    message = (
        f"error: init_from=first has a network that is conditioned on time {key}, and "
        "objective BlockMDLM does not use one time per sequence"
    )
    assert (
        status == 1
        and message in err
        and "name a run that was trained with false, or leave out init_from" in err
    ), err
    assert not (tmp_path / "second").exists()


@pytest.fixture
def published_folder(tmp_path, trained):
    export_published(checkpoint.load(trained).denoiser, tmp_path / "published")
    return tmp_path / "published"


def test_computation_settings_can_be_combined_with_init_from(
    cli, train_args, tmp_path, published_folder
):
    plain = [
        a
        for a in train_args("caduceus", 1, "overwrite=true", f"init_from={published_folder}")
        if "backbone" not in a
    ]
    for asked in (["backbone.scan=portable", "backbone.activation_checkpointing=true"], []):
        status, _, err = cli("train", *plain, *asked)
        assert status == 0, err
        saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["backbone"]
        assert {
            f"backbone.{key}={str(saved[key]).lower()}"
            for key in ("scan", "activation_checkpointing")
            if key in saved
        } == set(asked)
    for asked in ("backbone.d_model=32", "backbone.num_labels=2", "backbone=caduceus_ps"):
        status, _, err = cli("train", *plain, "backbone.scan=portable", asked)
        assert (
            status == 1
            and "init_from uses the network of the checkpoint (" in err
            and err.rstrip().endswith(f"leave out {asked}")
        ), err


def test_a_forced_scan_is_not_inherited_by_the_next_run(cli, train_args, tmp_path):
    assert (
        cli("train", *train_args("caduceus", 1, "hydra.run.dir=first", "backbone.scan=reference"))[
            0
        ]
        == 0
    )
    more = ("init_from=first", "hydra.run.dir=second")
    same = train_args("caduceus", 1, *more)  # the same network, asked for by name
    for args in ([a for a in same if "backbone" not in a], same):
        status, _, err = cli("train", *args, "overwrite=true")
        assert status == 0, err
        assert (
            yaml.safe_load((tmp_path / "second" / "config.yaml").read_text())["backbone"]["scan"]
            == "auto"
        )


def test_published_text_weights_are_refused_with_another_vocabulary(cli, train_args, tmp_path):
    vocab = Vocab(33, 32, 32, (32,))
    export_published(Denoiser(DiT(vocab, 16, 1, 2, 8)), tmp_path / "text")
    (tmp_path / "book.txt").write_text("abcdefgh " * 800)
    for data in (("data=text", f"data.path={tmp_path / 'book.txt'}"), ()):
        args = [
            a
            for a in train_args("dit", 1, "init_from=text", **({"data": data} if data else {}))
            if "backbone" not in a
        ]
        status, _, err = cli("train", *args)
        assert (
            status == 1
            and "text has 33 ids with the mask 32, and this vocabulary 1" in err
            and "choose its tokenizer" in err
        )
    assert not (tmp_path / "run").exists()


def test_an_error_leaves_an_existing_run_unchanged(cli, train_args, tmp_path):
    assert cli("train", *train_args("dit", 1, "hydra.run.dir=short", "data.length=32"))[0] == 0
    assert cli("train", *train_args("caduceus", 2))[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    # A resumed run keeps its configuration.
    changed = [
        "backbone.d_model=32",
        "optimizer.lr=0.5",
        "data.length=32",
        "seed=5",
        "objective/masking=count",
    ]
    for setting in (*changed, "trainer.accumulate_grad_batches=2"):
        status, _, err = cli("train", *train_args("caduceus", 4, "resume=true", setting))
        assert (
            status == 1
            and "belongs to a run with other values of" in err
            and setting.partition("=")[0].replace("/", ".") in err
        )
    for wrong, message in (
        ("optimizer.lr=-1", "optimizer.lr -1 must be a number of at least 0"),
        ("objective=ar", "objective AR does not fit backbone Caduceus"),
        ("init_from=short", "set data.length to at most 32"),
    ):
        args = [
            a
            for a in train_args("caduceus", 2, "overwrite=true", wrong)
            if "backbone" not in a or "init_from" not in wrong
        ]
        status, _, err = cli("train", *args)
        assert status == 1 and message in err, err
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_run_killed_before_it_saved_can_be_started_again(cli, train_args, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("{}")
    status, _, err = cli("train", *train_args("caduceus", 2, "resume=true"))
    assert status == 1 and "run is not the folder of a training run, and has config.yaml" in err
    assert (run / "config.yaml").read_text() == "{}"
    (run / "config.yaml").write_text(yaml.safe_dump(compose("train", train_args("caduceus", 2))))
    assert cli("train", *train_args("caduceus", 2, "resume=true"))[0] == 0


def test_a_resumed_run_keeps_its_best_checkpoint(cli, train_args, tmp_path):
    constant = ["lr_scheduler=constant", "lr_scheduler.warmup_steps=1"]
    assert cli("train", *train_args("caduceus", 4, *constant))[0] == 0
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    best = checkpoint.read(tmp_path / "run" / "checkpoints" / "best.ckpt")["global_step"]
    content = torch.load(last, weights_only=True)
    for name in ("state_dict", "current_model_state"):  # the second half of training fails
        content[name] = {k: v + 3 for k, v in content[name].items()}
    torch.save(content, last)
    assert cli("train", *train_args("caduceus", 8, "resume=true", *constant))[0] == 0
    assert (
        checkpoint.read(tmp_path / "run" / "checkpoints" / "best.ckpt")["global_step"] == best == 4
    )


def test_divergence_is_an_error(cli, train_args, tmp_path):
    status, _, err = cli(
        "train", *train_args("caduceus", 30, "optimizer.lr=1e18", "trainer.gradient_clip_val=null")
    )
    assert status == 1 and "training diverged: the loss is nan at step" in err
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_resume_finds_a_run_with_init_from(cli, train_args, tmp_path):
    assert cli("train", *train_args("caduceus", 2, "hydra.run.dir=first"))[0] == 0
    args = [
        a
        for a in train_args("caduceus", 2, "init_from=first")
        if "backbone" not in a and "hydra" not in a
    ]
    assert cli("train", *args)[0] == 0
    (run,) = (tmp_path / "runs" / "train").iterdir()
    (run / "metrics.json").unlink()
    status, _, err = cli("train", *args, "resume=true")
    assert status == 0 and "resuming" in err and (run / "metrics.json").is_file()


def test_weights_in_half_precision_are_refused_before_anything_is_written(
    cli, train_args, tmp_path
):
    status, _, err = cli("train", *train_args("dit", 1), "trainer.precision=bf16-true")
    assert (
        status == 1
        and "set 32-true or bf16-mixed" in err
        and "Traceback" not in err
        and not (tmp_path / "run").exists()
    )


def test_validations_are_evenly_spaced():
    assert (
        validation_interval({"max_steps": 7, "val_check_interval": 4, "accumulate_grad_batches": 1})
        == 3
    )


def test_names_that_are_not_files_stay_as_they_are():
    for name in ("bundled:ecoli_K12_MG1655.fa.gz", "/*.fa", ""):
        assert absolute_path(name) == name


def test_a_run_that_was_resumed_after_a_validation_logs_the_right_steps(cli, train_args, tmp_path):
    for steps, more in ((2, ()), (5, ("resume=true",))):
        status, _, err = cli(
            "train",
            *train_args(
                "caduceus",
                steps,
                "trainer.log_every_n_steps=1",
                "trainer.val_check_interval=100",
                *more,
            ),
        )
        assert status == 0, err
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert [row["step"] for row in rows if row["train_loss"]] == ["1", "2", "3", "4", "5"]
    assert [row["step"] for row in rows if row["valid_nll"]] == ["2", "5"]


def test_a_finished_run_that_ended_with_an_epoch_continues_with_the_next_one(
    cli, train_args, tmp_path, monkeypatch
):
    seen, batch = [], RandomWindows.batch
    monkeypatch.setattr(
        RandomWindows,
        "batch",
        lambda self, epoch, first, *more: (
            seen.append((epoch, first)) or batch(self, epoch, first, *more)
        ),
    )
    args = [*train_args("caduceus", 3), "data.batch_size=2", "data.epoch_size=6"]
    assert cli("train", *args)[0] == 0
    assert cli("train", *args, "trainer.max_steps=7", "resume=true")[0] == 0
    assert seen[:7] == [(epoch, first) for epoch in range(3) for first in (0, 2, 4)][:7]


def test_callbacks_of_the_trainer_are_used(cli, train_args, tmp_path):
    stop = (
        "+trainer.callbacks=[{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: "
        "valid/nll, stopping_threshold: 100}]"
    )
    status, _, err = cli("train", *train_args("caduceus", 8, stop))
    assert status == 0, err
    assert (
        json.loads((tmp_path / "run" / "metrics.json").read_text())["step"] == 4
    )  # the first validation
