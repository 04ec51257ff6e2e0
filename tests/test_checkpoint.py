import json
import pickle
import shutil

import pytest
import torch

import dnadiff
from dnadiff import checkpoint
from dnadiff.config import build
from dnadiff.data.files import write_json


class Hostile:
    def __reduce__(self):
        import os

        return os.system, ("touch pwned",)


@pytest.fixture
def content(trained):
    return torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)


def saved(content, tmp_path):
    path = tmp_path / "changed.ckpt"
    torch.save(content, path)
    return path


def test_a_run_folder_a_file_and_latest_all_load(trained, tmp_path):
    loaded = checkpoint.load(trained)
    assert loaded.path == trained / "checkpoints" / "best.ckpt" and not loaded.denoiser.training
    assert checkpoint.load(trained / "checkpoints" / "last.ckpt").step == 30
    runs = tmp_path / "runs"
    shutil.copytree(trained, runs / "a")
    assert checkpoint.find("latest", runs) == runs / "a" / "checkpoints" / "best.ckpt"


def test_averaged_weights_are_loaded(content, trained):
    loaded = checkpoint.load(trained / "checkpoints" / "last.ckpt")
    name, ours = next(iter(loaded.denoiser.state_dict().items()))
    assert torch.equal(ours, content["state_dict"][f"denoiser.{name}"])
    assert not torch.equal(ours, content["current_model_state"][f"denoiser.{name}"])


def test_pickled_code_is_not_executed(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="could run code"):
        checkpoint.load(saved(content | {"extra": Hostile()}, tmp_path))
    (tmp_path / "raw.ckpt").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(ValueError, match=r"not loaded|damaged"):
        checkpoint.load(tmp_path / "raw.ckpt")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("where", ["backbone", "noise", "objective", "tokenizer"])
def test_a_target_from_outside_is_not_called(where, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    hyper = content["hyper_parameters"]
    hostile = {"_target_": "os.system", "command": "touch pwned"}
    if where == "tokenizer":
        hyper["tokenizer"] = hostile
    else:
        hyper["config"][where] = hostile
    with pytest.raises(ValueError, match=r"refused to build 'os\.system'"):
        dnadiff.load(saved(content, tmp_path))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "hostile",
    [
        {"_target_": "dnadiff.kernels.build._run", "command": ["touch", "pwned"]},
        {"_target_": "dnadiff.checkpoint.load", "checkpoint": "other.ckpt", "trust": ["subprocess"]},
        {"_target_": "dnadiff.data.genome.fasta.write_fasta", "path": "pwned", "records": [["a", "b", b"ACGT"]], "overwrite": True},
        {"_target_": "dnadiff.config.build", "config": {"_target_": "os.system", "command": "touch pwned"}, "trust": None},
        {"_target_": "dnadiff.commands.run", "name": "train", "function": None},
    ],
    ids=lambda h: h["_target_"],
)
@pytest.mark.parametrize("where", ["noise", "backbone", "objective", "split"])
def test_functions_of_the_package_are_not_called_either(hostile, where, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    config = content["hyper_parameters"]["config"]
    if where == "split":
        config["data"]["split"] = hostile
        with pytest.raises(ValueError, match="refused to build"):
            build(checkpoint.load(saved(content, tmp_path)).config["data"])
    else:
        config[where] = hostile
        with pytest.raises(ValueError, match="refused to build"):
            checkpoint.load(saved(content, tmp_path))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "broken", [None, "text", {"config": None}, {"config": {}, "tokenizer": {}}, {"config": {"noise": 3}, "tokenizer": 5}]
)
def test_malformed_descriptions_are_one_line(broken, tmp_path, content):
    content["hyper_parameters"] = broken
    with pytest.raises(ValueError, match="is not a dnadiff checkpoint"):
        checkpoint.load(saved(content, tmp_path))


def test_a_target_that_is_not_a_string_is_refused(tmp_path, content):
    content["hyper_parameters"]["config"]["noise"] = {"_target_": 5}
    with pytest.raises(ValueError, match="is not a dotted path"):
        checkpoint.load(saved(content, tmp_path))


def test_text_files_are_distinguished_from_damaged_ones(trained, tmp_path):
    with pytest.raises(ValueError, match="is not a file of tensors"):
        checkpoint.load(trained / "config.yaml")
    assert checkpoint.find(trained / "checkpoints") == trained / "checkpoints" / "best.ckpt"


def test_json_never_holds_nan(tmp_path):
    write_json(tmp_path / "x.json", {"a": [float("nan"), 1.0], "b": float("inf")})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, 1.0], "b": None}


def test_truncated_files_are_named(trained, tmp_path):
    content = (trained / "checkpoints" / "last.ckpt").read_bytes()
    for fraction in (0, 0.3, 0.9):
        path = tmp_path / "cut.ckpt"
        path.write_bytes(content[: int(fraction * len(content))])
        with pytest.raises(ValueError, match=r"cut\.ckpt is damaged or truncated"):
            checkpoint.load(path)


def test_weights_of_another_vocabulary_are_listed(content, tmp_path):
    content["hyper_parameters"]["tokenizer"] = {
        "_target_": "dnadiff.data.tokenizer.CharTokenizer",
        "characters": "abcdefghijklmnopqrstuvwxyz",
    }
    with pytest.raises(ValueError, match=r"backbone\.embedding\.weight is \(16, 16\), expected \(32, 16\).*another vocabulary"):
        checkpoint.load(saved(content, tmp_path))


def test_missing_and_unexpected_tensors_are_listed(content, tmp_path):
    state = content["state_dict"]
    state["denoiser.backbone.extra"] = state.pop("denoiser.backbone.norm_f.weight")
    with pytest.raises(ValueError, match=r"missing backbone\.norm_f\.weight; surplus backbone\.extra"):
        checkpoint.load(saved(content, tmp_path))


def test_other_and_missing_files_are_named(tmp_path):
    torch.save({"a": 1}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="is not a dnadiff checkpoint"):
        checkpoint.load(tmp_path / "other.ckpt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        checkpoint.load(tmp_path / "none.ckpt")
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoints/best\.ckpt"):
        checkpoint.load(tmp_path)
