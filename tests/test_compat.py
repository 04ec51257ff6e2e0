"""Runs, checkpoints and caches of the version before load; old names of choices work with a
warning.

`tests/compat` was written by the last version before modules and classes were renamed: `dna`, a
finished run of four steps of Caduceus on the bundled E. coli genome; `text`, one of DiT with
objective=d3pm on book.txt; `s.fa`, samples of `dna`; `cache`, the packed genome of tiny.fa and the
tokenized book.txt.
"""

import functools
import importlib
import operator
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import dnadiff
from dnadiff.networks.backbone.dit import DiT
from dnadiff.options.command import compose
from dnadiff.renamed import (
    RENAMED_CHOICES,
    RENAMED_KEYS,
    current_name,
    moved,
    with_current_choices,
)
from dnadiff.store.objects import build, check
from dnadiff.training.run import PROCESSES, START, differences
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import resolved

MOVED = moved()["modules"]
COMPAT = Path(__file__).parent / "compat"
OLD_DNA_RUN = [
    *("data=ecoli", "data.length=64", "data.batch_size=2", "data.max_valid_windows=4", "seed=5"),
    *(
        "backbone=caduceus",
        "backbone.d_model=8",
        "backbone.n_layers=1",
        "trainer.val_check_interval=4",
    ),
]


@pytest.fixture
def old_run(tmp_path):
    shutil.copytree(COMPAT / "dna", tmp_path / "dna")
    return tmp_path / "dna"


@pytest.fixture
def old_cache(tmp_path, monkeypatch):
    shutil.copytree(COMPAT / "cache", tmp_path / "cache")
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    for name in ("tiny.fa", "book.txt"):
        shutil.copy(COMPAT / name, tmp_path)
    return tmp_path / "cache"


@pytest.mark.parametrize("old", MOVED)
def test_every_old_name_resolves_to_an_existing_class_or_module(old):
    try:
        importlib.import_module(MOVED[old])
    except ModuleNotFoundError:
        module, _, name = MOVED[old].rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize(
    "old",
    [
        "dnadiff.downstream.head.conv.ConvHead",
        "dnadiff.downstream.target.classes.ClassTarget",
        "dnadiff.supervised.targets.classes.MultiLabelTarget",
        "dnadiff.supervised.targets.regression.RegressionTarget",
    ],
)
def test_a_class_of_a_moved_package_resolves_to_an_existing_class(old):
    module, _, name = current_name(old).rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize("run", ["dna", "text"])
def test_every_class_named_in_an_old_run_exists(run):
    check(yaml.safe_load((COMPAT / run / "config.yaml").read_text(encoding="utf-8")), trust=None)


def test_a_renamed_class_is_not_renamed_twice():
    assert all(
        current_name(new) == new
        for old, new in MOVED.items()
        if new.rpartition(".")[2][0].isupper()
    )


def test_old_runs_load():
    model = dnadiff.load(COMPAT / "dna")
    assert model.nll(["ACGTACGTACGT"]).shape == (1,)
    text = checkpoint.load(COMPAT / "text")
    assert isinstance(text.denoiser.backbone, DiT) and text.step == 4
    assert text.tokenizer.decode(text.tokenizer.encode("the dog.")) == "the dog."


def test_samples_of_an_old_run_are_the_same_sequences(cli, old_run, tmp_path):
    status, _, err = cli(
        "sample", "checkpoint=dna", "num_samples=2", "length=40", "seed=3", "output=s.fa"
    )
    assert status == 0, err
    sequences = [
        [line for line in path.read_text().splitlines() if line[0] != ">"]
        for path in (tmp_path / "s.fa", COMPAT / "s.fa")
    ]
    assert sequences[0] == sequences[1]


def test_an_old_run_is_evaluated(cli, old_run):
    data = [
        "data=fasta",
        f"data.path={COMPAT / 'tiny.fa'}",
        "data.length=16",
    ]  # E. coli takes seconds
    status, _, err = cli(
        "evaluate",
        "checkpoint=dna",
        *data,
        "part=valid",
        "num_draws=2",
        "orders=[]",
        "output=e.json",
    )
    assert status == 0, err


def test_an_old_run_is_resumed(cli, old_run):
    status, _, err = cli(
        "train", *OLD_DNA_RUN, "trainer.max_steps=6", "resume=true", "hydra.run.dir=dna"
    )
    assert status == 0 and "resuming dna/checkpoints/last.ckpt" in err, err
    assert checkpoint.read(old_run / "checkpoints" / "last.ckpt")["global_step"] == 6


def test_an_old_run_is_resumed_with_the_old_name_of_a_choice(cli, old_run):
    status, _, err = cli(
        "train",
        *OLD_DNA_RUN,
        "objective/masking=coins",
        "trainer.max_steps=5",
        "resume=true",
        "hydra.run.dir=dna",
    )
    assert status == 0 and "resuming" in err, err
    assert err.count("objective/masking=coins is now called objective/masking=bernoulli") == 1


def test_an_old_run_is_found_among_unfinished_ones(cli, tmp_path):
    run = tmp_path / "runs" / "train" / "old"
    shutil.copytree(COMPAT / "dna", run)
    (run / "metrics.json").unlink()
    status, _, err = cli("train", *OLD_DNA_RUN, "trainer.max_steps=4", "resume=true")
    assert (
        status == 0
        and "resuming runs/train/old/checkpoints/last.ckpt" in err
        and "running the validation of step 4" in err
    ), err
    assert (run / "metrics.json").is_file()


def test_a_new_run_starts_from_an_old_one(cli, old_run, tmp_path):
    args = [a for a in OLD_DNA_RUN if "backbone" not in a]
    status, _, err = cli(
        "train",
        *args,
        "init_from=dna",
        "trainer.max_steps=1",
        "optimizer.lr=0.0",
        "hydra.run.dir=new",
    )
    assert status == 0, err
    old, new = (checkpoint.load(tmp_path / name).denoiser.state_dict() for name in ("dna", "new"))
    assert all(torch.equal(old[key], new[key]) for key in old)


def test_an_old_network_may_be_named_next_to_init_from(cli, old_run):
    status, _, err = cli(
        "train", *OLD_DNA_RUN, "init_from=dna", "trainer.max_steps=1", "hydra.run.dir=new"
    )
    assert status == 0, err


def test_an_old_packed_genome_is_packed_again(old_cache, tmp_path):
    data = build(
        {
            "_target_": "dnadiff.data.datamodule.GenomeDataModule",
            "path": str(tmp_path / "tiny.fa"),
            "length": 64,
            "batch_size": 2,
        }
    )
    data.prepare()
    assert data.names == ["a", "b"]


def test_an_old_text_is_tokenized_again(old_cache, tmp_path):
    config = yaml.safe_load((COMPAT / "text" / "config.yaml").read_text(encoding="utf-8"))
    data = build({**config["data"], "path": str(tmp_path / "book.txt")}, trust=None)
    data.prepare()
    assert len(data.sequences("train")[0]) == 7200
    assert data.tokenizer.config() == checkpoint.load(COMPAT / "text").tokenizer.config()


def test_old_and_new_configurations_of_the_same_run_are_equal():
    old = yaml.safe_load((COMPAT / "dna" / "config.yaml").read_text(encoding="utf-8"))
    new = resolved(compose("train", [*OLD_DNA_RUN, "trainer.max_steps=4"]))
    assert differences(new, old, ("data.path", *START, *PROCESSES)) == []


@pytest.mark.parametrize("old", RENAMED_CHOICES)
def test_the_old_name_of_a_choice_works_with_one_line_of_warning(old, cli):
    name = "sample" if old.startswith("sampler") else "train"
    same = compose(name, [old])
    assert same == compose(name, [RENAMED_CHOICES[old]])
    status, _, err = cli(
        name, "checkpoint=x" if name == "sample" else "seed=1", old, "--cfg", "job"
    )
    assert status == 0 and err.strip() == (
        f"{old} is now called {RENAMED_CHOICES[old]}; the old name will stop working in version 0.3"
    )


def test_the_error_for_an_old_choice_in_an_own_yaml_file_names_the_new_one(cli, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /objective/masking: coins\n"
    )
    status, _, err = cli("train", "--config-dir", "mine", "experiment=mine")
    assert (
        status == 1
        and (
            "objective/masking=coins does not exist any more; it is now "
            "objective/masking=bernoulli; known: "
        )
        in err
    )


@pytest.mark.parametrize("old", RENAMED_KEYS)
def test_old_keys_of_the_command_line_have_their_new_names(old, caplog):
    new = RENAMED_KEYS[old]
    with caplog.at_level("WARNING", logger="dnadiff"):
        assert with_current_choices([f"{old}=24", "task=csv"]) == [f"{new}=24", "task=csv"]
    assert (
        f"{old} is now called {new}; the old name will stop working in version 0.3" in caplog.text
    )
    command, more = (
        ("judge_text", []) if new == "ngram_size" else ("finetune", ["task=csv", "task.path=x.csv"])
    )
    config, key = compose(command, [*more, f"{new}=24"]), new.split(".")
    assert functools.reduce(operator.getitem, key, config) == 24
