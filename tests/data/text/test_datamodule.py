"""Documents as windows: wrapped without loss, padded with masked padding, tokenized once."""

import contextlib
import csv
import gzip
import json
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from dnadiff.data.text.corpus import Encoder, Files, tokenize
from dnadiff.data.text.datamodule import TextDataModule
from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.formats.documents import format_of
from dnadiff.store.disk import locked

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
]


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A small tokenizer of BERT's kind: [CLS] 2, [SEP] 3, a 5, b 6, ..."""
    pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("letters") / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return Pretrained(str(path)).load()


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Documents of one to nine letters in files for the three parts."""
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    paths = {}
    for part, number in (("train", 60), ("valid", 20), ("test", 20)):
        lines = [
            " ".join("abcdefghijklmnopqrstuvwxyz"[(i * i + k) % 26] for k in range(1 + i % 9))
            for i in range(number)
        ]
        paths[part] = tmp_path / f"{part}.txt"
        paths[part].write_text("\n".join(lines) + "\n")
    return {part: str(path) for part, path in paths.items()}


def module(path, tokenizer=None, **options):
    options = {"length": 8, "batch_size": 4, "documents": "line", "windows": "blocks", **options}
    return TextDataModule(path, tokenizer=tokenizer, **options)


def test_wrapping_a_literal_example(tmp_path, letters):
    (tmp_path / "t.txt").write_text("a b c\nd\ne f g h\ni j k l m n o p\n")
    tiles = module({"test": str(tmp_path / "t.txt")}, letters).test_windows("test")
    # a b c [SEP] d [SEP] e f g h [SEP] i j k l m n o p [SEP] in blocks of six; the last one
    # overlaps and counts only its new tokens
    assert [t["ids"].tolist() for t in tiles] == [
        [2, 5, 6, 7, 3, 8, 3, 3],
        [2, 9, 10, 11, 12, 3, 13, 3],
        [2, 14, 15, 16, 17, 18, 19, 3],
        [2, 16, 17, 18, 19, 20, 3, 3],
    ]
    assert [t["weight"].tolist() for t in tiles] == [[1] * 8] * 3 + [[1, 0, 0, 0, 0, 1, 1, 1]]


def test_padding_a_literal_example(tmp_path, letters):
    (tmp_path / "t.txt").write_text("a b c\n\ne f g h i j k l m\n")
    tiles = module({"test": str(tmp_path / "t.txt")}, letters, wrap=False).test_windows("test")
    rows = [[2, 5, 6, 7, 3, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0, 0], [2, 9, 10, 11, 12, 13, 14, 3]]
    assert [t["ids"].tolist() for t in tiles] == rows
    assert (
        [t["valid"].tolist() for t in tiles]
        == [t["weight"].bool().tolist() for t in tiles]
        == [[i > 0 for i in row] for row in rows]
    )


def test_without_special_tokens_windows_are_plain_text(tmp_path, letters):
    (tmp_path / "t.txt").write_text("a b c\nd\ne f g h\n")
    options = {"insert_special_tokens": False, "length": 4}
    tiles = module(
        {"test": str(tmp_path / "t.txt")}, letters, insert_valid_eos=False, **options
    ).test_windows("test")
    assert [t["ids"].tolist() for t in tiles] == [[5, 6, 7, 8], [9, 10, 11, 12]]
    data = module(
        {"train": str(tmp_path / "t.txt"), "test": str(tmp_path / "t.txt")},
        letters,
        insert_valid_eos=False,
        **options,
    )
    assert 3 in data.sequences("train")[0] and 3 not in data.sequences("test")[0]
    assert "[SEP] after each document (not in test)" in data.layout()


@pytest.mark.parametrize("length", [5, 8, 64])
def test_the_concatenated_blocks_are_the_corpus(corpus, letters, length):
    data = module(corpus, letters, length=length)
    text = Path(corpus["train"]).read_text().splitlines()
    expected = [i for line in text for i in [*letters.encode(line).tolist(), 3]]
    tiles = data.test_windows("train")
    inside = [t["ids"].long()[1:-1][t["weight"][1:-1] > 0].tolist() for t in tiles]
    assert [i for block in inside for i in block] == expected
    shown = torch.cat([b["ids"][:, 1:-1] for b in data.train_dataloader()])
    assert {tuple(row.tolist()) for row in shown} == {tuple(t["ids"][1:-1].tolist()) for t in tiles}


def test_every_document_occurs_once_per_epoch(corpus, letters):
    data = module(corpus, letters, wrap=False, length=12, batch_size=5)
    loader = data.train_dataloader()
    rows = [[tuple(row) for b in loader for row in b["ids"].tolist()] for _ in range(2)]
    expected = sorted(tuple(t["ids"].tolist()) for t in data.test_windows("train"))
    assert sorted(rows[0]) == sorted(rows[1]) == expected and rows[0] != rows[1]


@pytest.mark.parametrize("wrap", [True, False])
def test_a_resumed_run_sees_the_same_batches(corpus, letters, wrap):
    def batches(skip=None):
        loader = module(corpus, letters, wrap=wrap, seed=3).train_dataloader()
        if skip is not None:
            loader.load_state_dict(skip)
        seen = []
        for _ in range(2):
            for batch in loader:
                seen.append((loader.state_dict(), batch["ids"].tolist()))
        return seen

    expected = batches()
    for number in (0, 2, len(expected) // 2 - 1, len(expected) // 2 + 1):
        assert [ids for _, ids in batches(expected[number][0])][:3] == [
            ids for _, ids in expected[number + 1 : number + 4]
        ]


@pytest.mark.parametrize("wrap", [True, False])
def test_workers_receive_paths_and_give_the_same_batches(corpus, letters, wrap):
    data = module(corpus, letters, wrap=wrap)
    for windows in (data.train_windows(), data.test_windows("valid")):
        packed = pickle.dumps(windows)
        assert (
            data.tokens("train").folder.name.encode() in packed
            or data.tokens("valid").folder.name.encode() in packed
        )
        assert data.sequences("train")[0].tobytes() not in packed and len(packed) < 4000
    single, multiple = (
        [
            b["ids"].tolist()
            for b in module(corpus, letters, wrap=wrap, num_workers=n).train_dataloader()
        ]
        for n in (0, 2)
    )
    assert single == multiple


def test_random_windows_start_anywhere(tmp_path):
    (tmp_path / "book.txt").write_text("abcdefghij" * 30)
    data = TextDataModule(str(tmp_path / "book.txt"), length=8, batch_size=16, epoch_size=160)
    starts = {data.tokenizer.decode(row)[0] for b in data.train_dataloader() for row in b["ids"]}
    assert starts == set("abcdefghij") and data.describe()["layout"].startswith(
        "wrapped: documents one after the other in windows of 8"
    )


def test_the_last_documents_are_validation(corpus, letters):
    data = module(corpus["train"], letters, path_is="train", valid_documents=10)
    assert data.parts == ["train", "valid"]
    tokens = data.tokens("train")
    assert tokens is data.tokens("valid") and [i.end for i in data.documents_of("train")] == [
        50
    ] == [i.start for i in data.documents_of("valid")]
    assert np.array_equal(
        data.sequences("valid")[0], np.concatenate([tokens[d] for d in range(50, 60)])
    )
    with pytest.raises(
        ValueError,
        match=r"has no test part; set part=train, or part=valid, or data\.path=\{test: FILE\}",
    ):
        data.test_windows("test")
    with pytest.raises(
        ValueError, match=r"60 documents and valid_documents is 60: none is left for training"
    ):
        module(corpus["train"], letters, path_is="train", valid_documents=60).check_training()


def test_many_documents_are_split_by_document(tmp_path):
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"text": f"number {i} "}) + "\n" for i in range(200))
    )
    data = TextDataModule(str(tmp_path / "t.jsonl"), length=16, batch_size=4)
    assert [
        (i.start, i.end) for part in ("train", "test", "valid") for i in data.documents_of(part)
    ] == [
        (0, 160),
        (160, 180),
        (180, 200),
    ]


def test_files_of_all_kinds(tmp_path):
    (tmp_path / "a.txt").write_text("one\n two \n\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}\n\n{"text": "four"}\n'))
    (tmp_path / "c.csv").write_text('title,text\nT,"five, 5"\n')
    assert list(Files([tmp_path / n for n in ("a.txt", "b.jsonl.gz", "c.csv")])) == [
        "one\n two \n\n",
        "three",
        "four",
        "five, 5",
    ]
    assert list(Files(tmp_path / "c.csv", column=["title", "text"])) == ["T five, 5"]
    assert [list(Files(tmp_path / "a.txt", kind)) for kind in ("line", "row")] == [
        ["one", "two", ""],
        ["one\n", " two \n", ""],
    ]
    assert list(Files(str(tmp_path / "*.txt"), "line", keep_line_ends=True)) == [
        "one\n",
        " two \n",
        "\n",
    ]
    assert list(Files(tmp_path / "b.jsonl.gz").since(1)) == ["four"]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"text": ["six", "seven"], "n": [1, 2]}), tmp_path / "d.parquet"
    )
    assert list(Files(tmp_path / "d.parquet")) == ["six", "seven"]
    with pytest.raises(
        ValueError, match=r"d\.parquet: row 1 has a value of type int in 'n', and text is expected"
    ):
        list(Files(tmp_path / "d.parquet", column="n"))
    with pytest.raises(
        ValueError,
        match=r"d\.parquet has no column 'body'; its columns are text, n: set data\.column to",
    ):
        list(Files(tmp_path / "d.parquet", column="body"))
    (tmp_path / "d.parquet").write_bytes((tmp_path / "d.parquet").read_bytes()[:100])
    with pytest.raises(ValueError, match="is not a parquet file, or is damaged"):
        list(Files(tmp_path / "d.parquet"))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            {"text": "x"},
            {"column": "body"},
            r"t\.jsonl: line 1 has no column 'body'; set data\.column to one of 'text'",
        ),
        (
            {"text": None, "id": "a"},
            {},
            r"t\.jsonl: line 1 has null in 'text', and text is expected; remove the row, or set "
            r"data\.column",
        ),
        ({"text": 7}, {}, r"t\.jsonl: line 1 has a value of type int in 'text'"),
        ("no json", {}, r"t\.jsonl: line 1 is not JSON"),
        ("[" * 100_000, {}, r"t\.jsonl: line 1 is not JSON \(nested too deeply\)"),
        ("[" * 101 + "]" * 101, {}, r"t\.jsonl: line 1 is not JSON \(nested too deeply\)"),
        (f'{{"text": {"1" * 5000}}}', {}, r"t\.jsonl: line 1 is not JSON \(Exceeds the limit"),
        ('["a"]', {}, r"t\.jsonl: line 1 is a list; expected one object per line"),
        (
            '{"text": "a\\ud800b"}',
            {},
            r"t\.jsonl: line 1 contains an unpaired surrogate \(\\ud800\)",
        ),
        (
            None,
            {"documents": "page"},
            r"documents 'page' is not known; choose one of file, line, row",
        ),
    ],
)
def test_unreadable_files_are_reported(tmp_path, content, options, message):
    (tmp_path / "t.jsonl").write_text(
        content if isinstance(content, str) else json.dumps(content) + "\n"
    )
    with pytest.raises(ValueError, match=message):
        list(Files(tmp_path / "t.jsonl", **options))


@pytest.mark.parametrize("ending", [".jsonl.GZ", ".jsonl.bgz", ".JSONL.BGZ"])
def test_a_compressed_table_is_a_table(tmp_path, ending):
    (tmp_path / f"t{ending}").write_bytes(gzip.compress(b'{"text": "one"}\n'))
    assert list(Files(tmp_path / f"t{ending}")) == ["one"]


def test_tables_with_tabs_are_read_and_spreadsheets_refused(tmp_path):
    for ending in (".tsv", ".tab", ".TSV"):
        (tmp_path / f"t{ending}").write_text("text\tlabel\none\t1\n")
        assert list(Files(tmp_path / f"t{ending}")) == ["one"]
    (tmp_path / "t.xlsx").write_text("one")
    with pytest.raises(ValueError, match=r"spreadsheets are not read; write it as \.csv, \.tsv"):
        Files(tmp_path / "t.xlsx")


@pytest.mark.parametrize("ending", ["gz", "BGZ"])
def test_compressed_parquet_is_refused_with_the_remedy(tmp_path, ending):
    (tmp_path / f"t.parquet.{ending}").write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(
        ValueError, match=r"parquet is not read from a compressed file; unpack it \(gunzip\)"
    ):
        Files(tmp_path / f"t.parquet.{ending}")


def test_a_null_in_a_parquet_file_is_named_with_its_row(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [*["one"] * 1500, None]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "n.parquet")
    with pytest.raises(
        ValueError, match=r"n\.parquet: row 1,501 has null in 'text', and text is expected"
    ):
        list(Files(tmp_path / "n.parquet"))


@pytest.mark.parametrize(
    "path",
    [
        "https://h/x.jsonl?download=1",
        "cached:https://h/x.jsonl?download=1",
        "s3://b/x.JSONL.gz?versionId=2",
    ],
)
def test_the_query_of_an_address_does_not_hide_the_kind_of_a_file(path):
    assert format_of(path).name == "jsonl"


def test_short_lines_need_no_more_memory_than_long_ones(tmp_path):
    text = "a\n" * (1 << 20)
    (tmp_path / "t.txt").write_bytes(text.encode())
    tracemalloc.start()
    assert list(Files(tmp_path / "t.txt")) == [text]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(text)


def test_a_surrogate_pair_in_two_escapes_is_text(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "a\\ud83d\\ude00b"}\n')
    assert list(Files(tmp_path / "t.jsonl")) == ["a😀b"]


def test_a_field_of_a_table_may_be_long(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text(f'text\n"{"x" * 200_000}"\n')
    assert list(Files(tmp_path / "t.csv")) == ["x" * 200_000]
    limit = csv.field_size_limit(1000)
    try:
        with pytest.raises(
            ValueError, match=r"t\.csv: line 2 is not a row of a table .field larger than"
        ):
            list(Files(tmp_path / "t.csv"))
    finally:
        csv.field_size_limit(limit)


def test_a_pattern_skips_folders(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("z.txt", "a/y.txt", "a/b/x.txt"):
        (tmp_path / name).write_text(name)
    assert list(Files(str(tmp_path / "**"))) == ["a/b/x.txt", "a/y.txt", "z.txt"]


def test_a_pattern_without_a_match_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"\*\.txt matches no file"):
        Files(str(tmp_path / "*.txt"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": "tiled"}, r"windows 'tiled' is not known; choose one of uniform, blocks"),
        ({"path_is": "valid"}, r"path_is 'valid' is not known; choose one of all, train, test"),
        ({"valid_documents": 0}, r"valid_documents 0 must be an integer of at least 1"),
        ({"num_proc": 0}, r"num_proc 0 must be an integer of at least 1"),
        ({"detokenizer": "x"}, r"choose one of wikitext, ptb"),
        ({"streaming": True, "wrap": False, "path_is": "train"}, r"set data\.wrap=true"),
        ({"streaming": True}, r"streaming=true needs separate parts"),
        ({"streaming": True, "path_is": "train", "valid_documents": 3}, r"set data\.num_documents"),
        ({"streaming": True, "path_is": "train", "epoch_size": 8}, r"set data\.epoch_size=null"),
        ({"streaming": "no"}, r"streaming=no is neither true nor false"),
        ({"wrap": "no"}, r"wrap=no is neither true nor false"),
        ({"wrap": None}, r"wrap None must be true or false"),
        ({"insert_eos": "no"}, r"insert_eos=no is neither true nor false"),
        ({"insert_valid_eos": 0}, r"insert_valid_eos 0 must be true or false"),
        (
            {"insert_special_tokens": "false"},
            r"insert_special_tokens=false is neither true nor false",
        ),
        (
            {"valid_documents": 10},
            r"valid_documents is 10, but a single path .* set data\.path_is=train",
        ),
        ({"column": 7}, r"column 7 must be a string or a list"),
    ],
)
def test_contradictory_settings_are_rejected(corpus, options, message):
    with pytest.raises(ValueError, match=message):
        module(corpus["train"], **options).prepare()


def test_unknown_parts_are_rejected(corpus):
    with pytest.raises(
        ValueError, match="path has the parts dev; expected some of train, valid, test"
    ):
        module({"dev": corpus["train"]})
    with pytest.raises(ValueError, match=r"path names no file; set data\.path"):
        TextDataModule(None, length=8, batch_size=2)


def test_a_tokenizer_without_the_required_tokens_is_rejected(corpus):
    with pytest.raises(
        ValueError,
        match=r"tokenizer characters has no token that ends a text; set data\.insert_eos=false",
    ):
        module(corpus, insert_eos=True).prepare()
    with pytest.raises(
        ValueError, match=r"has no token that begins a text; set data\.insert_special_tokens=false"
    ):
        module(corpus, insert_special_tokens=True).prepare()
    with pytest.raises(ValueError, match="the model was trained on dna, but these data are text"):
        module(corpus).expect(DNATokenizer())


def test_training_reports_the_missing_part(corpus, letters):
    with pytest.raises(
        ValueError,
        match=r"has only train; set data\.path=\{train: FILE, valid: FILE\}, or "
        r"data\.valid_documents=N",
    ):
        module({"train": corpus["train"]}, letters).check_training()
    with pytest.raises(
        ValueError, match=r"has only test; set data\.path=\{train: FILE, valid: FILE\}$"
    ):
        module(corpus["test"], letters, path_is="test").check_training()


def test_held_out_documents_of_a_single_file_can_have_other_end_tokens(
    tmp_path, monkeypatch, letters
):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.txt").write_text("a b\n" * 200)
    plain, data = (
        module(str(tmp_path / "t.txt"), letters, insert_valid_eos=eos) for eos in (None, False)
    )
    assert (
        data.sequences("train")[0].tolist()
        == [5, 6, 3] * 160
        == plain.sequences("train")[0].tolist()
    )
    assert [data.sequences(part)[0].tolist() for part in ("valid", "test")] == [[5, 6] * 20] * 2
    assert plain.sequences("valid")[0].tolist() == [5, 6, 3] * 20
    about = data.describe()
    assert (
        about["split_tokens"] == {"train": 480, "valid": 40, "test": 40} and about["records"] == 200
    )
    assert about["layout"].endswith("[SEP] after each document (not in valid and test)")
    assert about["split_hash"] != plain.describe()["split_hash"]
    (tmp_path / "t.txt").write_text(
        "a b\n" * 50
    )  # too few to split by document: the split divides the stream of tokens
    with pytest.raises(
        ValueError,
        match=r"insert_valid_eos=false differs from training, and the split divides 50 documents "
        r"by position",
    ):
        module(str(tmp_path / "t.txt"), letters, insert_valid_eos=False).prepare()


def test_validation_split_off_training_can_have_other_end_tokens(corpus, letters):
    options = {"path_is": "train", "valid_documents": 10}
    plain, data = (
        module(corpus["train"], letters, insert_valid_eos=eos, **options) for eos in (None, False)
    )
    assert [t for t in plain.sequences("valid")[0].tolist() if t != 3] == data.sequences("valid")[
        0
    ].tolist()
    assert np.array_equal(plain.sequences("train")[0], data.sequences("train")[0])
    assert plain.describe()["split_hash"] != data.describe()["split_hash"]


def test_reports_count_truncated_documents(tmp_path, letters):
    (tmp_path / "t.txt").write_text("a b c d e f\na b c d e f g\n\na b c d e f g h i\n")
    data = module(
        {"test": str(tmp_path / "t.txt")}, letters, wrap=False
    )  # six letters and two ends fit
    data.test_windows("test")
    assert data.describe()["cut_documents"] == {"test": 2}


def test_a_file_of_one_document_cannot_be_padded(tmp_path):
    (tmp_path / "t.txt").write_text("a b\nc\n")
    with pytest.raises(
        ValueError, match=r"no document is left for this part; .*data\.documents=line"
    ):
        module(str(tmp_path / "t.txt"), documents="file", wrap=False).prepare()


def test_lines_keep_their_line_breaks_without_an_end_of_text_token(corpus):
    data = module(corpus)
    assert data.tokenizer.decode(data.sequences("valid")[0]) == Path(corpus["valid"]).read_text()


def test_the_tokenizer_of_a_model_replaces_that_of_the_data(corpus, letters):
    data = module(corpus, Pretrained("owner/never-read"))
    data.expect(letters)
    assert data.tokenizer is letters and data.describe()["split_tokens"] == {}  # nothing was read
    assert len(data.test_windows("test")) and set(data.describe()["split_tokens"]) == {"test"}


def folders():
    return sorted(
        p
        for p in os.listdir(os.path.join(os.environ["DNADIFF_CACHE"], "texts"))
        if not p.endswith(".lock")
    )


def test_the_cache_key_contains_exactly_what_determines_the_ids(corpus, letters):
    def opened(path=corpus, tokenizer=letters, **options):
        return module(path, tokenizer, **options).tokens("train").folder.name

    first = opened()
    assert {
        opened(length=16),
        opened(windows="uniform"),
        opened(insert_special_tokens=False),
        opened(num_proc=1),
    } == {first}
    other_letters = CharTokenizer("abcdefghijklmnopqrstuvwxyz \n")
    changed = [
        opened(detokenizer="ptb"),
        opened(insert_eos=False),
        opened(tokenizer=other_letters),
        opened(documents="file"),
    ]
    with open(corpus["train"], "a") as file:
        file.write("z z z\n")
    assert len({first, *changed, opened()}) == 6 and len(folders()) == 6


def test_an_outdated_or_damaged_cache_is_made_again(corpus, letters, caplog):
    caplog.set_level("INFO", "dnadiff")
    folder = module(corpus, letters).tokens("train").folder
    before = (folder / "tokens").read_bytes()
    for number, damage in enumerate(("version", "tokens", "cut")):
        index = json.loads((folder / "index.json").read_text())
        if damage == "version":
            (folder / "index.json").write_text(json.dumps(index | {"format": 0}))
        else:
            (folder / "tokens").write_bytes(
                before[:-2] if damage == "cut" else bytes(2) + before[2:]
            )
        assert module(corpus, letters).tokens("train").tokens.tobytes() == before
        assert caplog.text.count("tokenizing it again") == number + 1


def test_two_processes_tokenize_at_once(python, corpus, letters, tmp_path):
    (tmp_path / "tokenizer.json").write_text(letters.config()["json"])
    code = (
        "from dnadiff.data.text.corpus import Encoder, Files, tokenize\n"
        "from dnadiff.data.text.pretrained import "
        "Pretrained\n"
        f"tokenizer = Pretrained({str(tmp_path)!r}, name='x').load()\n"
        f"t = tokenize(Files({corpus['train']!r}, 'line'), Encoder(tokenizer, None, 3), 'x')\n"
        "print(t.folder, int(t.tokens.sum()))"
    )
    running = [python("-c", code) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0], [
        process.errors for process in running
    ]
    results = {process.output for process in running}
    assert len(results) == 1 and "" not in results and len(folders()) == 1


@pytest.fixture
def long_text(tmp_path, monkeypatch):
    """A text of more work items than are processed in this process."""
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "long.txt").write_text(("abcd" * 250 + "\n") * 6500)
    return {"train": str(tmp_path / "long.txt")}


def test_several_processes_give_the_same_result_as_one(long_text, tmp_path, monkeypatch):
    tokenizer = CharTokenizer("abcd \n")
    one = module(long_text, tokenizer, num_proc=1).tokens("train")
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "other"))
    many = module(long_text, tokenizer, num_proc=3).tokens("train")
    assert (
        one.folder != many.folder
        and np.array_equal(one.tokens, many.tokens)
        and np.array_equal(one.ends, many.ends)
    )


def test_an_error_in_another_process_is_reported(long_text):
    with pytest.raises(
        ValueError, match=r"character 'd' at position \d+ is not among the 5 characters"
    ):
        module(long_text, CharTokenizer("abc \n"), num_proc=2).tokens("train")
    assert folders() == []


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_may_be_started_by_every_method(method, python):
    process = python(
        "-c",
        "import multiprocessing\n"
        "from dnadiff.store.processes import map_in_order\n"
        f"multiprocessing.set_start_method({method!r}, force=True)\n"
        "print([*map_in_order(abs, range(-9, 0), 2)])",
    )
    assert process.wait() == 0 and process.output == f"{[*range(9, 0, -1)]}\n", process.errors


KILLED = """
import sys, time
from pathlib import Path
from dnadiff.formats.documents import format_of
from dnadiff.store.disk import locked
from dnadiff.store.processes import map_in_order

def items():
    yield from range(8)
    print("ready", flush=True)
    time.sleep(60)

with locked(Path(sys.argv[1])):
    for _ in map_in_order(lambda item: bytes(1 << 20), items(), 2):  # more than fits into a pipe
        pass
"""


@pytest.mark.slow
def test_workers_of_a_killed_process_exit_and_release_the_lock(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    until, held = time.monotonic() + 300, False
    while not held and time.monotonic() < until:
        with locked(tmp_path / "lock", wait=0) as held:
            time.sleep(0.1)
    assert held


class Faulty(CharTokenizer):
    """A tokenizer that raises an unexpected error."""

    def encode(self, sequence):
        raise KeyError("odd")


def test_an_unexpected_error_in_another_process_is_reported(long_text):
    with pytest.raises(RuntimeError, match=r"KeyError: 'odd'"):
        module(long_text, Faulty("abcd \n"), num_proc=2).tokens("train")
    assert folders() == []


def test_a_file_that_changes_while_it_is_read_leaves_nothing(corpus, letters):
    class Growing(Files):
        def since(self, number):
            yield from super().since(number)
            with open(corpus["train"], "a") as file:
                file.write("z z z\n")

    with pytest.raises(
        ValueError, match="a file changed while it was read; start again when it is complete"
    ):
        tokenize(Growing(corpus["train"], "line"), Encoder(letters, None, 3), "x")
    assert folders() == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("text,more\na,b\nc\n", "line 3 has 1 fields, the header has 2; complete the row"),
        (
            "text\none, two\n",
            "line 2 has 2 fields, the header has 1; complete the row, or quote a field with commas",
        ),
        ('text,more\na,b\nc,"d', r"line 3 is not a row of a table \(unexpected end of data\)"),
    ],
)
def test_a_csv_row_with_missing_fields_is_refused(tmp_path, rows, message):
    (tmp_path / "t.csv").write_text(rows)
    with pytest.raises(ValueError, match=message):
        list(Files(tmp_path / "t.csv"))


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_every_damaged_bit_in_the_pages_of_a_parquet_file_is_noticed(tmp_path, compression):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["the dog and the cat", "acgt" * 10]
    path = tmp_path / "t.parquet"
    parquet.write_table(
        pyarrow.table({"text": texts}), path, compression=compression, write_page_checksum=True
    )
    with parquet.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
        end = column.dictionary_page_offset + column.total_compressed_size
    content = path.read_bytes()
    assert list(Files(path)) == texts
    for bit in range(8 * 4, 8 * end, 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            assert list(Files(path)) == texts, bit


def test_a_parquet_file_without_checksums_is_named(tmp_path, caplog):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for checked in (True, False):
        caplog.clear()
        parquet.write_table(
            pyarrow.table({"text": ["a", "b"]}), tmp_path / "t.parquet", write_page_checksum=checked
        )
        with caplog.at_level("WARNING", "dnadiff"):
            assert list(Files(tmp_path / "t.parquet")) == ["a", "b"]
        expected = (
            f"{tmp_path}/t.parquet: its pages have no checksums, so damage to them may go "
            "unnoticed; pyarrow writes them with write_page_checksum=True"
        )
        assert caplog.messages == ([] if checked else [expected])
