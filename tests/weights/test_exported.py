"""Exported folders load as the same model, and changed ones are refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import dnadiff
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.objective.mlm import MLM
from dnadiff.diffusion.sampler.ancestral import Ancestral
from dnadiff.export import export
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import check_of, portable_data
from dnadiff.weights.published import export_published, load_published
from dnadiff.weights.tensors import fingerprint


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "model")


def test_an_exported_model_is_the_same_model(exported, trained):
    theirs, ours = checkpoint.load(trained), checkpoint.load(exported)
    ids = torch.tensor([[7, 3, 10, 3, 11, 8, 9, 3]])
    assert torch.equal(ours.denoiser.log_probs(ids), theirs.denoiser.log_probs(ids))
    assert torch.equal(ours.denoiser.x0_log_probs(ids), theirs.denoiser.x0_log_probs(ids))
    assert fingerprint(ours.denoiser) == fingerprint(theirs.denoiser)
    assert (
        ours.tokenizer == theirs.tokenizer
        and ours.conditions == theirs.conditions
        and ours.step == theirs.step
    )
    for key in ("objective", "noise", "time_conditioning"):
        assert ours.config[key] == theirs.config[key]
    assert type(ours.objective) is type(theirs.objective) and type(
        ours.denoiser.parameterization
    ) is type(theirs.denoiser.parameterization)
    assert (
        ours.config["data"] == portable_data(theirs.config["data"])
        and ours.training_length() == theirs.training_length()
    )
    assert (
        ours.origin.tokens == theirs.origin.tokens > 0
        and ours.origin.split_hash == theirs.origin.split_hash
    )
    assert ours.origin.data["split_hash"] == ours.origin.split_hash


def test_nothing_in_the_folder_names_this_machine(exported, trained):
    for path in exported.iterdir():
        if path.suffix != ".safetensors":
            assert str(trained.parent) not in path.read_text() and "/tmp" not in path.read_text()


def changed(path, **values):
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps(content))
    return content


def test_a_changed_description_is_refused(copy):
    path = copy / "dnadiff.json"
    changed(path, step=5)
    with pytest.raises(ValueError, match=r"dnadiff\.json was changed after it was exported"):
        checkpoint.load(copy)
    path.write_text('{"format": 2}')
    with pytest.raises(
        ValueError, match=r"has format '2', and this version of dnadiff reads 1; update dnadiff"
    ):
        checkpoint.load(copy)


def test_an_exported_folder_without_its_description_is_not_taken_for_published_weights(
    copy, tmp_path
):
    (copy / "dnadiff.json").unlink()
    for load in (checkpoint.load, load_published):
        with pytest.raises(
            FileNotFoundError,
            match=(
                r"model/dnadiff\.json is missing: this folder was exported by dnadiff.* copy the "
                r"complete"
            ),
        ):
            load(copy)
    config = json.loads((copy / "config.json").read_text())
    del config["dnadiff_description"]  # as in published folders
    (copy / "config.json").write_text(json.dumps(config))
    assert type(checkpoint.load(copy).objective) is MLM


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[]", "holds a list; expected keys with values"),
        ("{}", "lacks format"),
        (
            '{"format": 1, "check": "x", "step": 1}',
            "lacks backbone, objective, noise, tokenizer, origin",
        ),
        ("\xff", "is not UTF-8 text"),
    ],
)
def test_a_description_that_is_not_one_is_refused_in_one_line(text, message, copy):
    (copy / "dnadiff.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(
        ValueError, match=rf"dnadiff\.json {message}.*; use another copy of it"
    ) as caught:
        checkpoint.load(copy)
    assert "\n" not in str(caught.value)


def test_other_weights_than_those_described_are_refused(copy):
    weights = load_file(copy / "model.safetensors")
    save_file(
        {name: tensor * 1.001 for name, tensor in weights.items()}, copy / "model.safetensors"
    )
    with pytest.raises(
        ValueError,
        match=r"model\.safetensors holds different weights from those that dnadiff\.json describes",
    ):
        checkpoint.load(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        checkpoint.load(copy)


def test_a_config_of_another_network_is_refused(copy):
    changed(copy / "config.json", d_model=32)
    with pytest.raises(
        ValueError, match=r"config\.json and dnadiff\.json describe different networks: d_model"
    ):
        checkpoint.load(copy)


@pytest.mark.parametrize("key", ["backbone", "noise", "objective", "tokenizer"])
def test_a_hostile_description_is_not_executed(key, copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = changed(
        copy / "dnadiff.json", **{key: {"_target_": "os.system", "command": "touch pwned"}}
    )
    changed(copy / "dnadiff.json", check=check_of(content))
    with pytest.raises(ValueError, match=r"refused to build 'os\.system'"):
        checkpoint.load(copy)
    assert not (tmp_path / "pwned").exists()


GROUP = {key: 1.0 for key in ("bits", "bits_low", "bits_high", "nll", "perplexity", "se_total")} | {
    "tokens": 5
}
FOUND = {
    "part": "test",
    "data": "x",
    "own_data": True,
    "window": 8,
    "split": "s",
    "split_hash": "h",
    "protocol": "p",
    "markov": [],
}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {
                "backbone": {
                    "_target_": "dnadiff.networks.backbone.caduceus.Caduceus",
                    "d_model": 16,
                    "n_layers": 10**6,
                }
            },
            "more parameters than",
        ),
        ({"backbone": 5}, "backbone 5 must be a mapping"),
        ({"step": "x"}, "step 'x' must be an integer of at least 0"),
        ({"data": 5}, "data 5 must be a mapping or null"),
        ({"labels": "x"}, "labels 'x' must be a list"),
        ({"origin": {"unknown": 1}}, "unexpected keyword argument 'unknown'"),
        ({"origin": {"tokens": "many"}}, "origin.tokens 'many' must be an integer or null"),
        ({"origin": {"data": 5}}, "origin.data 5 must be a mapping or null"),
        (
            {"origin": {"data": {"held_out_records": {"test": [5]}}}},
            "origin.data.* 5 must be a string",
        ),
        ({"origin": {"likelihood": FOUND}}, "'groups' is missing"),
        (
            {"origin": {"likelihood": FOUND | {"groups": {"all": GROUP | {"bits": "x"}}}}},
            "likelihood.groups.all.bits 'x' must be a finite",
        ),
        (
            {
                "origin": {
                    "likelihood": FOUND | {"groups": {"all": GROUP}, "markov": [{"order": 1}]}
                }
            },
            "'groups' is missing",
        ),
    ],
)
def test_values_that_export_does_not_write_are_refused(value, message, copy):
    content = changed(copy / "dnadiff.json", **value)
    changed(copy / "dnadiff.json", check=check_of(content))
    with pytest.raises(
        ValueError,
        match=rf"dnadiff\.json does not describe a model that can be built \(.*{message}",
    ) as caught:
        checkpoint.load(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"path": "bundled:x.fa.gz", "length": 5, "tokenizer": {}},
            {"path": "bundled:x.fa.gz", "length": 5},
        ),
        ({"path": "/home/me/x.fa", "length": 5}, {"path": None, "length": 5, "name": "x.fa"}),
        ({"path": {"a": ["/x/a.fa", "/x/b.fa"]}, "name": "mine"}, {"path": None, "name": "mine"}),
        (
            {"path": "bundled:x.fa.gz", "split": {"bed": "/home/me/s.bed"}, "name": None},
            {"path": None, "split": {"bed": "s.bed"}, "name": "x.fa.gz"},
        ),
        (
            {"path": None, "download": {"url": "https://x/y"}},
            {"path": None, "download": {"url": "https://x/y"}},
        ),
        (None, None),
    ],
)
def test_only_data_that_ship_with_the_package_keep_their_path(data, expected):
    assert portable_data(data) == expected


def test_published_weights_that_were_exported_can_be_sampled_from(tmp_path):
    published = export_published(
        Denoiser(Caduceus(DNATokenizer().vocab, 16, 1)), tmp_path / "published"
    )
    folder = export(checkpoint=str(published), output=str(tmp_path / "model")).paths[0]
    model = dnadiff.load(folder, "cpu")
    assert (
        "data" not in model.config
        and len(model.sample(1, 8, sampler=Ancestral(num_steps=2))[0]) == 8
    )
