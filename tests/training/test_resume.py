"""A run is resumed only on the sequence that it was trained on."""

import json
from types import SimpleNamespace

import pytest
import torch

import dnadiff
from dnadiff.training import run as train


def test_a_changed_genome_is_refused(cli, train_args, tiny_fasta, tmp_path):
    assert cli("train", *train_args("dit", 2))[0] == 0
    tiny_fasta.write_text(
        tiny_fasta.read_text().replace("ACGTTGA", "ACCTTGA")
    )  # same names and lengths, so the same split
    status, _, err = cli("train", *train_args("dit", 4, "resume=true"))
    last = err.strip().splitlines()[-1]
    assert (
        status == 1
        and last.startswith("error: ")
        and "was trained on different sequences from those of tiny.fa now" in last
    )
    assert not (tmp_path / "run" / "metrics.json").read_text().count('"step": 4')


def test_a_run_of_an_older_version_is_resumed_with_a_warning(cli, train_args, tmp_path):
    assert cli("train", *train_args("dit", 2))[0] == 0
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=False)
    del content["hyper_parameters"]["digest"]
    torch.save(content, path)
    status, _, err = cli("train", *train_args("dit", 4, "resume=true"))
    assert status == 0 and "does not record which sequence it was trained on" in err


def test_overwriting_a_run_removes_its_evaluation(cli, train_args, tmp_path):
    assert cli("train", *train_args("dit", 2))[0] == 0
    run = tmp_path / "run"
    assert (
        cli("evaluate", "checkpoint=run", "num_draws=2", "orders=[]", "output=run/evaluate.json")[0]
        == 0
    )
    old = json.loads((run / "evaluate.json").read_text())
    (run / "checkpoints" / "step_1.ckpt").write_bytes(
        (run / "checkpoints" / "best.ckpt").read_bytes()
    )
    assert cli("train", *train_args("dit", 2, "overwrite=true", "seed=2"))[0] == 0
    assert {p.name for p in run.iterdir()} == {
        "config.yaml",
        "tokenizer.json",
        "metrics.csv",
        "metrics.json",
        "checkpoints",
    }
    assert {p.name for p in (run / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    (run / "evaluate.json").write_text(
        json.dumps(old)
    )  # of the same step and name, and of other weights
    assert dnadiff.load(run, "cpu").stored_curve.curve(64) is None


def test_a_folder_in_which_another_process_trains_is_left_alone(tmp_path):
    folder = tmp_path / "run"
    with train.locked_run(folder, []):
        with (
            pytest.raises(ValueError, match=r"another process is training in .*run; wait until"),
            train.locked_run(folder, [], wait=0.1),
        ):
            pytest.fail("locked twice")
        assert (folder / train.LOCK).exists()
    assert not (folder / train.LOCK).exists()


def test_a_run_that_another_process_continued_in_the_meantime_is_left_alone(tmp_path):
    before = train.saved_files(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"of another process")
    with (
        pytest.raises(ValueError, match=r"another process has trained in .* since this command"),
        train.locked_run(tmp_path, before),
    ):
        pytest.fail("trained")
    assert {path.name for path in tmp_path.rglob("*")} == {"checkpoints", "last.ckpt"}


def test_the_first_check_of_a_network_runs_on_the_device_of_the_training(trained, tmp_path):
    # A scan that was chosen by name, such as triton, cannot run on the CPU.
    loaded = dnadiff.load(trained, "cpu")
    places = []

    class Denoiser(torch.nn.Module):
        vocab, backbone = loaded.denoiser.vocab, loaded.denoiser.backbone

        def to(self, device):
            places.append(str(device))
            return self

    def objective(denoiser, x0, weight, draws):
        assert {x0.device.type, weight.device.type, draws.rows.device.type} == {"meta"}
        places.append("loss")

    module = SimpleNamespace(
        denoiser=Denoiser(), objective=objective, configure_optimizers=lambda num_steps: None
    )
    window = {"ids": torch.full((8,), 7)}
    train.sanity_check(
        module,
        SimpleNamespace(length=8, labels=(), test_windows=lambda part: [window]),
        torch.device("meta"),
    )
    assert places == ["meta", "loss", "cpu"]


def test_both_validations_have_the_precision_of_the_training(cli, train_args, tmp_path):
    # With decay 0 the averaged weights are the live ones.
    args = train_args(
        "dit", 2, "callbacks.ema.decay=0", "trainer.precision=bf16-mixed", "trainer.accelerator=cpu"
    )
    status, _, err = cli("train", *args)
    assert status == 0, err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["valid_nll"] == metrics["valid_nll_live"]


@pytest.mark.parametrize(
    "name", ["metrics.csv", "evaluate.json", "config.yaml", "tokenizer.json", "tensorboard/events"]
)
def test_a_folder_of_other_files_is_left_alone(name, tmp_path):
    path = tmp_path / "other" / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(
        FileExistsError,
        match=(
            rf"other is not the folder of a training run, and has {name.partition('/')[0]}, which "
            rf"a run"
        ),
    ):
        train.check_new(tmp_path / "other")
    (tmp_path / "other" / "config.yaml").write_text("backbone: {}\nobjective: {}\ntrainer: {}\n")
    train.check_new(tmp_path / "other")  # a run that was killed before it saved a checkpoint
    (tmp_path / "empty").mkdir()
    train.check_new(tmp_path / "empty")


def test_keys_that_had_no_effect_in_older_versions_are_no_difference():
    new = {"trainer": {"max_steps": 2}, "optimizer": {"lr": 0.1}}
    old = {
        "trainer": {"max_steps": 2, "enable_progress_bar": False, "plugins": {"_target_": "x.Y"}},
        "optimizer": {"lr": 0.1, "weight_decay": 0.5},
    }
    assert train.differences(new, old, ()) == []
    assert train.differences(new, {**old, "optimizer": {"lr": 0.2, "weight_decay": 0.5}}, ()) == [
        "optimizer.lr"
    ]


def test_a_new_signature_is_the_same_file():
    def signed(path, signature):
        return {"data": {"fasta": [f"https://server/{path}?sig={signature}"]}}

    assert train.differences(signed("x.fa", "new"), signed("x.fa", "expired"), ()) == []
    assert train.differences(signed("y.fa", "new"), signed("x.fa", "expired"), ()) == ["data.fasta"]


def test_the_folder_that_lightning_names_to_the_processes_it_starts_is_not_the_users():
    own, of_lightning = (
        "hydra.run.dir=mine",
        [
            'hydra.run.dir="runs/train/x"',
            "hydra.job.name=train_ddp_process_1",
            "hydra.output_subdir=null",
        ],
    )
    assert train.names_run_dir(["train.py", own]) and train.names_run_dir(
        ["train.py", own, "seed=1", *of_lightning]
    )
    assert not train.names_run_dir(["train.py", "seed=1"]) and not train.names_run_dir(
        ["train.py", *of_lightning]
    )
