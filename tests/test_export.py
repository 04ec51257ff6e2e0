"""The commands `export` and `info`: the published layout, the model card, and what is known about a
model."""

import errno
import json
import os
import shutil

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

import dnadiff
from dnadiff import evaluate
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded
from dnadiff.weights.published import export_published

FILES = ["README.md", "config.json", "dnadiff.json", "model.safetensors"]


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the trained run that a test may write into."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="module")
def evaluation(trained, tmp_path_factory):
    """What `evaluate` writes about the trained run."""
    folder = tmp_path_factory.mktemp("evaluated")
    settings = [
        "num_draws=2",
        "orders=[0,2]",
        "accelerator=cpu",
        f"output={folder / 'evaluate.json'}",
    ]
    evaluate.evaluate.start([f"checkpoint={trained}", *settings], folder)
    return folder / "evaluate.json"


@pytest.fixture
def evaluated(run, evaluation):
    """The run with an evaluation."""
    shutil.copy(evaluation, run)
    return run


@pytest.mark.parametrize("name", ["caduceus_ph", "caduceus_ps", "caduceus_ps_unfused"])
def test_exported_names_and_shapes_are_those_of_the_published_code(name, parity, cli, tmp_path):
    with safe_open(
        os.path.join(os.path.dirname(__file__), "parity", f"{name}.safetensors"), "pt"
    ) as file:
        theirs = json.loads(file.metadata()["config"])
    weights = {
        key.removeprefix("weights."): value
        for key, value in parity(name).items()
        if key.startswith("weights.")
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text(json.dumps(theirs | {"model_type": "caduceus"}))
    from safetensors.torch import save_file

    save_file(weights, tmp_path / "in" / "model.safetensors")
    status, _, err = cli("export", "checkpoint=in", "output=out")
    assert status == 0, err
    ours = load_file(tmp_path / "out" / "model.safetensors")
    assert {key: value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in weights.items()
    }
    assert all(torch.equal(ours[key], weights[key].to(ours[key])) for key in weights)
    exported = checkpoint.load(tmp_path / "out")
    ids = parity(name)["input_ids"]
    torch.testing.assert_close(
        exported.denoiser.backbone(ids), parity(name)["logits"], rtol=1e-4, atol=1e-4
    )
    assert exported.config.get("data") is None and exported.step == 0


def test_a_run_is_exported_with_its_likelihood_and_a_card(cli, evaluated, tmp_path):
    status, out, err = cli(
        "export",
        "checkpoint=run",
        "output=shared/model",
        "license=apache-2.0",
        "data_license=my own",
        "name=Tiny",
    )
    assert status == 0 and "files are in shared/model" in out and "data_license" not in out, err
    folder = tmp_path / "shared" / "model"
    assert sorted(os.listdir(folder)) == sorted([*FILES, "evaluate.json"]) and os.listdir(
        folder.parent
    ) == ["model"]
    content, measured = (
        json.loads((p).read_text()) for p in (folder / "dnadiff.json", evaluated / "evaluate.json")
    )
    likelihood = content["origin"]["likelihood"]
    assert (
        likelihood["groups"]["all"]["bits"] == measured["groups"]["all"]["bits"]
        and likelihood["part"] == "test"
    )
    assert [row["order"] for row in likelihood["markov"]] == [0, 2] and content["origin"][
        "tokens"
    ] > 0
    card = (folder / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert (
        metadata["license"] == "apache-2.0"
        and metadata["library_name"] == "dnadiff"
        and "dna" in metadata["tags"]
    )
    titles = [
        "What it is",
        "Data",
        "Split",
        "Likelihood",
        "License",
        "Intended use",
        "Responsible use",
        "How to load it",
    ]
    assert [
        line[3:] for line in card.splitlines() if line.startswith("## ")
    ] == titles and "\n# Tiny\n" in card
    assert (
        f"| all | {measured['groups']['all']['bits']:.4f} |" in card
        and "Markov order 2, all" in card
        and "my own" in card
    )
    assert (
        "Screen every sequence" in card
        and str(tmp_path.parent) not in card + (folder / "evaluate.json").read_text()
    )
    model, shared = checkpoint.load(evaluated), checkpoint.load(folder)
    ids = torch.tensor([[7, 3, 3, 10]])
    assert torch.equal(model.denoiser.log_probs(ids), shared.denoiser.log_probs(ids))


@pytest.mark.parametrize(
    ("backbone", "chosen"),
    [
        ("caduceus", ["objective=bound", "process=uniform"]),
        ("caduceus_ps", ["objective=bound", "process=hybrid"]),
        ("caduceus", ["objective=bound", "process=spindle"]),
        ("caduceus", ["objective=genmd4", "process=token_rates"]),
        ("caduceus", ["objective=sedd"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_a_model_that_needs_the_time_is_the_same_model_after_export(
    backbone, chosen, cli, train_args, tmp_path
):
    status, _, err = cli("train", *train_args("caduceus", 2, *chosen, f"backbone={backbone}"))
    assert status == 0, err
    status, _, err = cli("export", "checkpoint=run", "output=model")
    assert status == 0, err
    run, shared = (dnadiff.load(tmp_path / name, "cpu") for name in ("run", "model"))
    assert run.denoiser.time_conditioning and shared.denoiser.time_conditioning
    texts = ["ACGTTGAACG", "TTGGCATGCA"]
    assert (run.nll(texts, num_draws=4) == shared.nll(texts, num_draws=4)).all()
    assert run.sample(2, length=12, seed=1) == shared.sample(2, length=12, seed=1)


def test_groups_are_chosen_from_the_exported_evaluation(cli, evaluated, tmp_path):
    assert cli("export", "checkpoint=run", "output=model")[0] == 0
    import dnadiff

    ours, theirs = dnadiff.load(tmp_path / "model", "cpu"), dnadiff.load(evaluated, "cpu")
    assert (
        ours.stored_curve.groups(64) == theirs.stored_curve.groups(64)
        and ours.stored_curve.measured_length() == 64
    )
    assert [str(x) for x in ours.sample(2, length=64, seed=1)] == [
        str(x) for x in theirs.sample(2, length=64, seed=1)
    ]


def test_an_exported_model_needs_data_again_where_data_are_read(cli, run, tiny_fasta):
    assert cli("export", "checkpoint=run", "output=model")[0] == 0
    status, _, err = cli("evaluate", "checkpoint=model")
    assert (
        status == 1
        and "data is missing: this model was exported without the path of its data (tiny.fa)" in err
    )
    status, _, err = cli(
        "evaluate",
        "checkpoint=model",
        "data=fasta",
        f"data.path={tiny_fasta}",
        "num_draws=2",
        "orders=[]",
        "length=64",
    )
    assert status == 0, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["output=model"],
            "error: output: model exists; set overwrite=true to replace it, or choose another name",
        ),
        (
            ["output=new", "dtype=float8"],
            "error: dtype 'float8' is not known; choose one of float32, float16, bfloat16 or null",
        ),
        (
            ["output=new", "license=my own words"],
            "error: license 'my own words' is not an identifier of the Hugging Face Hub",
        ),
        (
            ["output=run", "overwrite=true"],
            "error: output run holds other files (checkpoints, config.yaml, metrics.csv, "
            "metrics.json)",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(arguments, message, cli, run, tmp_path):
    (tmp_path / "model").mkdir()
    status, _, err = cli("export", "checkpoint=run", *arguments)
    assert status == 1 and err.splitlines()[-1].startswith(message), err
    assert not (tmp_path / "new").exists() and (run / "config.yaml").exists()


def test_tied_projections_are_written_once_on_request(cli, run, tmp_path):
    for folder, *arguments in (("both",), ("once", "duplicate_tied=false")):
        status, _, err = cli("export", "checkpoint=run", f"output={folder}", *arguments)
        assert status == 0, err
    both, once = (load_file(tmp_path / folder / "model.safetensors") for folder in ("both", "once"))
    tied = sorted(both.keys() - once.keys())
    assert tied and all(".mamba_rev." in name or name == "lm_head.weight" for name in tied)
    ids = torch.tensor([[7, 3, 3, 10]])
    model, shared = (checkpoint.load(tmp_path / folder).denoiser for folder in ("both", "once"))
    assert torch.equal(model.log_probs(ids), shared.log_probs(ids))
    assert "which loads them too" in (tmp_path / "both" / "README.md").read_text()
    assert "stored once" in (tmp_path / "once" / "README.md").read_text()


def test_a_file_of_half_precision_is_measured_after_rounding(cli, evaluated, trained, tmp_path):
    note = "note=Trained for a test: not for use."
    status, out, err = cli("export", "checkpoint=run", "output=half", "dtype=float16", note)
    assert (
        status == 0 and "evaluate.json is ignored: it was measured with other weights" in out + err
    ), err
    folder, full = tmp_path / "half", tmp_path / "full"
    assert cli("export", "checkpoint=run", "output=full")[0] == 0
    sizes = [(path / "model.safetensors").stat().st_size for path in (folder, full)]
    assert 0.4 * sizes[1] < sizes[0] < 0.7 * sizes[1] and not (folder / "evaluate.json").exists()
    data = ["data=fasta", f"data.path={trained.parent / 'tiny.fa'}", "data.length=64"]
    assert (
        cli(
            "evaluate",
            "checkpoint=half",
            *data,
            "num_draws=2",
            "orders=[]",
            "output=half/evaluate.json",
        )[0]
        == 0
    )
    status, out, err = cli("export", "checkpoint=half", "output=shared", "dtype=float16")
    assert status == 0 and "ignored" not in out + err, err + out
    card = (tmp_path / "shared" / "README.md").read_text()
    assert (
        "float16; the likelihood below was measured with them" in card
        and "Trained for a test: not for use." in card
    )
    bits = json.loads((tmp_path / "shared" / "evaluate.json").read_text())["groups"]["all"]["bits"]
    assert f"| all | {bits:.4f} |" in card and "h(n)" in card and "seconds of training" in card
    assert checkpoint.load(tmp_path / "shared").origin.curve["bits"]

    # Rounding once more changes no weight, and what is known stays; to another type it does, and
    # what is known is of other weights.
    shutil.rmtree(tmp_path / "half")
    (tmp_path / "shared" / "evaluate.json").unlink()
    for dtype, measured in (("float16", True), ("bfloat16", False)):
        assert cli("export", "checkpoint=shared", f"output={dtype}", f"dtype={dtype}")[0] == 0
        card, origin = (
            (tmp_path / dtype / "README.md").read_text(),
            checkpoint.load(tmp_path / dtype).origin,
        )
        assert (f"| all | {bits:.4f} |" in card) == measured and (
            "measured with them" in card
        ) == measured
        assert (origin.likelihood is None and origin.curve is None) == (
            not measured
        ) and origin.note


def test_a_network_with_labels_keeps_their_names(cli, tiny_fasta, tmp_path):
    small = [
        "backbone.d_model=16",
        "backbone.n_layers=1",
        "backbone.d_state=4",
        "backbone.num_labels=2",
        "trainer.max_steps=1",
    ]
    data = [
        "data=fasta",
        f"data.path={{first:{tiny_fasta},second:{tiny_fasta}}}",
        "data.length=64",
        "data.batch_size=2",
    ]
    status, _, err = cli(
        "train",
        *data,
        *small,
        "trainer.accelerator=cpu",
        "trainer.val_check_interval=1",
        "hydra.run.dir=labeled",
    )
    assert status == 0, err
    status, _, err = cli("export", "checkpoint=labeled", "output=model")
    assert status == 0, err
    run, model = checkpoint.load(tmp_path / "labeled"), checkpoint.load(tmp_path / "model")
    ids, cond = torch.tensor([[7, 3, 3, 10]]), torch.tensor([[0.0, 1.0]])
    assert model.conditions.labels == run.conditions.labels == ("first", "second")
    assert torch.equal(
        model.denoiser.log_probs(ids, cond=cond), run.denoiser.log_probs(ids, cond=cond)
    )
    card = (tmp_path / "model" / "README.md").read_text()
    assert (
        "| labels | first, second |" in card
        and "There the model is the one without a label" in card
    )


def test_an_export_is_replaced_with_overwrite(cli, run, tmp_path):
    assert cli("export", "checkpoint=run", "output=model")[0] == 0
    assert cli("export", "checkpoint=run", "output=model", "overwrite=true", "name=Other")[0] == 0
    assert (
        "\n# Other\n" in (tmp_path / "model" / "README.md").read_text()
        and sorted(os.listdir(tmp_path / "model")) == FILES
    )


def test_an_error_of_the_disk_is_not_taken_for_missing_data(cli, run, tmp_path, monkeypatch):
    # The card lacked what is known of the data, and the command succeeded.
    def broken(self, trust=()):
        raise OSError(errno.EIO, "Input/output error", "cache/genomes")

    monkeypatch.setattr(Loaded, "training_data", broken)
    status, _, err = cli("export", "checkpoint=run", "output=model")
    assert status == 1 and "Input/output error" in err and not (tmp_path / "model").exists()
    for error in (
        FileNotFoundError("no such file"),
        OSError("hg38 could not be fetched"),
        PermissionError(errno.EACCES, "denied"),
    ):
        monkeypatch.setattr(
            Loaded,
            "training_data",
            lambda self, trust=(), error=error: (_ for _ in ()).throw(error),
        )
        status, _, err = cli("export", "checkpoint=run", "output=model", "overwrite=true")
        assert status == 0 and "described by their configuration alone" in err


def test_networks_without_a_published_layout_are_refused(cli, train_args):
    assert cli("train", *train_args("mamba", 1, "objective=ar"))[0] == 0
    status, _, err = cli("export", "checkpoint=run", "output=model")
    assert (
        status == 1
        and "error: Mamba has no published format; caduceus, caduceus_ps and dit have one" in err
    )


@pytest.fixture
def published(tmp_path):
    torch.manual_seed(0)
    return export_published(Denoiser(Caduceus(DNATokenizer().vocab, 16, 1)), tmp_path / "caduceus")


def test_info_of_a_run_shows_what_was_measured(cli, evaluated, tmp_path):
    status, out, err = cli("info", "checkpoint=run", "output=info.json")
    assert status == 0, err
    about = json.loads((tmp_path / "info.json").read_text())
    assert (
        about["network"] == "Caduceus"
        and about["objective"] == "MDLM"
        and about["step"] > 0
        and about["tokens"] > 0
    )
    assert about["data"] == "tiny.fa" and about["training_window"] == 64 and about["remark"] is None
    for shown in (
        "Caduceus",
        "MDLM",
        "tiny.fa",
        "likelihood bounds, sampling in any order",
        "Markov order 2, all",
        "not recorded",
    ):
        assert shown in out
    assert f"{about['likelihood']['groups']['all']['bits']:.4f}" in out
    assert (
        sorted(os.listdir(tmp_path)) == ["info.json", "run", "runs", "tiny.fa"]
        or not (tmp_path / "runs" / "info").exists()
    )


def test_an_evaluation_of_other_weights_is_not_shown(cli, evaluated):
    content = json.loads((evaluated / "evaluate.json").read_text())
    content["model"]["fingerprint"] = "0"
    (evaluated / "evaluate.json").write_text(json.dumps(content))
    _, out, err = cli("info", "checkpoint=run")
    assert (
        "is ignored: it was measured with other weights" in err
        and "held-out likelihood: not measured" in out
    )
    (evaluated / "evaluate.json").write_text(json.dumps(content | {"model": []}))
    _, out, err = cli("info", "checkpoint=run")
    assert "evaluate.json is ignored" in err and "held-out likelihood: not measured" in out


def test_info_works_for_exported_and_published_models(cli, evaluated, published, tmp_path):
    assert cli("export", "checkpoint=run", "output=model", "license=mit")[0] == 0
    (tmp_path / "model" / "evaluate.json").unlink()  # dnadiff.json has the likelihood too
    status, out, _ = cli("info", "checkpoint=model")
    assert (
        status == 0 and "exported folder" in out and "mit" in out and "Markov order 2, all" in out
    )
    status, out, _ = cli("info", "checkpoint=caduceus")
    assert (
        status == 0
        and "published folder" in out
        and "MLM" in out
        and "Trained by masked language modeling" in out
    )
    assert "not recorded" in out


def test_info_of_a_text_model_needs_no_tokenizer(cli, tmp_path):
    from dnadiff.data.tokenizer import CharTokenizer
    from dnadiff.networks.backbone.dit import DiT

    export_published(
        Denoiser(DiT(CharTokenizer("ab").vocab, 16, 1, 2, 8, max_length=24)), tmp_path / "dit"
    )
    status, out, err = cli("info", "checkpoint=dit")
    assert status == 0 and "unknown, 4 ids" in out, err


def test_a_masked_language_model_with_its_own_objective_survives_the_round_trip(
    cli, train_args, tmp_path
):
    assert (
        cli("train", *train_args("caduceus", 1, "objective=mlm", "objective.selected=0.3"))[0] == 0
    )
    assert cli("export", "checkpoint=run", "output=model")[0] == 0
    ours, theirs = checkpoint.load(tmp_path / "model"), checkpoint.load(tmp_path / "run")
    ids = torch.tensor([[7, 3, 3, 10]])
    assert ours.objective.selected == theirs.objective.selected == 0.3
    assert torch.equal(ours.denoiser.x0_log_probs(ids), theirs.denoiser.x0_log_probs(ids))
