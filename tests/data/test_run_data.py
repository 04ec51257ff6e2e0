"""Reading the data of a checkpoint of unknown origin never touches the network."""

import socket
from dataclasses import replace

import pytest

from dnadiff.data.base import run_data
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.genomics import evaluation
from dnadiff.genomics.metrics import memorization
from dnadiff.genomics.metrics.text_quality import JudgeModel, real_texts
from dnadiff.supervised.labeled import pretraining_kmers
from dnadiff.weights import checkpoint

TEXT = "dnadiff.data.text.datamodule.TextDataModule"
ON_THE_HUB = {"_target_": "dnadiff.data.text.pretrained.Pretrained", "source": "organization/name"}
HUB = {
    "_target_": "dnadiff.data.text.corpus.Hub",
    "id": "organization/name",
    "splits": {"train": "train", "test": "test"},
}


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Every attempt to use the network; there must be none."""
    import datasets
    import huggingface_hub

    made = []

    def refused(*args, **kwargs):
        made.append(args)
        raise AssertionError(f"the network was used: {args}")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refused)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    monkeypatch.setattr(datasets, "load_dataset", refused)
    yield made
    assert made == []


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 120)
    return {"_target_": TEXT, "path": str(tmp_path / "book.txt"), "length": 64, "batch_size": 4}


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": ON_THE_HUB},
        {"path": None, "hub": HUB},
        {"hub": HUB, "tokenizer": ON_THE_HUB},
        "text",
    ],
)
def test_a_foreign_model_of_dna_whose_data_name_the_hub_is_refused(trained, book, change):
    data = book | change if isinstance(change, dict) else change
    model = checkpoint.load(trained)
    model = replace(model, config=model.config | {"data": data})
    for read in (
        lambda: memorization.training_data(model),
        lambda: memorization.dna_data(model),
        lambda: pretraining_kmers(model.config, model.tokenizer),
        lambda: evaluation.data_of(model, None),
    ):
        with pytest.raises(
            ValueError, match=r"these data are text|downloaded data|expected a mapping"
        ):
            read()
    assert evaluation.training_data(model, None, []) is None


def test_a_foreign_text_model_reads_its_data_with_its_own_tokenizer(book):
    tokenizer = CharTokenizer("abcdefghijklmnopqrstuvwxyz. \n")
    data = run_data(book | {"tokenizer": ON_THE_HUB}, tokenizer)
    data.prepare()
    assert data.tokenizer is tokenizer
    judge = JudgeModel(None, tokenizer, 64, "judge", 1, book | {"tokenizer": ON_THE_HUB})
    texts, source = real_texts(judge, [], [40, 40])
    assert [len(ids) for ids in texts] == [40, 40] and source.endswith("part test")
    judge = replace(judge, data=book | {"path": None, "hub": HUB})
    assert real_texts(judge, [], [40, 40]) == ([], "")
