"""Objectives through the command line: what is trained, what a checkpoint rebuilds, and what is
refused before data is read."""

import runpy
from pathlib import Path

import pytest
import yaml

from dnadiff.diffusion.denoiser import CausalDenoiser
from dnadiff.diffusion.process import SUBS, Score, Softmax
from dnadiff.diffusion.soft_masks import SoftMasked
from dnadiff.options.command import compose
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import resolved

WRAPPED = {
    "d3pm": ("dit", Softmax, ["objective.masking.num_steps=10"]),
    "sedd": ("caduceus", Score, []),
    "mlm": ("caduceus", Softmax, []),
    "mdlm": ("dit", SUBS, ["objective/masking=discrete_time", "noise=cosine"]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_checkpoint_rebuilds_the_denoiser_and_samplers_run(name, cli, train_args, tmp_path):
    backbone, distribution, more = WRAPPED[name]
    status, _, err = cli("train", *train_args(backbone, 2, f"objective={name}", *more))
    assert status == 0, err
    loaded = checkpoint.load(tmp_path / "run")
    assert type(loaded.denoiser.parameterization) is distribution
    # SEDD conditions on time if the network has a time input; the others do not.
    conditioned = name == "sedd"
    assert (
        loaded.denoiser.time_conditioning
        == conditioned
        == yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["time_conditioning"]
    )
    status, _, err = cli(
        "sample",
        "checkpoint=run",
        "num_samples=2",
        "length=40",
        "sampler.num_groups=8",
        "output=s.fa",
    )
    assert status == 0, err


def test_sundae_trains_samples_and_has_no_likelihood(cli, train_args):
    chosen = train_args("caduceus", 2, "objective=sundae", "process=uniform")
    status, _, err = cli("train", *chosen)
    assert status == 0, err
    few = ["sampler=sundae", "sampler.num_steps=4", "num_samples=2", "length=40"]
    status, out, err = cli("sample", "checkpoint=run", "num_samples=2", "length=40", "output=t.fa")
    assert status == 0 and "sundae" in out, err  # its own sampler, unless one is named
    status, out, err = cli("sample", "checkpoint=run", *few, "output=s.fa")
    assert status == 0 and "4 (8 sequences in them)" in out, err
    status, out, err = cli("info", "checkpoint=run")
    assert status == 0 and "sampling, embeddings" in out and "No likelihood: it trains" in out
    for command in (["evaluate"], ["score", "input=s.fa", "output=s.tsv"]):
        status, _, err = cli(command[0], "checkpoint=run", *command[1:])
        assert status == 1 and "error: objective SUNDAE has no likelihood: " in err
        assert "judge its samples instead" in err and "Traceback" not in err


def test_a_learned_order_trains_samples_and_is_evaluated_by_its_own_bound(
    cli, train_args, tmp_path
):
    status, _, err = cli("train", *train_args("caduceus", 2, "objective=learned_order"))
    assert status == 0, err
    status, out, err = cli("sample", "checkpoint=run", "num_samples=2", "length=9", "output=s.fa")
    assert status == 0 and "sampler=learned_order calls=9" in (tmp_path / "s.fa").read_text(), err
    few = ["part=valid", "num_draws=2", "length=32"]
    status, out, err = cli("evaluate", "checkpoint=run", *few)
    assert status == 0 and "bound of the objective, 2 stratified draws" in out, err
    fixed = ["objective=learned_order", "objective/order=strided", "objective.learned=false"]
    status, _, err = cli("train", *train_args("caduceus", 1, *fixed, "overwrite=true"))
    assert status == 0, err
    assert not checkpoint.load(tmp_path / "run").denoiser.learned
    # its picture: every fourth position first, and then those to the right
    study = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "studies" / "order.py"))
    neighbors = study["orders"](str(tmp_path / "run"), 1)[2]  # none, left, right, both
    assert neighbors == pytest.approx([0.25, 0.5, 0, 0.25], abs=0.03)
    study["main"]([str(tmp_path / "run"), "--output", str(tmp_path / "order.svg"), "--batches=1"])
    assert (tmp_path / "order.svg").read_text().count("<path") > 20


def test_self_conditioning_starts_from_a_plain_model_and_is_exported(cli, train_args, tmp_path):
    assert cli("train", *train_args("caduceus", 2, "hydra.run.dir=first"))[0] == 0
    plain = [a for a in train_args("caduceus", 3) if "backbone" not in a]
    soft = [*plain, "init_from=first", "objective.self_conditioning=0.5"]
    status, _, err = cli("train", *soft, "trainer.strategy=fsdp2")
    assert status == 1 and "trainer.strategy fsdp2 does not fit this objective" in err
    status, _, err = cli("train", *soft, "optimizer.lr=1e-2")
    assert status == 0, err
    status, out, err = cli(
        "sample", "checkpoint=run", "num_samples=2", "length=40", "sampler.num_groups=4"
    )
    assert status == 0 and "4 (14 sequences in them)" in out, err  # (1 + 2 + 2 + 2) twice
    status, _, err = cli("export", "checkpoint=run", "output=shared")
    assert status == 0, err
    run, shared = (checkpoint.load(tmp_path / name).denoiser for name in ("run", "shared"))
    assert isinstance(shared, SoftMasked) and run.scale != 0
    ours, theirs = run.state_dict(), shared.state_dict()
    assert ours.keys() == theirs.keys() and all((ours[key] == theirs[key]).all() for key in ours)
    status, _, err = cli("evaluate", "checkpoint=shared", "data=fasta", plain[1], "orders=[]")
    assert status == 0, err


@pytest.mark.parametrize("backbone", [pytest.param("transformer", marks=pytest.mark.slow), "mamba"])
def test_the_autoregressive_control_trains_and_refuses_unmasking(
    backbone, cli, train_args, tmp_path
):
    status, _, err = cli("train", *train_args(backbone, 60, "objective=ar", "optimizer.lr=2e-2"))
    assert status == 0, err
    loaded = checkpoint.load(tmp_path / "run")
    assert isinstance(loaded.denoiser, CausalDenoiser) and loaded.step == 60
    metrics = yaml.safe_load((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["valid_nll_live"] < 1.0  # a period of seven; guessing costs 1.386
    status, _, err = cli(
        "sample", "checkpoint=run", "num_samples=1", "length=40", "sampler.num_groups=4"
    )
    assert (
        status == 1
        and "this is an autoregressive model; set sampler=ar" in err
        and "Traceback" not in err
    )
    status, _, err = cli(
        "sample", "checkpoint=run", "num_samples=2", "length=60", "sampler=ar", "output=a.fa"
    )
    assert status == 0, err
    assert (tmp_path / "a.fa").read_text().count("TTGAACG") + (tmp_path / "a.fa").read_text().count(
        "CGTTCAA"
    ) > 4  # it learnt the period


def test_what_the_beta_distribution_of_mask_rates_changes_is_logged_once(cli, train_args):
    for objective, times in (("sedd", 1), ("mdlm", 0)):
        status, _, err = cli(
            "train",
            *train_args(
                "caduceus", 1, f"objective={objective}", "objective/masking=beta", "overwrite=true"
            ),
        )
        assert (
            status == 0
            and err.count("changes only the variance of a loss that is the bound itself") == times
        ), err
    for objective, message in (
        ("mlm", "objective=mlm has no masking to choose; leave objective/masking out"),
        ("d3pm", "discrete_time"),
    ):
        status, _, err = cli(
            "train",
            *train_args(
                "caduceus", 1, f"objective={objective}", "objective/masking=beta", "overwrite=true"
            ),
        )
        assert (
            status == 1
            and message in err
            and "Traceback" not in err
            and len(err.strip().splitlines()) == 1
        )


def test_diffusion_starts_from_a_masked_language_model(cli, train_args, tmp_path):
    assert cli("train", *train_args("caduceus", 3, "objective=mlm", "hydra.run.dir=first"))[0] == 0
    plain = [
        a
        for a in train_args(
            "caduceus", 1, "hydra.run.dir=second", "init_from=first", "optimizer.lr=0.0"
        )
        if "backbone" not in a
    ]
    for objective in (
        "mdlm",
        "sedd",
    ):  # score entropy then goes without the time, for which this network has no input
        status, _, err = cli("train", *plain, f"objective={objective}", "overwrite=true")
        assert status == 0, err
        first, second = (checkpoint.load(tmp_path / name).denoiser for name in ("first", "second"))
        assert all(
            (a == b).all()
            for a, b in zip(first.state_dict().values(), second.state_dict().values())
        )
    status, _, err = cli("train", *plain, "objective=ar", "hydra.run.dir=third")
    assert status == 1 and "objective AR does not fit backbone Caduceus" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["objective=ar"],
            "objective AR does not fit backbone Caduceus: it needs a causal network, transformer "
            "or mamba",
        ),
        (
            ["objective=mdlm", "backbone=mamba"],
            "objective MDLM does not fit backbone Mamba: it needs a bidirectional network",
        ),
        (
            ["objective=d3pm", "objective.masking.num_steps=0"],
            "objective.masking.num_steps 0 must be an integer of at least 1",
        ),
        (["objective=d3pm", "objective/masking=bernoulli"], "set objective/masking=discrete_time"),
        (["objective=ar", "backbone=transformer", "time_conditioning=true"], "AR has no time"),
        (["noise=shifted_log_odds"], "set objective/masking=importance or count"),
        (
            ["noise=linear", "noise.sigma_max=0"],
            "noise.sigma_max 0 must be a number above 0",
        ),
        (["objective.weighting=elbo"], "choose one of nelbo, cross_entropy"),
        (
            ["time_conditioning=true", "backbone.time_conditioning=false"],
            "this Caduceus has no time input; set time_conditioning=false",
        ),
    ],
)
def test_misfits_are_refused_in_one_line_before_data_is_read(arguments, message, cli, tmp_path):
    (tmp_path / "empty.fa").touch()
    status, _, err = cli(
        "train", "data=fasta", "data.path=empty.fa", "hydra.run.dir=run", *arguments
    )
    assert status == 1 and message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_runs_of_before_go_on_loading(trained, tmp_path):
    # Configurations without the newer keys: no objective.masking, no null, no time input of the
    # backbone.
    import torch

    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    config = content["hyper_parameters"]["config"]
    config["objective"] = {
        "_target_": "dnadiff.diffusion.objective.mdlm.MDLM",
        "_partial_": True,
        "weighting": "nelbo",
    }
    config["time_conditioning"] = False
    config["backbone"].pop("time_conditioning", None)
    torch.save(content, tmp_path / "old.ckpt")
    assert type(checkpoint.load(tmp_path / "old.ckpt").denoiser.parameterization) is SUBS


def test_null_means_the_objectives_own_habit_for_the_network_too():
    for objective, conditioned in (("mdlm", False), ("sedd", True)):
        config = resolved(compose("train", [f"objective={objective}"]))
        assert (
            config["time_conditioning"] is conditioned
            and config["backbone"]["time_conditioning"] is conditioned
        )
    assert (
        resolved(compose("train", ["objective=sedd", "time_conditioning=false"]))["backbone"][
            "time_conditioning"
        ]
        is False
    )
