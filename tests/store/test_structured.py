"""Damaged JSON and YAML: a ValueError that names the file, what is wrong and the remedy."""

import os
import re
import time

import numpy as np
import pytest

from dnadiff.data.genome.packed import pack
from dnadiff.formats.table import read_csv
from dnadiff.jobs.journal import read_journal, temporary_path
from dnadiff.store.disk import json_object, load_json, read_json, read_npz, read_yaml
from dnadiff.store.objects import build
from dnadiff.supervised.saved import load_prediction
from dnadiff.training.run import resumable

DAMAGED_JSON = {
    b'{"a": ': "is not JSON",
    b'{"a": "\xff"}': "is not UTF-8 text",
    b"[" * 100_000: "is nested too deeply",
    b"[" * 101 + b"]" * 101: "is nested too deeply",
    b'{"a": ' * 101: "is nested too deeply",
    b"[1]": "holds a list; expected keys with values",
    b'{"b": 1}': "lacks a",
    b'{"a": ' + b"1" * 5000 + b"}": "is not JSON",
    b"": "is not JSON",
}
DAMAGED_YAML = {
    b"a: [1": "is not YAML",
    b"a: \xff": "is not UTF-8 text",
    b"[" * 5000: "is nested too deeply",
    b"- 1": "holds a list",
    b"b: 1": "lacks a",
    b"a: 2026-99-99": "is not YAML",
    b'a: !!int ""': "is not YAML",
    b"a: !!bool x": "is not YAML",
    b"a: !!python/name:os.system": "is not YAML",
    b"": "lacks a",
    b"- a": "holds a list",
    b"# caf\xe9\na: 1": "is not UTF-8 text",
    "a: 1".encode("utf-16"): "is not UTF-8 text",
    b"a: &a [*a]": r"is not YAML \(the alias \*a is inside itself\)",
    b"a: &a {b: 1, <<: *a}": r"is not YAML \(the alias \*a is inside itself\)",
    b"{" * 3000: "is nested too deeply",
    b"a: 1\na: 2": r"is not YAML \(the key a is there twice\)",
    b"a:\n\tb: 2": "is not YAML",
    b"a: " + b"9" * 5000: r"is not YAML \(a word has 5,000 characters; put it into quotes\)",
    b"a: 1" + b":1" * 4000: r"is not YAML \(a word has 8,001 characters",
    b"a: !!python/object/apply:os.system [ls]": "is not YAML .*constructor",
    b"".join(
        b"%c: &%c [%s]\n"
        % (name, name, b",".join([b"*%c" % (name - 1)] * 8) if name > 97 else b"x")
        for name in b"abcdefgh"
    ): r"is not YAML \(its aliases add more than 10,000 values\)",
}


def test_long_yaml_without_aliases_is_read(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"a: [" + b"x," * 20_000 + b"]")
    assert read_yaml(tmp_path / "x.yaml") == {"a": ["x"] * 20_000}


@pytest.mark.parametrize(
    "content", DAMAGED_JSON, ids=lambda content: content[:12].decode(errors="replace")
)
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"x\.json {DAMAGED_JSON[content]}.*; make it again$"):
        read_json(path, ("a",), "make it again")


@pytest.mark.parametrize(
    "content", DAMAGED_YAML, ids=lambda content: content[:12].decode(errors="replace")
)
def test_damaged_yaml_is_named(tmp_path, content):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"x\.yaml {DAMAGED_YAML[content]}.*; make it again$"):
        read_yaml(path, ("a",), "make it again")


def test_a_yaml_file_that_would_take_long_is_not_read(tmp_path):
    (tmp_path / "x.yaml").write_text("#" * 300_001)
    with pytest.raises(ValueError, match=r"x\.yaml has 300,001 bytes; expected at most 300,000"):
        read_yaml(tmp_path / "x.yaml")


def test_sound_files_are_read(tmp_path):
    (tmp_path / "x").write_text('{"a": [1, null]}', encoding="utf-8")
    assert (
        read_json(tmp_path / "x", ("a",))
        == read_yaml(tmp_path / "x", ("a",))
        == {"a": [1, None]}
        == json_object(b'{"a": [1, null]}', "x")
    )


def test_a_damaged_configuration_of_an_unfinished_run_is_named(tmp_path):
    checkpoint = tmp_path / "old" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    for content in (b"\xff", b"[" * 5000, b"a: [", b"7"):
        (tmp_path / "old" / "config.yaml").write_bytes(content)
        with pytest.raises(
            ValueError, match=r"old/config\.yaml .*; restore it, or move .*old elsewhere"
        ):
            resumable({"a": 1}, tmp_path / "new")


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{}", b'{"settings": [], "done": 0, "bytes": 0, "notes": {}, "complete": true}'],
)
def test_a_damaged_journal_is_named(tmp_path, content):
    temporary_path(tmp_path / "s.fa", "journal").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"s\.fa\.journal.*; start over: overwrite=true, without resume"
    ):
        read_journal(tmp_path / "s.fa")


def test_a_damaged_prediction_is_named(tmp_path):
    path = tmp_path / "p.npz"
    np.savez_compressed(
        path, predictions=np.zeros((40, 2)), labels=np.zeros(40, int), seconds=1.0, about="{}"
    )
    content = path.read_bytes()
    assert load_prediction(path)[0].seconds == 1
    for damaged in (
        b"",
        b"x",
        content[:-30],
        *(content[:i] + bytes([content[i] ^ 0xFF]) + content[i + 1 :] for i in range(0, 400, 13)),
    ):
        path.write_bytes(damaged)
        try:
            load_prediction(path)
        except ValueError as error:
            assert "p.npz is damaged" in str(error)


def without_end(path, kind):
    """A file that never ends, or has 10 TB."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 10**13)


ENDLESS = {
    "pipe": "is a pipe or a device, and inputs are read more than once",
    "device": "is a pipe or a device, and inputs are read more than once",
    "large": "has 10,000,000,000,000 bytes; expected at most ",
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("read", [read_json, read_yaml, read_csv, read_npz])
def test_a_file_without_end_is_not_read(tmp_path, kind, read):
    without_end(tmp_path / "x", kind)
    message = "damaged or cut short" if (read, kind) == (read_npz, "large") else ENDLESS[kind]
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "x")


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_cached_genome_with_a_file_without_end_is_packed_again(tmp_path, kind, caplog):
    (tmp_path / "g.fa").write_text(">one\nACGTNACGT\n>two\nAC\n")
    caplog.set_level("INFO", logger="dnadiff")
    folder = pack(tmp_path / "g.fa").folder
    for name in sorted(path.name for path in folder.iterdir()):
        (folder / name).unlink()
        without_end(folder / name, kind)
        assert pack(tmp_path / "g.fa").folder == folder
        assert "its packed form was changed, is incomplete" in caplog.text
        assert (folder / name).stat().st_size < 10_000 and not (folder / name).is_symlink()
        caplog.clear()


def test_the_depth_of_json_is_limited_by_brackets_outside_of_strings():
    inner = '"[{[\\"[{", {"a": []}'  # 2 more, and some in a string
    text = "[" * 98 + inner + "]" * 98
    found = load_json(text)
    for _ in range(97):
        (found,) = found
    assert found == ['[{["[{', {"a": []}]
    with pytest.raises(RecursionError, match="nested too deeply"):
        load_json(f"[{text}]")
    many = ", ".join(["[[]]"] * 5000)
    assert len(load_json(f"[{many}]")) == 5000  # beside each other, not in each other


@pytest.mark.parametrize("text", ['{"a": "' + '\\"' * 200_000, '{"form' + '"' * (1 << 22)])
def test_a_json_text_of_many_quotes_is_refused_at_once(text):
    begin = time.process_time()
    with pytest.raises(ValueError, match="line 1 column"):
        load_json(text)
    assert time.process_time() - begin < 2


def test_yaml_has_the_same_limit(tmp_path):
    for levels, message in ((100, ""), (101, "is nested too deeply")):
        inner = "[" * (levels - 1) + "]" * (levels - 1)
        (tmp_path / "x.yaml").write_text(f"a: {inner}\n")
        if message:
            with pytest.raises(ValueError, match=message):
                read_yaml(tmp_path / "x.yaml")
        else:
            assert len(str(read_yaml(tmp_path / "x.yaml")["a"])) == 2 * (levels - 1)


def test_a_class_without_its_argument_is_refused_without_the_text_of_python():
    name = "dnadiff.data.tokenizer.CharTokenizer"
    with pytest.raises(ValueError, match=rf"^{re.escape(name)}: it lacks 'characters'$"):
        build({"_target_": name})
