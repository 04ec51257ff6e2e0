"""Pairs of a source and a target: their windows, the lengths of targets, and files."""

import gzip
import json

import numpy as np
import pytest
import torch

from dnadiff.data.text.pairs import PairsDataModule, target_lengths
from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import END, SEPARATOR, CharTokenizer
from dnadiff.formats.documents import read_sides

BOTH = ["source", "target"]


def module(path, **options):
    parts = {"train": str(path), "valid": str(path), "test": str(path)}
    return PairsDataModule(parts, **{"length": 12, "batch_size": 2, "bucket": 4, **options})


def test_a_window_is_source_separator_target_and_ends(tmp_path):
    (tmp_path / "p.tsv").write_text("ab\tba\nb\tabba\n")
    data = module(tmp_path / "p.tsv")
    tiles = data.test_windows("test")
    rows = [tile["ids"][tile["valid"]].tolist() for tile in tiles]
    assert [data.tokenizer.decode(row) for row in rows] == [
        f"ab{SEPARATOR}ba{END}{END}",
        f"b{SEPARATOR}abba{END * 4}",
    ]
    weights = [[0] * 3 + [1] * 4 + [0] * 5, [0] * 2 + [1] * 8 + [0] * 2]
    assert [tile["weight"].tolist() for tile in tiles] == weights
    assert "pairs" not in data.layout() and data.describe()["cut_documents"]["test"] == 0


def test_a_batch_is_as_wide_as_its_longest_pair(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\nab\tb\n")
    data = module(tmp_path / "p.tsv", length=64)
    assert [batch["ids"].shape for batch in data.train_dataloader()] == [(2, 8)]


def test_subwords_are_separated_and_ended_by_their_end_token(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    (tmp_path / "p.jsonl").write_text(json.dumps({"source": "a b", "target": "b\na"}) + "\n")
    data = module(tmp_path / "p.jsonl", tokenizer=Pretrained(str(tmp_path / "vocab.txt")))
    tile = data.test_windows("test")[0]
    assert tile["ids"].tolist() == [5, 6, 3, 6, 5, 3, 3, 0, 0, 0, 0, 0]
    assert tile["weight"].tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0]


def test_an_alphabet_without_separators_is_refused(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\n")
    with pytest.raises(ValueError, match=r"no token that ends a text.*set tokenizer=characters"):
        module(tmp_path / "p.tsv", tokenizer=CharTokenizer("ab")).prepare()


@pytest.mark.parametrize(
    ("name", "text", "columns", "expected"),
    [
        ("p.tsv", "a b\tc\n\nd\te\r\n", BOTH, [["a b", "c"], ["d", "e"]]),
        ("p.txt", "a\tb\n", BOTH, [["a", "b"]]),
        ("p.csv", "target,source\nb,a\n", BOTH, [["a", "b"]]),
        ("p.jsonl", '{"source": "a\\tb", "target": "c"}\n', BOTH, [["a\tb", "c"]]),
        ("p.jsonl", '{"source": "a"}\n', ["source"], [["a"]]),
        ("s.txt", "a b\n\tc\n".replace("\t", ""), ["source"], [["a b"], ["c"]]),
        ("p.tsv", "a\tb\n", ["source"], [["a", "b"]]),
    ],
)
def test_pairs_are_read_from_lines_and_tables(tmp_path, name, text, columns, expected):
    (tmp_path / name).write_text(text)
    file = str(tmp_path / name)
    assert [sides for _, sides in read_sides(file, columns)] == expected
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert [sides for _, sides in read_sides(f"{file}.gz", columns)] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\n\tb\n", "line 2 has an empty source; complete or remove the pair"),
        ("a\t \n", "line 1 has an empty target"),
        ("a b\n", "line 1 has 0 tabs; expected source, tab and target"),
        ("a\tb\tc\n", "line 1 has 2 tabs"),
        ("a\tb\na\x1fb\tc\n", r"line 2 contains the control character U\+001F, which separates"),
    ],
)
def test_bad_pairs_are_named(tmp_path, text, message):
    (tmp_path / "p.tsv").write_text(text)
    with pytest.raises(ValueError, match=message):
        list(read_sides(str(tmp_path / "p.tsv"), BOTH))


def test_lengths_are_those_of_similar_sources(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\n" * 5 + "ab\tabb\n" * 2 + "ababa\tababa\nbbbbbb\tb\n")
    counts = module(tmp_path / "p.tsv", length=32).measured()["lengths"]
    # full buckets of source and separator, tokens of the target with its ends, pairs
    assert counts == [[0, 4, 7], [1, 4, 1], [1, 8, 1]]
    assert target_lengths(counts, 4, 5, 99) == [4, 8]  # 7/2 + 1 against 1
    assert target_lengths(counts, 4, 20, 99) == [4, 8]
    assert target_lengths([[1, 4, 1], [9, 8, 1]], 4, 30, 99) == [8, 4]  # the nearer one
    assert target_lengths(counts, 4, 5, 7) == [4] and target_lengths(counts, 4, 5, 3) == []


def test_sources_and_targets_of_a_bucket_have_the_same_tokens_in_any_order(tmp_path):
    (tmp_path / "p.tsv").write_text(
        "".join(f"{'a' * (i % 7 + 1)}\t{'b' * i}\n" for i in range(1, 9))
    )
    data = module(tmp_path / "p.tsv", length=32, batch_size=8)
    (batch,) = data.train_dataloader()
    target = (batch["weight"] > 0).sum(1)
    assert set((target % 4).tolist()) == {0} and batch["ids"].shape[1] % 4 == 0
    first = batch["weight"].argmax(1)
    separators = batch["ids"][torch.arange(8), first - 1]
    assert len(set(separators.tolist())) == 1
    assert np.all(np.diff(np.sort(target.numpy())) >= 0)


def test_a_source_leaves_room_for_its_target(tmp_path):
    for name, size in (("a", 2), ("b", 10), ("c", 11)):
        text = f"a\tb\n\n{'a' * size}\tb\n"
        (tmp_path / name).write_text(text)
    module(tmp_path / "b").check_training()
    wrong = "c: line 3 has a source of 12 tokens with its separator, which leaves nothing of 12"
    for parts in (
        {"train": str(tmp_path / "c"), "valid": str(tmp_path / "a")},
        {"train": [str(tmp_path / "a"), str(tmp_path / "c")], "valid": str(tmp_path / "a")},
    ):
        with pytest.raises(ValueError, match=wrong):
            PairsDataModule(parts, 12, 2, 4).check_training()
    tested = PairsDataModule({"train": str(tmp_path / "a"), "test": str(tmp_path / "c")}, 16, 2, 4)
    assert len(tested.test_windows()) == 2
    with pytest.raises(ValueError, match=wrong):
        tested.test_windows(length=12)
