import pickle
import shutil

import pytest
import torch

import dnadiff
from dnadiff import checkpoint


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


def test_the_averaged_weights_are_what_loads(content, trained):
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


def test_truncated_files_are_named(trained, tmp_path):
    whole = (trained / "checkpoints" / "last.ckpt").read_bytes()
    for share in (0, 0.3, 0.9):
        path = tmp_path / "cut.ckpt"
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=r"cut\.ckpt is damaged or truncated"):
            checkpoint.load(path)


def test_weights_of_another_vocabulary_are_listed(content, tmp_path):
    content["hyper_parameters"]["tokenizer"] = {
        "_target_": "dnadiff.data.tokenizer.CharTokenizer",
        "characters": "abcdefghijklmnopqrstuvwxyz",
    }
    with pytest.raises(ValueError, match=r"backbone\.embedding\.weight is \(16, 16\), expected \(32, 16\).*another vocabulary"):
        checkpoint.load(saved(content, tmp_path))


def test_missing_and_surplus_tensors_are_listed(content, tmp_path):
    state = content["state_dict"]
    state["denoiser.backbone.extra"] = state.pop("denoiser.backbone.norm_f.weight")
    with pytest.raises(ValueError, match=r"missing backbone\.norm_f\.weight; surplus backbone\.extra"):
        checkpoint.load(saved(content, tmp_path))


def test_other_files_and_absent_ones_are_named(tmp_path):
    torch.save({"a": 1}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="is not a dnadiff checkpoint"):
        checkpoint.load(tmp_path / "other.ckpt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        checkpoint.load(tmp_path / "none.ckpt")
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoints/best\.ckpt"):
        checkpoint.load(tmp_path)
