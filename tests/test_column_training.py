"""Commands with `data.alignment`: training, evaluation with and without columns, and sharing."""

import json
import logging
import shutil

import numpy as np
import pytest
import torch
import yaml

from dnadiff.data.alignment import Alignment, write_alignment
from dnadiff.networks.columns import FrequencyColumns
from dnadiff.weights import checkpoint
from dnadiff.weights.published import export_published

SIZE = 3000
LETTERS = np.random.default_rng(1).integers(0, 4, SIZE)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A random genome, and alignments that know nine of ten bases, of it and of another one."""
    folder = tmp_path_factory.mktemp("aligned")
    text = "".join("ACGT"[each] for each in LETTERS)
    (folder / "g.fa").write_text(f">chr\n{text}\n")
    columns = np.zeros((SIZE, 10), np.float32)
    for part in (slice(0, 4), slice(4, 8)):
        columns[:, part] = np.log(0.1 / 3)
        columns[np.arange(SIZE), part.start + LETTERS] = np.log(0.9)
    columns[:, 9] = np.log(4)
    for name, target in (("x", LETTERS), ("other", 3 - LETTERS)):
        write_alignment(folder / f"{name}.aln", {"chr": SIZE}, target, [target] * 3, columns)
    return folder


def arguments(world, *more, alignment="x.aln"):
    aligned = [f"data.alignment={world / alignment}"] if alignment else []
    return [
        *("data=fasta", f"data.path={world / 'g.fa'}", "data.length=32", "data.batch_size=4"),
        *("data.max_valid_windows=4", "trainer.val_check_interval=2", "trainer.accelerator=cpu"),
        *("backbone.d_model=16", "backbone.n_layers=1", "trainer.max_steps=2", *aligned, *more),
    ]


@pytest.fixture(scope="module")
def run(world):
    """A run that reads the alignment."""
    from dnadiff.train import train

    train.start([*arguments(world), f"hydra.run.dir={world / 'run'}"])
    return world / "run"


@pytest.fixture
def evaluate(cli, tmp_path):
    def evaluate(model, *more):
        status, out, err = cli(
            *("evaluate", f"checkpoint={model}", "orders=[]", "num_draws=2"),
            *("output=e.json", "overwrite=true", *more),
        )
        assert status == 0, err
        return json.loads((tmp_path / "e.json").read_text()), out, err

    return evaluate


def refused(cli, *arguments):
    status, _, err = cli(*arguments)
    assert status != 0 and len(err.strip().splitlines()) == 1, err
    return err


def test_the_run_records_the_layer_and_the_alignment(run, world):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["columns"] == {"_target_": "dnadiff.networks.columns.PosteriorColumns"}
    assert config["data"]["alignment"] == str(world / "x.aln")
    network = checkpoint.load(run).denoiser.backbone
    assert network.columns.weight.shape == (16, 6)
    assert 0.9 < network.columns.a.item() < 1.1


def test_likelihoods_are_conditional_on_the_relatives(run, world, evaluate, tmp_path):
    content, out, _ = evaluate(run)
    assert "conditional on 3 related genomes" in content["protocol"] and content["protocol"] in out
    assert content["data"]["alignment"]["genomes"] == 3 and content["own_data"]
    assert content["groups"]["all"]["bits"] < 1.0  # the posterior alone has .63
    without, _, err = evaluate(run, "alignment=none")
    assert without["groups"]["all"]["bits"] > 1.9 and "conditional" not in without["protocol"]
    assert without["own_data"] and "alignment" not in without["data"]
    assert "predicts from the sequence alone" not in err
    named, _, _ = evaluate(run, f"alignment={world / 'x.aln'}", "both_strands=true")
    assert named["groups"] == content["groups"]
    assert named["both_strands"]["all"]["reverse"] < 0.75
    other, _, _ = evaluate(
        run,
        "data=fasta",
        f"data.path={world / 'g.fa'}",
        "conjoin=true",
        "data.length=32",
        f"data.alignment={world / 'x.aln'}",
    )
    assert other["groups"]["all"]["bits"] < 1.0
    store = tmp_path / "x.aln"
    write_alignment(store, {"chr": SIZE}, LETTERS, [LETTERS], np.zeros((SIZE, 10), np.float32))
    own = shutil.copytree(run, tmp_path / "own")
    assert "is not the alignment" not in evaluate(own)[2]
    data = "data=fasta", f"data.path={world / 'g.fa'}", "data.length=32"
    _, _, err = evaluate(own, *data, f"data.alignment={store}")
    assert "is not the alignment that" in err
    other, _, err = evaluate(run, "data=fasta", f"data.path={world / 'g.fa'}", "data.length=32")
    assert other["groups"]["all"]["bits"] > 1.9
    assert "was trained with an alignment, and none is given" in err and "is not the" not in err


def test_exported_it_is_the_same_model(run, world, cli, evaluate, tmp_path):
    assert cli("export", f"checkpoint={run}", "output=model")[0] == 0
    shared, own = checkpoint.load(tmp_path / "model"), checkpoint.load(run)
    for name, value in own.denoiser.state_dict().items():
        assert torch.equal(shared.denoiser.state_dict()[name], value)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "posterior of the bases, rate and number of genomes" in card and str(world) not in card
    _, out, _ = cli("info", "checkpoint=model", "output=i.json")
    assert "posterior of the bases" in out
    assert "columns" in json.loads((tmp_path / "i.json").read_text())
    data = "data=fasta", f"data.path={world / 'g.fa'}", "data.length=32"
    content, _, _ = evaluate("model", *data, f"alignment={world / 'x.aln'}")
    assert content["groups"]["all"]["bits"] < 1.0
    with pytest.raises(ValueError, match="published formats have no columns of an alignment"):
        export_published(own.denoiser, tmp_path / "published")


@pytest.mark.parametrize("backbone", ["mamba", "transformer", "dit"])
def test_other_networks_train_and_are_evaluated(backbone, world, cli, evaluate, tmp_path):
    objective = "objective=mdlm" if backbone == "dit" else "objective=ar"
    heads = [] if backbone == "mamba" else ["backbone.n_heads=2"]
    more = arguments(world, f"backbone={backbone}", objective, "columns=frequencies", *heads)
    status, _, err = cli("train", *more, "hydra.run.dir=run")
    assert status == 0, err
    assert checkpoint.load(tmp_path / "run").denoiser.backbone.columns.weight.shape == (16, 5)
    content, _, _ = evaluate("run")
    assert content["groups"]["all"]["bits"] < 1.0


def test_blocks_train_with_columns(world, cli, evaluate):
    more = "objective=block_mdlm", "objective.block_size=8", "objective.next_token_weight=0.5"
    status, _, err = cli("train", *arguments(world, *more), "columns=both", "hydra.run.dir=run")
    assert status == 0, err
    content, _, _ = evaluate("run", "both_strands=true")
    assert content["groups"]["all"]["bits"] < 1.0
    assert content["both_strands"]["all"]["reverse"] < 0.75


def test_a_run_resumes_with_its_alignment_only(run, world, cli, tmp_path):
    store = tmp_path / "x.aln"
    shutil.copy(world / "x.aln", store)
    constant = arguments(world, "lr_scheduler=constant", f"data.alignment={store}")
    first = [*constant, "hydra.run.dir=run"]
    assert cli("train", *first)[0] == 0
    longer = [*first, "trainer.max_steps=4", "resume=true"]
    moved = f"data.alignment={world / 'x.aln'}"
    assert "other values of data.alignment" in refused(cli, "train", *longer, moved)
    content = store.read_bytes()
    store.unlink()
    write_alignment(store, {"chr": SIZE}, LETTERS, [LETTERS], np.zeros((SIZE, 10), np.float32))
    assert "another alignment from those of" in refused(cli, "train", *longer)
    store.write_bytes(content)
    assert "columns._target_" in refused(cli, "train", *longer, "columns=both")
    status, _, err = cli("train", *longer)
    assert status == 0, err
    whole = [*longer[:-1], "hydra.run.dir=whole"]
    assert cli("train", *whole)[0] == 0
    last = (tmp_path / name / "checkpoints" / "last.ckpt" for name in ("run", "whole"))
    one, two = (checkpoint.load(path).denoiser.state_dict() for path in last)
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_initial_weights_with_and_without_a_layer(run, world, cli, trained, tmp_path):
    again = arguments(world, f"init_from={run}", "trainer.max_steps=1", "optimizer.lr=0")
    assert cli("train", *again, "hydra.run.dir=again")[0] == 0
    known, found = (checkpoint.load(each).denoiser.backbone for each in (run, tmp_path / "again"))
    assert torch.equal(found.columns.weight, known.columns.weight)
    added = arguments(world, f"init_from={trained}", "trainer.max_steps=1", "columns=both")
    assert cli("train", *added, "hydra.run.dir=added")[0] == 0
    assert checkpoint.load(tmp_path / "added").denoiser.backbone.columns.weight.shape == (16, 10)
    plain = arguments(world, f"init_from={run}", "trainer.max_steps=1", alignment=None)
    status, _, err = cli("train", *plain, "hydra.run.dir=plain")
    assert status == 0 and "without data.alignment the layer of" in err
    assert checkpoint.load(tmp_path / "plain").denoiser.backbone.columns is None


def test_a_student_reads_the_alignment_of_its_teacher(run, cli, evaluate):
    small = "objective.num_steps=8", "objective.num_rounds=1", "objective.steps_per_round=1"
    more = "trainer.max_steps=1", "trainer.accelerator=cpu", "trainer.val_check_interval=1"
    status, _, err = cli("distill", f"checkpoint={run}", *small, *more, "hydra.run.dir=student")
    assert status == 0, err
    content, _, _ = evaluate("student")
    assert content["groups"]["all"]["bits"] < 1.0


def test_two_models_of_which_one_reads_the_alignment(run, world, cli, tmp_path):
    plain = arguments(world, "trainer.max_steps=1", alignment=None)
    assert cli("train", *plain, "hydra.run.dir=plain")[0] == 0
    given = "num_draws=2", "output=c.json", "overwrite=true"
    status, _, err = cli("compare", f"a={run}", "b=plain", *given)
    assert status == 0, err
    content = json.loads((tmp_path / "c.json").read_text())
    a, b = (content["groups"]["all"][name]["bits"] for name in "ab")
    assert a < 1.0 < 1.9 < b
    assert "conditional on 3" in content["protocol"]["a"]
    assert "conditional" not in content["protocol"]["b"]
    status, _, err = cli("compare", "a=plain", f"b={run}", *given)
    assert status == 0 and "predicts from the sequence alone" in err


def test_what_does_not_fit_is_one_line(run, world, cli, trained):
    other = arguments(world, alignment="other.aln")
    assert "was made for another assembly" in refused(cli, "train", *other, "hydra.run.dir=x")
    missing = arguments(world, alignment="no.aln")
    err = refused(cli, "train", *missing, "hydra.run.dir=x")
    assert "data.alignment: " in err and "no.aln does not exist" in err
    layer = arguments(world, "columns=posterior", alignment=None)
    assert "set data.alignment" in refused(cli, "train", *layer, "hydra.run.dir=x")
    labels = arguments(world, "backbone.num_labels=2")
    assert "does not fit Caduceus with backbone.num_labels 2" in refused(
        cli, "train", *labels, "hydra.run.dir=x"
    )
    text = ["data=text", f"data.path={world / 'g.fa'}", f"data.alignment={world / 'x.aln'}"]
    assert "data.alignment" in refused(cli, "train", *text, "hydra.run.dir=x")
    given = f"checkpoint={trained}", f"alignment={world / 'x.aln'}"
    assert "reads no alignment" in refused(cli, "evaluate", *given)
    given = f"checkpoint={run}", f"alignment={world / 'other.aln'}"
    assert "was made for another assembly" in refused(cli, "evaluate", *given)


def test_the_alignment_of_a_command(run, world, trained, caplog):
    model, plain = checkpoint.load(run), checkpoint.load(trained)
    assert model.columns_for(world / "x.aln").records == {"chr": SIZE}
    with caplog.at_level(logging.INFO, "dnadiff"):
        assert model.columns_for("none") is plain.columns_for(None) is None and not caplog.text
        assert model.columns_for(None) is None
    assert "predicts from the sequence alone; set alignment=target.aln" in caplog.text
    with pytest.raises(ValueError, match="reads no alignment"):
        plain.columns_for(world / "x.aln")
    full = Alignment(world / "x.aln")
    columns = [full.columns("chr", 0, SIZE)]
    shipped = world / "x.aln.xz"
    write_alignment(shipped, full.records, full.target("chr", 0, SIZE), [], columns)
    assert model.columns_for(shipped).is_compact
    model.denoiser.backbone.columns = FrequencyColumns(8)
    with pytest.raises(ValueError, match=r"x\.aln\.xz is compact, without the frequencies"):
        model.columns_for(shipped)
