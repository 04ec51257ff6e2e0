"""Streamed text: the same blocks as from the cache, and the same tokens after a resume."""

import itertools
import json

import lightning
import numpy as np
import pytest
import torch

from dnadiff.data.base import ProcessRank
from dnadiff.data.text.corpus import Hub, HubPart
from dnadiff.data.text.datamodule import StreamLoader, TextDataModule
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.training.module import TrainingData

LETTERS = CharTokenizer("abcdefghij")
TEXTS = [
    "abc",
    "",
    "defghij",
    "a",
    "bcdefghijabcdefghijabcdefghij",
    "ab",
    "cdefg",
    "h",
    "",
    "ij",
    "abcdefgh",
]


def loader(batch_size=2, length=4, ends=None, texts=TEXTS, **process):
    return StreamLoader(
        lambda first: iter(texts[first:]),
        LETTERS.encode_batch,
        length,
        batch_size,
        LETTERS.vocab,
        ends,
        ProcessRank(**process),
    )


def test_blocks_follow_each_other_through_the_documents():
    joined = "".join(TEXTS)
    batches = list(loader())
    shown = "".join(LETTERS.decode(row) for b in batches for row in b["ids"])
    assert shown == joined[: len(shown)] and len(joined) - len(shown) < 8
    assert (
        batches[0]["index"].tolist() == [0, 1]
        and batches[2]["index"].tolist() == [4, 5]
        and all(b["weight"].all() for b in batches)
    )


def test_every_block_has_tokens_at_its_ends():
    batch = next(iter(loader(length=6, ends=(5, 7))))
    assert (
        batch["ids"].shape == (2, 6)
        and set(batch["ids"][:, 0].tolist()) == {5}
        and set(batch["ids"][:, -1].tolist()) == {7}
    )
    assert "".join(LETTERS.decode(row[1:-1]) for row in batch["ids"]) == "".join(TEXTS)[:8]


@pytest.mark.parametrize("length", [3, 4, 7])
def test_streaming_resumes_at_any_batch(length):
    def run(state=None):
        stream, seen = loader(1, length), []
        if state is not None:
            stream.load_state_dict(state)
        for _ in range(2):
            for batch in stream:
                seen.append((json.loads(json.dumps(stream.state_dict())), batch["ids"].tolist()))
            seen.append((stream.state_dict(), None))
        return seen

    expected = run()
    for number, (state, _) in enumerate(expected[: len(expected) // 2 + 3]):
        rest = [ids for _, ids in expected[number + 1 :] if ids is not None]
        assert [ids for _, ids in run(state) if ids is not None][: len(rest)] == rest


def test_an_epoch_has_complete_optimizer_steps():
    plain, ours = list(loader()), loader(accumulated=4, progress=lambda: (6, float("inf")))
    batches, states = [], []
    for batch in ours:
        batches.append(batch["ids"].tolist())
        states.append(ours.state_dict())
    assert len(plain) == 7 and batches == [batch["ids"].tolist() for batch in plain[:4]]
    assert ours.state_dict() == {"epoch": 1, "batch": 0, "document": 0, "token": 0}
    assert [state["batch"] for state in states] == [0, 0, 0, 4]  # never in the middle of a step
    stream = loader(accumulated=4)
    stream.load_state_dict(
        {"epoch": 0, "batch": 3, "document": 0, "token": 0}
    )  # of an older version
    assert [batch["ids"].tolist() for batch in stream] == batches and stream.state_dict()[
        "epoch"
    ] == 1
    with pytest.raises(
        ValueError, match="before the first 16 windows of 4 tokens, which one optimizer step needs"
    ):
        next(iter(loader(accumulated=8)))


def test_a_limit_of_batches_ends_an_epoch():
    ours = loader(progress=lambda: (3, 3))
    states = [ours.state_dict() for _ in itertools.islice(ours, 3)]
    assert states[-1] == {"epoch": 1, "batch": 0, "document": 0, "token": 0} and [
        state["epoch"] for state in states
    ] == [0, 0, 1]


def test_processes_share_the_blocks():
    both = [list(loader(1, rank=rank, world_size=2)) for rank in (0, 1)]
    shared = [
        sorted(first["index"].tolist() + second["index"].tolist()) for first, second in zip(*both)
    ]
    assert shared == [[2 * k, 2 * k + 1] for k in range(len(both[0]))] and len(shared) > 5
    assert torch.equal(
        torch.cat([both[0][0]["ids"], both[1][0]["ids"]]), next(iter(loader()))["ids"]
    )


def test_too_little_text_is_rejected():
    with pytest.raises(ValueError, match="the stream ended before the first 2 windows of 4 tokens"):
        next(iter(loader(texts=["abc"])))


@pytest.fixture(params=["parquet", "json", "text"])
def hub(request, tmp_path, monkeypatch):
    """40 documents that `datasets` reads from files."""
    pytest.importorskip("datasets")
    for name in ("DNADIFF_CACHE", "HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    texts = [LETTERS.characters[i % 10 :] * (1 + i % 4) for i in range(40)]
    path = tmp_path / f"docs.{request.param}"
    if request.param == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": texts}), path)
    else:
        path.write_text(
            "".join(
                (json.dumps({"text": t}) if request.param == "json" else t) + "\n" for t in texts
            )
        )
    return Hub(request.param, {"train": "train"}, data_files={"train": str(path)}), texts


def test_a_dataset_is_read_with_and_without_streaming(hub):
    source, texts = hub
    options = {
        "hub": source,
        "tokenizer": LETTERS,
        "windows": "blocks",
        "valid_documents": 8,
        "num_documents": 40,
    }
    stored, stream = (TextDataModule(None, 16, 2, streaming=s, **options) for s in (False, True))
    stored.check_training()
    stream.check_training()
    assert np.array_equal(stored.sequences("valid")[0], stream.sequences("valid")[0])
    assert LETTERS.decode(stored.sequences("valid")[0]) == "".join(texts[32:])
    shown = np.concatenate([b["ids"].numpy().ravel() for b in stream.train_dataloader()])
    train = stored.sequences("train")[0]
    assert np.array_equal(shown, train[: len(shown)]) and len(train) - len(shown) < 32
    assert stored.describe()["split"].endswith("the last 8 documents of train are valid")


@pytest.mark.parametrize("kind", ["pattern", "folder"])
def test_files_read_by_datasets_are_identified_by_their_content(kind, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    named = (
        {"id": "json", "data_files": {"train": str(folder / "*.jsonl")}}
        if kind == "pattern"
        else {"id": str(folder)}
    )
    keys = []
    for number, text in ((0, "a"), (0, "b"), (1, "a"), (0, "a")):
        (folder / f"{number}.jsonl").write_text(json.dumps({"text": text}) + "\n")
        keys.append(HubPart(Hub(splits={"train": "train"}, **named), "train", "x").key())
    assert len({json.dumps(key) for key in keys}) == 4
    (folder / "0.jsonl").write_text(json.dumps({"text": "b"}) + "\n")
    assert HubPart(Hub(splits={"train": "train"}, **named), "train", "x").key() == keys[2]


def test_a_stream_that_ends_before_its_validation_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    options = {"tokenizer": LETTERS, "path_is": "train", "streaming": True, "valid_documents": 2}
    TextDataModule(str(tmp_path / "t.jsonl"), 4, 2, num_documents=11, **options).check_training()
    for number in (12, 50):
        with pytest.raises(
            ValueError,
            match=rf"t\.jsonl: the training part has fewer than {number} documents; set "
            rf"data\.num_documents",
        ):
            TextDataModule(
                str(tmp_path / "t.jsonl"), 4, 2, num_documents=number, **options
            ).check_training()


class Recorder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.scale, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def training_step(self, batch, _):
        self.seen.append(batch["ids"].tolist())
        return self.scale.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


@pytest.mark.filterwarnings("ignore")
def test_a_run_resumed_from_a_checkpoint_sees_the_same_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))

    def fit(steps, resume=None):
        data = TextDataModule(
            str(tmp_path / "t.jsonl"), 4, 2, tokenizer=LETTERS, path_is="train", streaming=True
        )
        model = Recorder()
        quiet = {
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
        }
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", limit_val_batches=0, **quiet
        )
        trainer.fit(model, TrainingData(data), ckpt_path=resume, weights_only=True)
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        return model.seen

    expected = fit(17)
    for step in (3, 8, 9):
        assert (
            fit(step) == expected[:step] and fit(17, tmp_path / f"{step}.ckpt") == expected[step:]
        ), step


def test_without_a_network_the_error_says_which_file_is_needed(monkeypatch, tmp_path):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = TextDataModule(
        None,
        8,
        2,
        tokenizer=LETTERS,
        name="corpus",
        hub=Hub("nobody/no-such-corpus", {"train": "train", "valid": "dev"}),
    )
    with pytest.raises(
        ValueError,
        match=r"^corpus: the dataset nobody/no-such-corpus could not be loaded .* "
        r"'data\.path=\{train: FILE, valid: FILE\}'",
    ):
        data.tokens("train")
