"""The command `distill`: its run is one of training, and is resumed in the middle of a round."""

import json

import pytest
import torch
import yaml

from dnadiff.weights import checkpoint

SMALL = [
    "trainer.accelerator=cpu",
    "trainer.val_check_interval=2",
    "trainer.log_every_n_steps=1",
    "objective.num_steps=8",
    "objective.num_rounds=2",
    "objective.steps_per_round=3",
]


def steps(number, folder, *more):
    return [*SMALL, f"trainer.max_steps={number}", f"hydra.run.dir={folder}", *more]


def metrics(folder):
    rows = [row.split(",") for row in (folder / "metrics.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if name in ("step", "train_loss", "valid_nll")]
    return [[row[i] for i in kept] for row in rows]


def test_a_student_is_a_run_of_its_own(cli, trained, tmp_path):
    args = *steps(6, "student"), "report=x.html"
    status, out, err = cli("distill", f"checkpoint={trained}", *args)
    assert status == 0 and "the page is x.html" in out, err
    assert "rounds of 3 optimizer steps, for students of 4, 2 sampling steps" in err
    run, of_teacher = tmp_path / "student", yaml.safe_load((trained / "config.yaml").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key in ("backbone", "noise", "process", "data", "time_conditioning"):
        assert config[key] == of_teacher[key]
    assert config["objective"]["objective"] == of_teacher["objective"]
    losses = [float(row[1]) for row in metrics(run)[1:] if row[1]]
    assert len(losses) == 6 and min(losses) > 0
    # The lowest bound is that of the teacher, so no best.ckpt.
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.ckpt"]
    for args in (
        ("sample", "sampler.num_groups=2", "num_samples=2", "output=x.fa"),
        ("evaluate", "num_draws=2", "orders=[]", "output=e.json"),
        ("export", "output=model"),
    ):
        status, _, err = cli(args[0], "checkpoint=student", *args[1:])
        assert status == 0, err
    assert (tmp_path / "x.fa").read_text().count(">") == 2
    assert json.loads((tmp_path / "e.json").read_text())["protocol"].startswith("NELBO")
    status, _, err = cli("distill", "checkpoint=model", *steps(1, "again"))
    assert status == 1 and "data is missing: this model was exported without the path" in err


def test_resuming_within_a_round_changes_nothing(cli, trained, tmp_path):
    given = f"checkpoint={trained}"
    constant = ("lr_scheduler=constant", "lr_scheduler.warmup_steps=1")
    assert cli("distill", given, *steps(6, "whole", *constant))[0] == 0
    for number in (2, 5, 6):
        args = steps(number, "parts", *constant, "resume=true")
        assert cli("distill", given, *args)[0] == 0
    whole, parts = (metrics(tmp_path / name) for name in ("whole", "parts"))
    assert [row for row in parts if row[1]] == [row for row in whole if row[1]]
    first, second = (checkpoint.load(tmp_path / name).denoiser for name in ("whole", "parts"))
    for a, b in zip(first.parameters(), second.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("objective", "backbone", "more"),
    [
        ("sedd", "dit", []),
        ("d3pm", "dit", ["objective.masking.num_steps=10"]),
        ("mlm", "dit", []),
        ("block_mdlm", "dit", []),
        ("ar", "transformer", []),
        ("bound", "dit", ["process=uniform"]),
    ],
)
def test_masked_models_are_distilled_and_others_are_refused(
    objective, backbone, more, cli, train_args, tmp_path
):
    status, _, err = cli("train", *train_args(backbone, 1, f"objective={objective}", *more))
    assert status == 0, err
    status, _, err = cli("distill", "checkpoint=run", *steps(2, "student"))
    refused = {
        "ar": "error: objective AR cannot be distilled",
        "block_mdlm": "error: objective BlockMDLM cannot be distilled",
        "bound": "its formulas do not hold; name a model of objective=mdlm, d3pm, sedd or mlm",
    }
    if objective in refused:
        assert status == 1 and refused[objective] in err
        assert "Traceback" not in err and not (tmp_path / "student").exists()
        return
    assert status == 0, err
    teacher, student = (checkpoint.load(tmp_path / name) for name in ("run", "student"))
    assert type(student.denoiser.parameterization) is type(teacher.denoiser.parameterization)
    assert student.denoiser.time_conditioning == teacher.denoiser.time_conditioning


@pytest.mark.parametrize("data", ["data=text", "data=text data.wrap=false data.documents=line"])
def test_a_student_of_a_text_model_reads_its_text(data, cli, train_args, tmp_path):
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 300)
    protocol = "mdlm" if "wrap" in data else "count"
    text = [*data.split(), "data.path=book.txt", f"objective.protocol={protocol}"]
    status, _, err = cli("train", *train_args("dit", 1, data=text))
    assert status == 0, err
    status, _, err = cli("distill", "checkpoint=run", *steps(2, "student"))
    assert status == 0, err
    first, second = (
        yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("run", "student")
    )
    assert first["data"] == second["data"]
    assert second["objective"]["objective"]["protocol"] == protocol
    status, _, err = cli(
        "sample", "checkpoint=student", "num_samples=2", "length=16", "output=x.txt"
    )
    assert status == 0, err


def test_wrong_use_is_one_line(cli, trained, tmp_path):
    for given, message in (
        (["checkpoint=nowhere"], "checkpoint nowhere does not exist"),
        (["objective.num_rounds=9"], "num_rounds 9 is too large: the 8 steps of the first round"),
        (["backbone=dit"], "unknown key backbone"),
    ):
        status, _, err = cli("distill", f"checkpoint={trained}", *steps(1, "student"), *given)
        assert status == 1 and message in err and "Traceback" not in err, err
        assert not (tmp_path / "student").exists()


def test_training_has_no_teacher_to_distill(cli, train_args, tmp_path):
    status, _, err = cli("train", *train_args("dit", 1, "objective=sdtt"))
    assert status == 1 and "use python -m dnadiff.distill checkpoint=RUN" in err
    assert "Traceback" not in err and not (tmp_path / "run").exists()
