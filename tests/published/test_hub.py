"""Models of the Hugging Face Hub: pinned commits, data files alone, and what to do without a network."""

import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

from dnadiff import checkpoint
from dnadiff.backbone.caduceus import Caduceus
from dnadiff.data.text import hub as text_hub
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import Denoiser
from dnadiff.published import hub
from dnadiff.published.model import export_published

COMMIT, NAME = "0123456789abcdef0123456789abcdef01234567", "kuleshov-group/caduceus"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A stand-in for the Hub with one repository; `asked` records its calls."""
    torch.manual_seed(0)
    folder = export_published(Denoiser(Caduceus(DNATokenizer().vocab, 16, 1)), tmp_path / COMMIT)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    asked, online = [], [True]

    def snapshot_download(repository, revision, allow_patterns, local_files_only):
        asked.append((repository, revision, tuple(allow_patterns), local_files_only))
        if not folder.is_dir():
            raise FileNotFoundError("no snapshot of it\nis stored")
        return str(folder)

    class HfApi:
        def model_info(self, repository, revision):
            asked.append((repository, revision))
            return SimpleNamespace(sha=COMMIT)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download, HfApi=HfApi))
    monkeypatch.setattr(text_hub, "hub_is_reachable", lambda: online[0])
    return SimpleNamespace(folder=folder, asked=asked, online=online)


def test_a_model_is_fetched_at_its_commit_without_code(repository):
    loaded = checkpoint.load(f"hf:{NAME}@{COMMIT}")
    ((name, revision, patterns, offline),) = repository.asked
    assert (name, revision, offline) == (NAME, COMMIT, False)
    assert all(pattern.endswith((".json", ".safetensors", ".md", ".txt", ".bpe")) and "*" not in pattern for pattern in patterns)
    assert loaded.path == repository.folder / "model.safetensors"
    assert (loaded.origin.kind, loaded.origin.license) == ("Hugging Face Hub", "apache-2.0")


@pytest.mark.parametrize("revision", [None, "main", "v1.0"])
def test_a_revision_that_is_no_commit_is_resolved_and_logged(revision, repository, caplog):
    with caplog.at_level("INFO", "dnadiff"):
        checkpoint.load(f"hf:{NAME}" + (f"@{revision}" if revision else ""))
    assert repository.asked[0] == (NAME, revision) and repository.asked[1][1] == COMMIT
    assert f"to pin it: hf:{NAME}@{COMMIT}" in caplog.text


def test_without_a_network_a_stored_copy_is_used_and_its_commit_logged(repository, caplog):
    repository.online[0] = False
    with caplog.at_level("INFO", "dnadiff"):
        checkpoint.load(f"hf:{NAME}")
    assert repository.asked == [(NAME, None, repository.asked[0][2], True)] and f"hf:{NAME}@{COMMIT}" in caplog.text


def test_without_a_copy_or_the_package_the_error_says_which_files_to_put_where(repository, monkeypatch):
    shutil.rmtree(repository.folder)
    files = rf"download config\.json and model\.safetensors \(and dnadiff\.json, .* of https://huggingface\.co/{NAME} into a folder"
    with pytest.raises(ValueError, match=rf"could not be fetched .*{files}, and give checkpoint=FOLDER") as caught:
        checkpoint.load(f"hf:{NAME}")
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=rf"pip install 'dnadiff\[hub\]'\); without it {files}"):
        checkpoint.load(f"hf:{NAME}")


def test_weights_that_are_not_safetensors_are_not_read(repository):
    (repository.folder / "model.safetensors").rename(repository.folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"has no model\.safetensors, and only weights in safetensors are read"):
        checkpoint.load(f"hf:{NAME}@{COMMIT}")


@pytest.mark.parametrize("name", ["hf:", "hf:caduceus", "hf:a/b/c", "hf:../x y", f"hf:{NAME}@", f"hf:{NAME}@a b"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="write hf:ORG/NAME or hf:ORG/NAME@REVISION"):
        checkpoint.load(name)


def test_the_package_has_what_is_used_of_it():
    huggingface_hub = pytest.importorskip("huggingface_hub")
    assert callable(huggingface_hub.HfApi.model_info) and callable(huggingface_hub.snapshot_download) and hub.PREFIX == "hf:"
