"""Which names are models: published folders, bundled models, and what is said of a name that is
none."""

import json
import shutil

import pytest
import torch

import dnadiff
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.mlm import MLM
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT
from dnadiff.weights import checkpoint
from dnadiff.weights.published import export_published, license_in, load_published

DNA = DNATokenizer()


@pytest.fixture
def published(tmp_path):
    """A small Caduceus in the published layout."""
    torch.manual_seed(0)
    return export_published(Denoiser(Caduceus(DNA.vocab, 16, 1)), tmp_path / "caduceus")


@pytest.fixture
def published_text(tmp_path):
    """A small DiT of text in the published layout, for 30 characters, a mask and padding."""
    torch.manual_seed(0)
    return export_published(
        Denoiser(DiT(CharTokenizer("ab").vocab, 16, 1, 2, 8, max_length=24)), tmp_path / "dit"
    )


def test_a_published_caduceus_is_a_masked_language_model_of_dna(published, caplog):
    with caplog.at_level("INFO", "dnadiff"):
        loaded = checkpoint.load(published)
        again = checkpoint.load(published)
    assert loaded.tokenizer == DNA and type(loaded.objective) is MLM and "data" not in loaded.config
    assert loaded.path == published / "model.safetensors" and not loaded.denoiser.training
    ids = torch.tensor([[7, 3, 10, 3, 11]])
    assert torch.equal(loaded.denoiser.log_probs(ids), load_published(published).log_probs(ids))
    assert again.config == loaded.config == checkpoint.load(loaded.path).config
    assert (
        sum("trained by masked language modeling" in m for m in caplog.messages) == 1
    )  # said once


def test_a_published_text_model_needs_its_tokenizer(published_text):
    with pytest.raises(
        ValueError, match=r"dit is a model of text and holds no tokenizer; copy the tokenizer\.json"
    ) as caught:
        checkpoint.load(published_text)
    assert "tokenizer=" in str(caught.value)
    loaded = checkpoint.load(published_text, needs_tokenizer=False)
    assert (
        type(loaded.objective) is MDLM
        and loaded.known_tokenizer is None
        and loaded.training_length() == 24
    )
    for use in (
        lambda: loaded.tokenizer.encode("a"),
        lambda: loaded.tokenizer.decode([2]),
        loaded.tokenizer.config,
    ):
        with pytest.raises(ValueError, match="holds no tokenizer"):
            use()
    given = loaded.with_tokenizer(CharTokenizer("ab"))
    assert given.tokenizer == CharTokenizer("ab") and given.with_tokenizer(DNA) is given
    ids = torch.tensor([[0, 2, 3]])
    assert torch.equal(given.denoiser.log_probs(ids), loaded.denoiser.log_probs(ids))
    with pytest.raises(ValueError, match="not the vocabulary of its training"):
        loaded.with_tokenizer(DNA)


def test_the_length_of_training_windows_is_asked_for_if_it_is_not_recorded(published):
    model = dnadiff.load(published, "cpu")
    with pytest.raises(
        ValueError,
        match=(
            r"length is missing: .*caduceus does not record the length of its training windows; "
            r"set length=\.\.\."
        ),
    ):
        model.sample(1)
    with pytest.raises(ValueError, match=r"window is missing"):
        model.loaded.training_length("window")
    assert len(model.sample(1, length=6)[0]) == 6 and len(model.sample(1, template="ACNN")[0]) == 4
    assert model.nll(["ACGTTG"]).shape == (1,) and model.embed(["ACGTTG"]).shape == (1, 16)


def test_bundled_models_load_by_name_and_unknown_names_list_them(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"checkpoint tiny does not exist; .*ships with dnadiff \(.*\)"
    ):
        checkpoint.load("tiny")
    shutil.copytree(exported, tmp_path / "shipped" / "tiny")
    monkeypatch.setattr("dnadiff.store.remote.BUNDLED", tmp_path / "shipped")
    loaded = dnadiff.load("tiny", "cpu").loaded
    assert loaded.origin.kind == "bundled with dnadiff" and loaded.path.parent.name == "tiny"
    for name in ("tyny", "../shipped/tiny/nothing"):
        with pytest.raises(FileNotFoundError, match=r"ships with dnadiff \(tiny\)"):
            checkpoint.load(name)
    (tmp_path / "tiny").mkdir()  # a folder without a model does not hide it
    assert checkpoint.load("tiny").path == loaded.path
    export_published(
        Denoiser(Caduceus(DNA.vocab, 16, 1)), tmp_path / "tiny"
    )  # one with a model does
    assert (
        checkpoint.load("tiny").path.parent.name == "tiny"
        and checkpoint.load("tiny").origin.kind == "published folder"
    )


def test_folders_of_other_models_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="type 'bert'; expected caduceus, mdlm"):
        checkpoint.load("bert")
    with pytest.raises(FileNotFoundError, match="folder of published weights"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\n# x\n", "apache-2.0"),
        ("---\ntags: [x]\nlicense: 'cc-by-4.0'\n---\n", "cc-by-4.0"),
        ("---\ntags: [x]\n---\nlicense: mit\n", None),
        ("license: mit\n", None),
        ("\udcff", None),
        (None, None),
    ],
)
def test_the_license_of_a_card_is_read_from_its_metadata(card, license, tmp_path):
    if card is not None:
        (tmp_path / "README.md").write_bytes(card.encode("utf-8", "surrogateescape"))
    assert license_in(tmp_path / "README.md") == license
