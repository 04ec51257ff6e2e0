"""`python -m dnadiff.judge_text` and `zero_shot`, from a run to the table."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dnadiff.data.records import Tile
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.genomics.metrics.text_quality import (
    JudgeModel,
    decoded_documents,
    encode_with_separators,
    read_texts,
    real_texts,
    split_documents,
)
from dnadiff.networks.backbone.base import BidirectionalBackbone, BlockBackbone, CausalBackbone
from dnadiff.train import train
from dnadiff.zero_shot import PUBLISHED, ZeroShotOptions, data_of, protocols_of, rows_of

SMALL = [
    "data.length=32",
    "data.batch_size=4",
    "data.max_valid_windows=2",
    "trainer.max_steps=2",
    "trainer.val_check_interval=2",
]
SMALL += [
    "backbone.d_model=16",
    "backbone.n_layers=1",
    "backbone.n_heads=2",
    "trainer.accelerator=cpu",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A DiT and a causal transformer trained for two steps on the same text."""

    folder = tmp_path_factory.mktemp("text")
    (folder / "book.txt").write_text("Sphinx of black quartz, judge my vow. " * 60)
    for name, args in (("dit", ["backbone=dit"]), ("ar", ["objective=ar", "backbone=transformer"])):
        args = ["data=text", f"data.path={folder / 'book.txt'}", *args, *SMALL]
        train.start([*args, f"hydra.run.dir={folder / name}"])
    return folder


def test_samples_are_compared_with_real_text(cli, runs, tmp_path):
    args = [
        f"checkpoint={runs / 'dit'}",
        f"judge={runs / 'ar'}",
        "num_samples=6",
        "sampler.num_groups=4",
        "output=j.json",
    ]
    status, out, err = cli("judge_text", *args)
    assert status == 0, err
    found = json.loads((tmp_path / "j.json").read_text())
    ours, real = found["rows"]["samples"], found["rows"]["real text"]
    assert (
        ours["texts"] == 6
        and ours["tokens"] == 6 * 32
        and ours["perplexity"] > 1
        and 0 < ours["entropy"] <= math.log(32)
    )
    assert (
        real["repetition"] < 1
        and real["source"] == "book.txt, part test"
        and [r["start"] for r in found["by_position"]] == [0, 8, 16, 24]
    )
    assert "generative perplexity" in out and "the real text is of book.txt, part test" in out


def test_long_samples_are_judged_by_position(cli, runs, tmp_path):
    args = [
        f"checkpoint={runs / 'dit'}",
        f"judge={runs / 'ar'}",
        "num_samples=2",
        "sampler=semi_ar",
        "sampler.sampler.num_groups=2",
    ]
    status, _, err = cli("judge_text", *args, "length=136", "output=j.json")
    assert status == 0, err
    rows = json.loads((tmp_path / "j.json").read_text())["by_position"]
    assert [(r["start"], r["end"]) for r in rows] == [
        *((s, s + 16) for s in range(0, 128, 16)),
        (128, 136),
    ]
    assert all({"perplexity", "entropy", "repetition"} <= r.keys() for r in rows)


def test_texts_from_a_file(cli, runs, tmp_path):
    (tmp_path / "x.jsonl").write_text(
        "".join(
            json.dumps({"text": t}) + "\n" for t in ("judge my vow", "black quartz, black quartz")
        )
    )
    (tmp_path / "x.txt").write_text("judge my vow\n\nblack quartz, black quartz\n\n")
    found = []
    for name in ("x.jsonl", "x.txt"):
        status, _, err = cli(
            "judge_text",
            f"samples={name}",
            f"judge={runs / 'ar'}",
            "ngram_size=3",
            f"output={name}.json",
        )
        assert status == 0, err
        found.append(json.loads((tmp_path / f"{name}.json").read_text()))
    assert found[0]["rows"] == found[1]["rows"] and found[0]["by_position"] == []
    assert found[0]["rows"]["samples"]["tokens"] == 38 and found[0]["rows"]["samples"][
        "repetition"
    ] == pytest.approx(10 / 24 / 2)


def test_unicode_line_separators_are_part_of_a_text(tmp_path):
    texts = ["one\u2028two\x85three", "four\x0cfive"]
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), encoding="utf-8"
    )
    assert read_texts(tmp_path / "x.jsonl") == texts


@pytest.fixture
def subwords():
    """subwords(name, words): a BERT-like tokenizer whose ids are the indices of the words."""
    pytest.importorskip("tokenizers")
    from dnadiff.data.text.pretrained import SubwordTokenizer, word_piece

    def make(name, words):
        return SubwordTokenizer(
            word_piece(words),
            name,
            mask="[MASK]",
            pad="[PAD]",
            bos="[CLS]",
            eos="[SEP]",
            unk="[UNK]",
        )

    return make


def test_special_tokens_are_replaced_by_those_of_the_judge(subwords):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "black", "quartz", "judge", "my", "vow"]
    ours, judge = subwords("ours", words), subwords("judge", words[:5] + words[:4:-1])
    ids = np.array([2, 5, 6, 3, 7, 8, 9, 3])  # [CLS] black quartz [SEP] judge my vow [SEP]
    assert decoded_documents(ids, ours) == ["black quartz", "judge my vow"]
    assert encode_with_separators(decoded_documents(ids, ours), judge).tolist() == [
        9,
        8,
        3,
        7,
        6,
        5,
    ]
    assert split_documents("[CLS] black quartz [SEP] judge my vow [SEP]", judge) == [
        "",
        " black quartz ",
        " judge my vow ",
        "",
    ]
    assert encode_with_separators(
        split_documents("[CLS] black quartz [SEP] judge my vow [SEP]", judge), judge
    ).tolist() == [
        9,
        8,
        3,
        7,
        6,
        5,
    ]
    assert (
        encode_with_separators(decoded_documents(np.array([2, 3, 3]), ours), judge).tolist() == []
        and decoded_documents(np.zeros(0, np.int64), ours) == []
    )
    characters = CharTokenizer("abc")
    assert encode_with_separators(
        decoded_documents(np.array([2, 3, 4]), characters), characters
    ).tolist() == [2, 3, 4]


def test_separators_at_the_ends_of_a_sample_do_not_count_with_either_tokenizer(subwords):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "black", "quartz", "judge", "my", "vow"]
    ours, other = subwords("ours", words), subwords("other", words[:5] + words[:4:-1])
    drawn = np.array([[2, 5, 6, 3, 7, 8, 9, 3], [5, 3, 6, 7, 8, 9, 5, 6], [3, 2, 3, 3, 3, 3, 3, 3]])
    same, encoded = (
        JudgeModel(None, one, 8, Path("judge")).read(drawn, ours) for one in (ours, other)
    )
    assert [ids.tolist() for ids in same] == [[5, 6, 3, 7, 8, 9], [5, 3, 6, 7, 8, 9, 5, 6], []]
    assert [[words[i] for i in ids] for ids in same] == [
        [other.decode([i]) for i in ids] for ids in encoded
    ]


class Windows(list):
    """The last one overlaps the one before."""

    tiles = [Tile(0, 3 * i, 0) for i in range(3)] + [Tile(0, 8, 2)]


class Parts:
    """Data with these parts, whose windows are one text."""

    name = "book.txt"

    def __init__(self, parts):
        self.parts = parts

    def prepare(self):
        pass

    def test_windows(self, part, length):
        if part not in self.parts:
            raise ValueError(f"{self.name} has no {part} part")
        windows = Windows([{"ids": torch.tensor([2, 3, 4]), "weight": torch.ones(3)}] * 3)
        windows.append({"ids": torch.tensor([2, 3, 4]), "weight": torch.tensor([0, 0, 1])})
        return windows


@pytest.mark.parametrize(
    ("parts", "source"),
    [
        (["train", "valid", "test"], "book.txt, part test"),
        (["train", "valid"], "book.txt, part valid"),
    ],
)
def test_data_without_a_test_part_have_real_text_from_the_validation_part(
    monkeypatch, parts, source
):
    monkeypatch.setattr("dnadiff.genomics.metrics.text_quality.run_data", lambda *_: Parts(parts))
    judge = SimpleNamespace(data={}, tokenizer=CharTokenizer("abc"))
    texts, found = real_texts(judge, {"trust": []}, [3, 3])
    assert found == source and [ids.tolist() for ids in texts] == [[2, 3, 4]] * 2


def test_a_judge_without_data_says_how_to_compare_with_real_text(caplog):
    with caplog.at_level("INFO", "dnadiff"):
        assert real_texts(SimpleNamespace(data=None, path="gpt2"), {}, [3]) == ([], "")
    assert (
        "gpt2 names no data; for a row of it, judge a file of real text too (samples=real.txt)"
        in caplog.text
    )


def test_equal_tokenizers_with_different_names_are_the_same(cli, tmp_path, subwords):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "black", "quartz", "judge", "my", "vow"]
    (tmp_path / "book.txt").write_text("judge my vow black quartz " * 200)
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    for name, args in (("dit", ["backbone=dit"]), ("ar", ["objective=ar", "backbone=transformer"])):
        more = [
            "data=text",
            "data.path=book.txt",
            "tokenizer=pretrained",
            "tokenizer.source=vocab.txt",
            f"tokenizer.name={name}",
            *SMALL,
        ]
        assert cli("train", *more, *args, f"hydra.run.dir={name}")[0] == 0
    args = ["checkpoint=dit", "judge=ar", "num_samples=2", "sampler.num_groups=2", "output=j.json"]
    status, _, err = cli("judge_text", *args)
    assert status == 0, err
    found = json.loads((tmp_path / "j.json").read_text())
    assert 0 < found["rows"]["samples"]["tokens"] <= 64 and all(
        "perplexity" in row for row in found["by_position"]
    )


def test_zero_shot_names_its_protocol(cli, runs, tmp_path):
    (tmp_path / "other.txt").write_text("my black vow, judge of quartz. " * 60)
    for run, protocols in (("dit", ["mdlm", "count"]), ("ar", ["exact"])):
        args = [
            f"checkpoint={runs / run}",
            "sets=[text]",
            "paths={text: other.txt}",
            "num_draws=2",
            "output=z.json",
            "overwrite=true",
        ]
        status, out, err = cli("zero_shot", *args)
        assert status == 0, err
        found = json.loads((tmp_path / "z.json").read_text())
        assert [r["protocol"] for r in found["rows"]] == protocols and all(
            r["set"] == "text" for r in found["rows"]
        )
        assert found["rows"][0]["perplexity"] > 1 and all(p in out for p in protocols)


def test_a_local_file_is_the_part_that_is_evaluated(cli, runs, tmp_path):
    (tmp_path / "other.txt").write_text("my black vow " * 60)
    args = [
        "sets=[lm1b,ptb,ag_news]",
        "part=published",
        "paths={lm1b: other.txt, ptb: {valid: [other.txt]}, ag_news: [other.txt]}",
    ]
    status, _, err = cli(
        "zero_shot", f"checkpoint={runs / 'dit'}", "protocols=[mdlm]", *args, "output=z.json"
    )
    assert status == 0, err
    rows = json.loads((tmp_path / "z.json").read_text())["rows"]
    assert [(r["set"], r["part"]) for r in rows] == [
        ("lm1b", "test"),
        ("ptb", "valid"),
        ("ag_news", "test"),
    ]
    assert rows[0]["tokens"] == len("my black vow ") * 60  # all of the file


@pytest.mark.parametrize(
    ("name", "part", "path"),
    [
        ("lm1b", "test", {"test": "x"}),
        ("ptb", "valid", {"valid": "x"}),
        ("ag_news", "train", {"train": "x"}),
        # sets that find the part in the file: by the split, and at the end of the training part
        ("text", "test", "x"),
        ("owt", "valid", "x"),
    ],
)
def test_a_path_without_a_part_gets_the_part(name, part, path):
    assert data_of(name, part, "x", {})["path"] == path
    given = {"train": "a", part: "b"}
    assert data_of(name, part, given, {})["path"] == given


@pytest.mark.parametrize(
    ("reads", "protocols"),
    [
        (BidirectionalBackbone, ["mdlm", "count"]),
        (CausalBackbone, ["exact"]),
        (BlockBackbone, ["count"]),
    ],
)
def test_zero_shot_uses_the_protocols_that_a_model_allows(reads, protocols):
    denoiser = BaseDenoiser(CharTokenizer("ab").vocab)
    denoiser.reads = reads
    assert list(protocols_of(denoiser, ["mdlm", "count"])) == protocols


def test_an_interrupted_zero_shot_can_be_started_again_and_a_complete_one_cannot(
    cli, runs, tmp_path
):
    (tmp_path / "other.txt").write_text("my black vow, judge of quartz. " * 60)
    args = [
        f"checkpoint={runs / 'dit'}",
        "sets=[text]",
        "protocols=[mdlm]",
        "paths={text: other.txt}",
        "hydra.run.dir=z",
    ]
    assert cli("zero_shot", *args)[0] == 0
    assert "z/zero_shot.json exists; set overwrite=true" in cli("zero_shot", *args)[2]
    (tmp_path / "z" / "zero_shot.json").unlink()  # killed before it was written
    status, _, err = cli("zero_shot", *args)
    assert status == 0 and (tmp_path / "z" / "zero_shot.json").exists(), err


def test_sets_are_laid_out_as_the_training_text_was():
    trained_on = {
        "length": 64,
        "wrap": True,
        "insert_special_tokens": False,
        "insert_valid_eos": None,
        "path": "mine.txt",
        "detokenizer": None,
    }
    sets = ZeroShotOptions.model_fields["sets"].default
    assert [PUBLISHED.get(name, "test") for name in sets] == ["valid"] * 3 + ["test"] * 3
    for name in sets:  # LM1B too, whose own group pads
        data = data_of(name, PUBLISHED.get(name, "test"), None, trained_on)
        assert (data["length"], data["wrap"], data["insert_special_tokens"]) == (64, True, False)
        assert data["path"] is None and (data["detokenizer"] is None) == (name == "ag_news")


def test_specials_are_counted_and_left_out():
    groups = {"all": {"bits": 1.0}, "without specials": {"bits": 2.0}}
    rows = rows_of("ptb", "valid", "count", {"groups": groups, "protocol": "words"})
    assert [(r["specials"], r["bits"]) for r in rows] == [("counted", 1.0), ("left out", 2.0)]
    assert (
        rows_of("ptb", "valid", "count", {"groups": {"all": {"bits": 1.0}}, "protocol": "words"})[
            0
        ]["specials"]
        == "none"
    )


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        (
            "judge_text",
            ["judge={ar}"],
            "give either checkpoint=RUN, which is sampled, or samples=FILE",
        ),
        (
            "judge_text",
            ["checkpoint={dit}", "judge={dit}"],
            "must be an autoregressive model of text",
        ),
        (
            "judge_text",
            ["samples=one.txt", "judge={ar}", "length=32"],
            "length is for samples of checkpoint=, and the texts of samples=one.txt",
        ),
        (
            "judge_text",
            ["samples=one.txt", "judge={ar}", "sampler.num_groups=2"],
            "sampler.num_groups is for samples of checkpoint=",
        ),
        ("judge_text", ["samples=x.fa", "judge={ar}"], "must be a .jsonl or a .txt file"),
        ("judge_text", ["samples=broken.jsonl", "judge={ar}"], "broken.jsonl: line 1 is not JSON"),
        (
            "judge_text",
            ["samples=bad.jsonl", "judge={ar}"],
            "bad.jsonl: line 1 is a list; expected one object per line",
        ),
        ("zero_shot", ["checkpoint={dit}", "sets=[]"], "must be a list of different names"),
        ("zero_shot", ["checkpoint={dit}", "sets=[text]"], "name a file"),
        (
            "zero_shot",
            ["checkpoint={dit}", "sets=[text]", "protocols=[all]"],
            "protocols[0] 'all' is not known",
        ),
        (
            "zero_shot",
            ["checkpoint={dit}", "sets=[text]", "paths={ptb: x}"],
            "must name files by set",
        ),
        (
            "zero_shot",
            ["checkpoint={dit}", "sets=[ptb]", "part=all"],
            "part 'all' is not known; choose one of test, valid",
        ),
        (
            "zero_shot",
            ["checkpoint={dit}", "sets=[ptb]", "part=valid", "paths={ptb: {test: one.txt}}"],
            "ptb has no valid part; set part=test, or 'paths={ptb: {valid: FILE}}'",
        ),
        # before anything is evaluated: the first set alone would do
        (
            "zero_shot",
            ["checkpoint={dit}", "sets=[text,ptb]", "paths={text: one.txt, ptb: none.txt}"],
            "none.txt does not exist",
        ),
        (
            "zero_shot",
            ["checkpoint={dit}", "sets=[ecoli]"],
            "choose data or a model of the same vocabulary",
        ),
        ("zero_shot", ["checkpoint={dit}", "sets=[nothing]"], "data=nothing does not exist"),
        ("zero_shot", ["checkpoint={dna}", "sets=[text]"], "was trained on DNA"),
    ],
)
def test_invalid_input_gives_one_line(cli, runs, trained, tmp_path, command, args, message):
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    (tmp_path / "bad.jsonl").write_text('["text"]\n')
    (tmp_path / "broken.jsonl").write_text('{"text": "a"\n')
    (tmp_path / "one.txt").write_text("my vow " * 60)
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli(
        command,
        *(
            a.replace("{dit}", str(runs / "dit"))
            .replace("{ar}", str(runs / "ar"))
            .replace("{dna}", str(trained))
            for a in args
        ),
    )
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err, err
    assert {p.name for p in tmp_path.iterdir()} == before
