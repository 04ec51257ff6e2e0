"""Every command runs from a published folder, without a run."""

import json

import pytest
import torch

from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.formats.sequences import read_sequences
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT
from dnadiff.weights import checkpoint
from dnadiff.weights.published import export_published

MISSING = (
    "data is missing: this model comes without a run that names its data; give them to "
    "evaluate, judge or copies, as in data=ecoli"
)


@pytest.fixture
def caduceus(tmp_path, tiny_fasta):
    """A published Caduceus in `caduceus`, with `tiny.fa` and some samples next to it; returns
    arguments of data."""
    torch.manual_seed(0)
    export_published(Denoiser(Caduceus(DNATokenizer().vocab, 16, 1)), tmp_path / "caduceus")
    letters = "ACGTTGAACGTTGACATTGACCAG"
    records = [letters[i:] + letters[:i] for i in range(24)]
    (tmp_path / "s.fa").write_text(
        "".join(f">s{i}\n{record}\n" for i, record in enumerate(records))
    )
    return ["data=fasta", f"data.path={tiny_fasta}", "data.length=24"]


def test_evaluate_needs_data(cli, caduceus):
    status, _, first = cli("evaluate", "checkpoint=caduceus")
    assert status == 1 and f"error: {MISSING}" in first
    status, out, err = cli(
        "evaluate",
        "checkpoint=caduceus",
        *caduceus,
        "num_draws=2",
        "orders=[0]",
        "accelerator=cpu",
        "output=e.json",
    )
    assert status == 0 and "Markov order 0" in out, err
    assert (first + err).count(
        "trained by masked language modeling"
    ) == 1 and "novel and repeated bases are left out" in err


def test_score_needs_a_window(cli, caduceus, tmp_path):
    status, _, err = cli("score", "checkpoint=caduceus", "input=s.fa")
    assert (
        status == 1
        and "error: window is missing: caduceus does not record the length of its training windows"
        in err
    )
    status, _, err = cli(
        "score",
        "checkpoint=caduceus",
        "input=s.fa",
        "window=31",
        "num_draws=2",
        "output=s.tsv",
        "accelerator=cpu",
    )
    assert status == 0 and len((tmp_path / "s.tsv").read_text().splitlines()) == 25, err


def test_sample_needs_a_length(cli, caduceus, tmp_path):
    more = ("num_samples=2", "sampler.num_groups=4", "accelerator=cpu")
    status, _, err = cli("sample", "checkpoint=caduceus", *more)
    assert status == 1 and "error: length is missing: caduceus does not record" in err
    status, _, err = cli("sample", "checkpoint=caduceus", *more, "length=20", "output=x.fa")
    assert status == 0 and [len(r.sequence) for r in read_sequences(tmp_path / "x.fa")] == [
        20,
        20,
    ], err
    status, _, err = cli("sample", "checkpoint=caduceus", *more[:1], "sampler=semi_ar", "length=20")
    assert status == 1 and "error: sampler.window is missing" in err
    status, _, err = cli("sample", "checkpoint=caduceus", *more, "length=20", "copies=true")
    assert status == 1 and MISSING in err
    (tmp_path / "t.fa").write_text(">t\nACGTNNNN\n")
    status, _, err = cli("sample", "checkpoint=caduceus", *more, "template=t.fa", "output=y.fa")
    assert status == 0 and read_sequences(tmp_path / "y.fa")[0].sequence.startswith(b"ACGT"), err


def test_judge_needs_data(cli, caduceus, tmp_path):
    status, _, err = cli("judge", "samples=s.fa", "checkpoint=caduceus")
    assert status == 1 and MISSING in err
    more = ("num_splits=20", "order=1")
    status, _, err = cli(
        "judge", "samples=s.fa", "checkpoint=caduceus", *caduceus, *more, "output=a.json"
    )
    assert (
        status == 0
        and (
            "does not record what it was trained on: copies are searched for in the training part "
            "of tiny.fa"
        )
        in err
    ), err
    assert (
        cli("judge", "samples=s.fa", *caduceus, *more, "output=b.json")[0] == 0
    )  # data alone are enough
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    status, _, err = cli("judge", "samples=s.fa")
    assert (
        status == 1
        and "give checkpoint=RUN, whose held-out part is read, data=, or real=y.fa" in err
    )
    status, _, err = cli("judge", "samples=s.fa", "data=text", "data.path=s.fa")
    assert status == 1 and "these data are text" in err


def test_copies_needs_data(cli, caduceus, tmp_path):
    status, _, err = cli("copies", "input=s.fa", "checkpoint=caduceus")
    assert status == 1 and MISSING in err
    status, _, err = cli("copies", "input=s.fa", "checkpoint=caduceus", *caduceus, "output=c.tsv")
    assert status == 0 and len((tmp_path / "c.tsv").read_text().splitlines()) == 25, err


def test_compress_and_decompress(cli, caduceus, tmp_path):
    pytest.importorskip("constriction")
    status, _, err = cli(
        "compress", "checkpoint=caduceus", "input=s.fa", "output=s.dnd", "num_groups=2", "threads=1"
    )
    assert status == 1 and "error: window is missing" in err
    more = ("window=31", "num_groups=2", "threads=1", "accelerator=cpu")
    status, _, err = cli("compress", "checkpoint=caduceus", "input=s.fa", "output=s.dnd", *more)
    assert status == 0, err
    status, _, err = cli(
        "decompress", "checkpoint=caduceus", "input=s.dnd", "output=again.fa", "accelerator=cpu"
    )
    assert (
        status == 0 and (tmp_path / "again.fa").read_bytes() == (tmp_path / "s.fa").read_bytes()
    ), err


def test_finetune(cli, caduceus, tmp_path):
    rows = [
        f"{record.sequence.decode()},{'ab'[i % 2]}"
        for i, record in enumerate(read_sequences(tmp_path / "s.fa"))
    ]
    (tmp_path / "labels.csv").write_text("sequence,label\n" + "\n".join(rows) + "\n")
    args = [
        "checkpoint=caduceus",
        "task=csv",
        "task.path=labels.csv",
        "seeds=1",
        "epochs=1",
        "lr=1e-3",
        "batch_size=8",
        "kmer=2",
        "accelerator=cpu",
        "scratch=false",
    ]
    status, out, err = cli("finetune", *args, "hydra.run.dir=study")
    assert status == 0 and "fine-tuned" in out, err
    assert (
        json.loads((tmp_path / "study" / "finetune.json").read_text())["counterpart"]
        == "Caduceus MLM"
    )
    status, _, err = cli("finetune", *args, "pretraining_overlap=true")
    assert (
        status == 1
        and "error: pretraining_overlap=true compares with the data of the pretraining" in err
    )


def test_training_starts_from_published_weights(cli, caduceus, train_args, tmp_path):
    plain = [
        a
        for a in train_args(
            "caduceus", 1, "init_from=caduceus", "optimizer.lr=0.0", "weight_decay=0"
        )
        if "backbone" not in a
    ]
    status, _, err = cli("train", *plain)
    assert status == 0 and "masked language modeling" not in err, err
    ours, theirs = (
        checkpoint.load(tmp_path / name).denoiser.state_dict() for name in ("run", "caduceus")
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.fixture
def dit(tmp_path):
    """A published DiT of text in `dit`, and the arguments of a data set in its words."""
    words = ["[PAD]", "[UNK]", "[MASK]", *"abcdefghij", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "book.txt").write_text("a b c d e . f g h i j .\n" * 60)
    torch.manual_seed(0)
    vocab = Pretrained(str(tmp_path / "vocab.txt")).load().vocab
    export_published(Denoiser(DiT(vocab, 16, 1, 2, 8, max_length=16)), tmp_path / "dit")
    return ["data=text", "data.path=book.txt", "data.length=16"]


def test_text_models_take_the_tokenizer_of_the_data_in_evaluate(cli, dit, tmp_path):
    args = [
        "checkpoint=dit",
        *dit,
        "num_draws=2",
        "accelerator=cpu",
        "output=e.json",
        "overwrite=true",
    ]
    status, _, err = cli("evaluate", *args, "tokenizer=pretrained", "tokenizer.source=vocab.txt")
    assert status == 0, err
    measured = json.loads((tmp_path / "e.json").read_text())["groups"]["all"]["bits"]
    status, _, err = cli("evaluate", *args)
    assert status == 1 and "not the vocabulary of its training; choose its tokenizer" in err
    (tmp_path / "vocab.txt").rename(tmp_path / "dit" / "vocab.txt")
    status, _, err = cli("evaluate", *args)  # next to the weights, it is the model's
    assert (
        status == 0
        and json.loads((tmp_path / "e.json").read_text())["groups"]["all"]["bits"] == measured
    ), err


def test_other_commands_need_the_tokenizer_next_to_the_weights(cli, dit, tmp_path):
    zero_shot = [
        "checkpoint=dit",
        "sets=[ptb]",
        "paths={ptb: book.txt}",
        "num_draws=2",
        "accelerator=cpu",
        "output=z.json",
    ]
    sample = [
        "checkpoint=dit",
        "num_samples=2",
        "sampler.num_groups=2",
        "accelerator=cpu",
        "output=x.txt",
    ]
    for name, args in (("zero_shot", zero_shot), ("sample", sample)):
        status, _, err = cli(name, *args)
        assert (
            status == 1
            and (
                "error: checkpoint: dit is a model of text and holds no tokenizer; copy the "
                "tokenizer.json"
            )
            in err
        )
    (tmp_path / "vocab.txt").rename(tmp_path / "dit" / "vocab.txt")
    for name, args in (("zero_shot", zero_shot), ("sample", sample)):
        status, _, err = cli(name, *args)
        assert status == 0, err
    assert {row["protocol"] for row in json.loads((tmp_path / "z.json").read_text())["rows"]} == {
        "mdlm",
        "count",
    }
    assert len((tmp_path / "x.txt").read_text()) > 10
