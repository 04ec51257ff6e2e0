"""Damaged texts and tokenizer files: one line that names the file."""

import json
import random

import pytest

from dnadiff.data.text.corpus import Files, Hub, HubPart
from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.design.request import read_patterns
from dnadiff.formats.table import read_rows

WORDS = [f"word {number} \u00fc" for number in range(60)]


def flipped(content, draw):
    damaged = bytearray(content)
    damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def read_documents(path):
    return list(Files(str(path)))


def read_table(path):
    return [cells[0] for _, cells in read_rows(str(path), {"sequence_column": "text"})]


@pytest.mark.parametrize("read", [read_documents, read_table])
def test_a_flipped_bit_in_a_parquet_file_with_checksums_is_noticed(read, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, draw = tmp_path / "x.parquet", random.Random(1)
    parquet.write_table(
        pyarrow.table({"text": WORDS}),
        path,
        write_page_checksum=True,
        compression="none",
        row_group_size=20,
    )
    content, refused = path.read_bytes(), 0
    pages = (
        content.index(b"word 19") + 8
    )  # the first pages; nothing protects the index at the end of the file
    for _ in range(60):
        path.write_bytes(flipped(content[:pages], draw) + content[pages:])
        try:
            assert read(path) == WORDS
        except ValueError as error:
            assert (
                "x.parquet" in str(error)
                and "damaged" in str(error)
                and "\n" not in str(error)
                and not isinstance(error, UnicodeError)
            )
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            "text",
            r"^d: .*d\.arrow is damaged or cannot be read \(.*(UTF8|utf-8).*\); fetch it again$",
        ),
        ("texd", r"d\.arrow: row 1 of train has no column 'text'; set data\.hub\.column to one of"),
    ],
)
def test_a_damaged_arrow_file_is_named(tmp_path, column, message):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("datasets")
    path = tmp_path / "d.arrow"
    with (
        pyarrow.OSFile(str(path), "wb") as sink,
        pyarrow.ipc.new_stream(sink, pyarrow.schema([(column, pyarrow.string())])) as writer,
    ):
        writer.write_table(pyarrow.table({column: WORDS}))
    if column == "text":
        path.write_bytes(path.read_bytes().replace("\u00fc".encode(), b"\xff\xff"))
    with pytest.raises(ValueError, match=message):
        list(
            HubPart(
                Hub("arrow", {"train": "train"}, data_files={"train": str(path)}),
                "train",
                "d",
                streaming=True,
            )
        )


@pytest.mark.parametrize(
    ("vocab", "merges"),
    [
        ({"a": 0, "b": 1}, "a b\n"),
        ({"a": 0, "b": 1, "ab": 2}, "a b c\n"),
        ({"a": 0, "b": 1, "ab": 2}, "a\n"),
    ],
)
def test_errors_in_merges_name_the_files(vocab, merges, tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(ValueError, match=r"vocab\.json and .*merges\.txt") as caught:
        Pretrained([str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")]).load()
    assert "\n" not in str(caught.value)


def test_errors_in_a_template_name_the_file(tmp_path):
    (tmp_path / "t.txt").write_text("the c\u00e4t[MASK]")
    with pytest.raises(ValueError, match=r"t\.txt: character '\u00e4'"):
        list(read_patterns(str(tmp_path / "t.txt"), CharTokenizer("the cat"), []))


def test_a_special_token_with_half_of_a_surrogate_pair_is_refused(tmp_path):
    from dnadiff.data.text.pretrained import configured_special_tokens

    (tmp_path / "special_tokens_map.json").write_text('{"mask_token": "\\ud800"}')
    with pytest.raises(
        ValueError,
        match=r"special_tokens_map\.json is damaged: mask_token has half of a surrogate pair",
    ):
        configured_special_tokens(tmp_path)


def test_a_number_that_is_too_large_is_named_in_our_words(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "added_tokens": [1e999]}')
    with pytest.raises(
        ValueError, match=r"not the content of a tokenizer\.json \(number too large"
    ):
        Pretrained(str(tmp_path)).load()
