"""The text path through the command lines: small stand-ins for the corpora, from training to
samples."""

import json
import os

import pytest
import torch
import yaml

from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.diffusion.denoiser import Denoiser, MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import Bernoulli
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.base import BidirectionalBackbone
from dnadiff.options.command import compose
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import build_denoiser

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "to",
    "be",
    "or",
    "not",
    "that",
    "is",
    "the",
    "question",
    "in",
    "mind",
    "a",
    "sea",
    "of",
]
SMALL = [
    "data.length=16",
    "data.batch_size=4",
    "data.max_valid_windows=4",
    "trainer.accelerator=cpu",
    "trainer.val_check_interval=2",
]
NETWORK = ["backbone=dit", "backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2"]


@pytest.fixture
def files(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    lines = [" ".join(WORDS[5 + (i * i + k) % 13] for k in range(2 + i % 9)) for i in range(120)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return [
        f"data.path={tmp_path / 't.jsonl'}",
        "data.valid_documents=20",
        f"tokenizer.source={tmp_path / 'vocab.txt'}",
        *SMALL,
    ]


def test_owt_and_dit_train_resume_evaluate_and_sample(cli, files, tmp_path):
    args = [
        "data=owt",
        *files,
        *NETWORK,
        "lr_scheduler=constant",
        "lr_scheduler.warmup_steps=2",
        "hydra.run.dir=run",
    ]
    assert cli("train", *args, "trainer.max_steps=2")[0] == 0
    assert (
        cli("train", *args, "trainer.max_steps=5", "resume=true")[0] == 0
    )  # in the middle of an epoch
    assert cli("train", *args[:-1], "trainer.max_steps=5", "hydra.run.dir=whole")[0] == 0
    states = [
        checkpoint.read(tmp_path / run / "checkpoints" / "last.ckpt")["state_dict"]
        for run in ("run", "whole")
    ]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for name in (
        "t.jsonl",
        "vocab.txt",
    ):  # evaluating needs the corpus, nothing needs the vocabulary
        os.rename(tmp_path / name, tmp_path / f"kept.{name}")
    status, out, _ = cli(
        "sample", "checkpoint=run", "num_samples=2", "sampler.num_groups=4", "output=x.txt"
    )
    words = (tmp_path / "x.txt").read_text().split()
    assert (
        status == 0
        and words
        and set("".join(words)) <= set("".join(WORDS))
        and "[MASK]" not in words
    )
    os.rename(tmp_path / "kept.t.jsonl", tmp_path / "t.jsonl")
    status, out, err = cli("evaluate", "checkpoint=run", "part=test", "output=e.json")
    assert status == 1 and "owt has no test part; set part=train, or part=valid" in err
    status, out, _ = cli("evaluate", "checkpoint=run", "part=valid", "num_draws=2", "output=e.json")
    content = json.loads((tmp_path / "e.json").read_text())
    assert (
        status == 0
        and set(content["groups"]) == {"all", "without specials"}
        and "without specials" in out
    )
    assert (
        "wrapped: documents one after the other" in content["protocol"]
        and content["data"]["layout"] in content["protocol"]
    )
    assert content["groups"]["without specials"]["tokens"] < content["groups"]["all"]["tokens"]


def test_padded_sentences_train_and_are_evaluated_by_the_papers_protocol(cli, files, tmp_path):
    args = [
        "data=lm1b",
        *files,
        *NETWORK,
        "objective.protocol=mdlm",
        "trainer.max_steps=2",
        "hydra.run.dir=run",
    ]
    assert cli("train", *args)[0] == 0
    for protocol in ("mdlm", "count"):
        assert (
            cli(
                "evaluate",
                "checkpoint=run",
                "part=valid",
                f"protocol={protocol}",
                f"output={protocol}.json",
                "num_draws=2",
            )[0]
            == 0
        )
    contents = [
        json.loads((tmp_path / f"{protocol}.json").read_text()) for protocol in ("mdlm", "count")
    ]
    assert [c["protocol"].split(",")[1].strip()[:6] for c in contents] == ["MDLM's", "count "]
    assert all("padded: each document a window of 16 tokens" in c["protocol"] for c in contents)
    assert contents[0]["groups"]["all"]["tokens"] == contents[1]["groups"]["all"]["tokens"]
    status, out, _ = cli(
        "evaluate", "checkpoint=run", "part=valid", "length=8", "num_draws=2", "output=short.json"
    )
    assert status == 0 and "padded: each document a window of 8 tokens" in out
    with pytest.raises(ValueError, match="padding, which is for text"):
        build_denoiser(compose("train", ["objective.protocol=mdlm"]), checkpoint_tokenizer(), None)


def checkpoint_tokenizer():
    from dnadiff.data.tokenizer import DNATokenizer

    return DNATokenizer()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["data=owt2"], "data=owt2 does not exist; did you mean owt?"),
        (["data=owt", "tokenizer=gpt3"], "tokenizer=gpt3 does not exist; did you mean gpt2?"),
        (["data=ecoli", "tokenizer=gpt2"], "tokenizer= is for text"),
        (["data=text", "data.path=none.txt"], "none.txt does not exist"),
        (
            ["data=text", "data.path=t.txt", "tokenizer=pretrained", "tokenizer.source=none.json"],
            "tokenizer.source none.json does not exist",
        ),
        (
            ["data=text", "data.path=t.txt", "objective.protocol=paper"],
            "objective.protocol 'paper' is not known",
        ),
    ],
)
def test_bad_input_gets_one_line(cli, tmp_path, args, message):
    (tmp_path / "t.txt").write_text("to be or not to be\n" * 100)
    status, _, err = cli("train", *args, *NETWORK)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err


def test_dna_needs_none_of_the_packages_for_text(python, without, train_args, tmp_path):
    code = without("datasets", "tokenizers", "pyarrow", "huggingface_hub") + (
        f"from dnadiff.train import train; train.start({train_args('dit', 1)!r})\n"
        "from dnadiff.model import load; load('run')"
    )
    process = python("-c", code, cwd=tmp_path)
    assert process.wait() == 0 and (tmp_path / "run" / "metrics.json").is_file(), process.errors


class Spy(MaskedDenoiser):
    """A denoiser that says nothing of the tokens, and notes what it was shown."""

    def __init__(self, vocab):
        super().__init__(vocab)
        self.shown = []

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.shown.append((xt, valid))
        return torch.full((int(positions.sum()), self.vocab.size), -1.0)

    def nll(self, x0, xt, t=None, cond=None, positions=None, valid=None):
        self.shown.append((xt, valid))
        return torch.ones(int(positions.sum()))


@pytest.mark.parametrize("protocol", ["count", "mdlm"])
def test_padding_is_masked_under_the_papers_protocol_alone(protocol):
    vocab = CharTokenizer("ab").vocab
    process = AbsorbingProcess(vocab, LogLinear())
    x0 = torch.full((64, 16), 2)
    x0[:, 8:] = vocab.pad_id
    weight, spy = (x0 != vocab.pad_id).float(), Spy(vocab)
    loss = MDLM(process, Bernoulli(), protocol=protocol)(
        spy, x0, weight, Draws.for_batch(0, 64), valid=weight > 0
    )
    shown, valid = spy.shown[0]
    corrupted = (shown[:, 8:] == vocab.mask_id).float().mean()
    assert int(loss.num_tokens) == 64 * 8 and 0.85 < float(loss.nll) < 1.15
    assert (
        (corrupted == 0 and valid is not None)
        if protocol == "count"
        else (0.4 < corrupted < 0.6 and valid is None)
    )
    for objective in (MDLM, SEDD, D3PM):
        assert objective(process, protocol=protocol).evaluation().protocol == protocol
    with pytest.raises(ValueError, match="choose one of count, mdlm"):
        MDLM(process, protocol="paper")
    assert isinstance(MDLM(process).denoiser(Plain(vocab, 4)), Denoiser)


class Plain(BidirectionalBackbone):
    """As much of a network as a denoiser needs when it is built."""

    def features(self, ids, sigma=None, cond=None, valid=None):
        raise NotImplementedError

    head = features


def test_every_text_says_where_it_comes_from():
    """Each named corpus has a Hub id without code, and its tokenizer a pinned revision."""
    named = [
        n for n in ("owt", "lm1b", "text8", "wikitext2", "wikitext103", "ptb", "lambada", "ag_news")
    ]
    for name in named:
        data = compose("train", [f"data={name}"])["data"]
        assert (
            data["hub"]["id"].count("/") == 1
            and data["hub"]["revision"]
            and data["hub"]["splits"]
            and data["path"] is None
        )
        assert "trust_remote_code" not in yaml.safe_dump(data)
        assert data.get("streaming", False) is False and ("streaming" in data) == (
            name not in ("text8", "lambada")
        )
        tokenizer = data["tokenizer"]
        assert tokenizer["_target_"].endswith("Characters") or len(tokenizer["revision"]) == 40
