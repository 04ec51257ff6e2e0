"""Subword tokenizers: known ids, new mask and padding tokens, and checkpoints that contain the
complete tokenizer."""

import gzip
import json
import pickle

import pytest

from dnadiff.data.text.pretrained import Characters, Pretrained, SubwordTokenizer, refused
from dnadiff.data.text.pretrained import byte_pairs as byte_pairs_of
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.store.objects import build

pytest.importorskip("tokenizers")

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
    "##s",
    ".",
    ",",
    "the",
    "cat",
    "sat",
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return Pretrained(str(path)).load()


@pytest.fixture(scope="module")
def byte_pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    letters = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    vocab = {
        letter: number
        for number, letter in enumerate([*letters, "th", "the", "Ġthe", "<|endoftext|>"])
    }
    (folder / "encoder.json").write_text(json.dumps(vocab))
    (folder / "vocab.bpe").write_text("#version: 0.2\nt h\nth e\nĠ the\n")
    return folder


def test_bert_gives_the_published_ids(shared_data):
    bert = Pretrained(
        str(shared_data / "text" / "tokenizers" / "bert-base-uncased.vocab.txt.gz")
    ).load()
    assert bert.encode("hello world").tolist() == [7592, 2088] and bert.encode(
        "Hello, WORLD!"
    ).tolist() == [7592, 1010, 2088, 999]
    assert (bert.vocab.size, bert.vocab.mask_id, bert.vocab.pad_id, bert.bos_id, bert.eos_id) == (
        30522,
        103,
        0,
        101,
        102,
    )
    assert bert.vocab.never_emitted == (0, 103) and bert.special_ids == (101, 102)


def test_gpt2_gives_the_published_ids(shared_data):
    folder = shared_data / "text" / "tokenizers"
    gpt2 = Pretrained(
        [str(folder / "gpt2.encoder.json.gz"), str(folder / "gpt2.vocab.bpe.gz")]
    ).load()
    assert gpt2.encode("Hello world").tolist() == [15496, 995] and gpt2.dtype == "uint16"
    assert (gpt2.vocab.size, gpt2.vocab.mask_id, gpt2.vocab.pad_id, gpt2.bos_id, gpt2.eos_id) == (
        50259,
        50257,
        50258,
        50256,
        50256,
    )
    assert gpt2.vocab.never_emitted == (50257, 50258)
    for text in ("Hello, wörld.\n\n  it's 😀 <|endoftext|> [MASK]", "\t x  y\r\n"):
        assert gpt2.decode(gpt2.encode(text)) == text
        assert not set(gpt2.encode(text)) & {
            50256,
            50257,
            50258,
        }  # a special token written out in a text is read as ordinary characters


def test_word_pieces(bert):
    assert bert.encode("To be, or not tos").tolist() == [5, 6, 11, 7, 8, 5, 9]
    assert bert.decode([2, 5, 6, 4, 3, 0]) == "[CLS] to be [MASK] [SEP] [PAD]"
    assert bert.encode("[MASK] dog").tolist().count(4) == 0 and bert.encode("dog").tolist() == [1]
    assert (bert.vocab.mask_id, bert.vocab.pad_id, bert.vocab.never_emitted, bert.special_ids) == (
        4,
        0,
        (0, 4),
        (2, 3),
    )


def test_a_tokenizer_without_mask_and_padding_gets_new_ids(byte_pairs):
    gpt2 = Pretrained(str(byte_pairs)).load()
    assert (
        gpt2.encode("the the").tolist() == [97, 98]
        and gpt2.decode(gpt2.encode("the\ncat")) == "the\ncat"
    )
    assert (gpt2.vocab.mask_id, gpt2.vocab.pad_id, gpt2.bos_id, gpt2.eos_id, gpt2.vocab.size) == (
        100,
        101,
        99,
        99,
        102,
    )
    assert gpt2.decode([97, 100, 99]) == "the[MASK]<|endoftext|>"


def test_all_sources_of_a_tokenizer_are_equivalent(byte_pairs, tmp_path):
    expected = Pretrained(str(byte_pairs)).load()
    files = [byte_pairs / "encoder.json", byte_pairs / "vocab.bpe"]
    packed = [tmp_path / f"{file.name}.gz" for file in files]
    for file, target in zip(files, packed):
        target.write_bytes(gzip.compress(file.read_bytes()))
    (tmp_path / "tokenizer.json").write_text(expected.config()["json"])
    for source in (
        [str(f) for f in files],
        [str(f) for f in packed],
        str(tmp_path),
        str(tmp_path / "tokenizer.json"),
    ):
        assert Pretrained(source, name="x").load() == expected, source


def test_a_config_contains_the_complete_tokenizer(bert):
    spelled = json.loads(json.dumps(bert.config()))
    again = build(spelled)
    assert (
        again == bert
        and again.vocab == bert.vocab
        and again.encode("to be").tolist() == [5, 6]
        and again.decode([4]) == "[MASK]"
    )
    assert pickle.loads(pickle.dumps(bert)) == bert and hash(again) == hash(bert)
    assert again != Characters("ab").load(None) and Characters("ab").load(None) == CharTokenizer(
        "ba"
    )


def test_special_tokens_can_be_chosen(bert, tmp_path):
    (tmp_path / "tokenizer.json").write_text(bert.config()["json"])
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"cls_token": {"content": "the"}, "pad_token": "."})
    )
    said = Pretrained(str(tmp_path)).load()
    assert (said.bos_id, said.vocab.pad_id, said.eos_id) == (12, 10, 3)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "sat", "eos_token": "sat"})
    )
    both = Pretrained(
        str(tmp_path)
    ).load()  # an end-of-text token that is also padding would never be emitted
    assert (both.eos_id, both.vocab.pad_id, both.vocab.never_emitted) == (14, 0, (0, 4))
    chosen = Pretrained(str(tmp_path), mask=None, eos="sat", bos=None).load()
    assert (
        chosen.vocab.mask_id == 15
        and chosen.mask == "[[MASK]]"
        and chosen.eos_id == 14
        and chosen.bos_id is None
    )


def test_gaps_in_the_ids_do_not_give_the_mask_the_id_of_a_token(tmp_path):
    """New tokens follow the highest id, whatever the number of tokens."""
    gaps = SubwordTokenizer(byte_pairs_of({"a": 0, "b": 2, "c": 5}, []), "gaps")
    assert gaps.encode("abc").tolist() == [0, 2, 5] and gaps.decode([0, 2, 5]) == "abc"
    assert (gaps.vocab.mask_id, gaps.vocab.pad_id, gaps.vocab.size) == (6, 7, 8)
    assert build(gaps.config()) == gaps and build(gaps.config()).vocab == gaps.vocab
    (tmp_path / "vocab.txt").write_text("[UNK]\na\nb\na\nc\n")
    twice = Pretrained(str(tmp_path)).load()
    assert twice.encode("a b c").tolist() == [3, 2, 4] and (
        twice.vocab.mask_id,
        twice.vocab.size,
    ) == (5, 7)
    added = {
        "id": 6,
        "content": "[X]",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    rules = json.loads(byte_pairs_of({"a": 0, "b": 5}, [])) | {"added_tokens": [added]}
    more = SubwordTokenizer(json.dumps(rules), "more", eos="[X]")
    assert (more.eos_id, more.vocab.mask_id, more.encode("ab").tolist()) == (6, 7, [0, 5])


def test_very_large_ids_are_rejected():
    rules = json.loads(byte_pairs_of({"a": 0}, []))
    rules["model"]["vocab"]["b"] = 2_000_000_000
    with pytest.raises(
        ValueError,
        match=r"tokenizer far has the id 2,000,000,000, but its [\d,]+ bytes have room for \d+ "
        r"tokens",
    ):
        SubwordTokenizer(json.dumps(rules), "far")


@pytest.mark.parametrize("number", [4_000_000, 100, -1, 1.5, True, "1", 2**70, 0])
@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.json", "word level"])
def test_ids_are_bounded_by_the_size_of_the_file(tmp_path, kind, number):
    """They cost memory for each id below: 242 bytes with the id 4,000,000 took 2.2 GB."""
    vocab = {"a": 0, "b": number}
    rules = json.loads(byte_pairs_of({"a": 0}, []))
    rules["model"] = (
        {"type": "WordLevel", "vocab": vocab, "unk_token": "a"}
        if kind == "word level"
        else rules["model"] | {"vocab": vocab}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    source = (
        [str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")]
        if kind == "vocab.json"
        else str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(
        ValueError,
        match=r"(has the id [\d,]+, but its [\d,]+ bytes have room for \d+|the id of 'b' is|have "
        r"the same id 0)",
    ):
        Pretrained(source).load()


@pytest.mark.parametrize("prefix", [None, "####"])
@pytest.mark.parametrize(
    "merges", [["a b"], [["a", "b"]], ["a x"], ["a b c"], [7], "a b", {"a": 1}]
)
def test_merges_that_do_not_fit_the_vocabulary_are_rejected(tmp_path, capfd, merges, prefix):
    """The package would end in a panic, which is no Exception and prints a stack."""
    rules = json.loads(byte_pairs_of({"a": 0, "b": 1}, []))
    rules["model"] |= {"merges": merges, "continuing_subword_prefix": prefix}
    with pytest.raises(
        ValueError,
        match=r"tokenizer x: (the merge of 'a' and '[bx]' (needs the token '(ab|x)'|lacks the "
        r"prefix '####')|a merge is .*two symbols)",
    ):
        SubwordTokenizer(json.dumps(rules), "x")
    (tmp_path / "vocab.json").write_text('{"a":0,"b":1}')
    (tmp_path / "merges.txt").write_text("a b")
    with pytest.raises(
        ValueError,
        match=r"the merge of 'a' and 'b' needs the token 'ab', which is not in the vocabulary",
    ):
        Pretrained(str(tmp_path)).load()
    assert "panicked" not in capfd.readouterr().err


def test_panics_of_the_package_are_errors_of_the_file():
    class Panic(BaseException):
        pass

    with pytest.raises(ValueError, match=r"x is damaged \(range end\)"), refused("x is damaged"):
        raise Panic("range end")
    with pytest.raises(KeyboardInterrupt), refused("x is damaged"):
        raise KeyboardInterrupt


def test_half_of_a_surrogate_pair_in_rules_is_named():
    message = r"rules \(half of a surrogate pair\); use another copy"
    with pytest.raises(ValueError, match=message), refused("rules"):
        "\ud800".encode()


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.json", "vocab.txt", "tokenizer_config.json"]
)
def test_damaged_files_of_a_tokenizer_are_named(tmp_path, bert, name):
    sound = (
        {
            "tokenizer.json": bert.config()["json"],
            "vocab.txt": "[UNK]\na\n",
            "tokenizer_config.json": "{}",
        }
        if name != "vocab.json"
        else {}
    )
    for other, text in (
        {"vocab.json": '{"a": 0}', "merges.txt": "#version: 0.2"} if name == "vocab.json" else sound
    ).items():
        if other not in ("tokenizer.json", "vocab.txt") or name in (other, "tokenizer_config.json"):
            (tmp_path / other).write_text(text)
    packed = gzip.compress(b"[UNK]\n" * 50, mtime=0)
    for content in (
        b"[" * 100_000,
        b"[1]",
        b"\xff",
        packed[:-9],
        packed[:12] + b"\0\0" + packed[14:],
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"tokenizer|vocab|merges|special") as caught:
            Pretrained(str(tmp_path)).load()
        assert name in str(caught.value) or "[UNK]" in str(caught.value)


def test_a_compression_bomb_is_not_read_whole(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(gzip.compress(bytes(1 << 20)) * 257)
    with pytest.raises(ValueError, match=r"vocab\.txt has more than 268,435,456 characters"):
        Pretrained(str(tmp_path)).load()


@pytest.mark.parametrize(
    "changed",
    [
        {"json": 5},
        {"name": None},
        {"mask": 5},
        {"unk": ["a"]},
        {"json": "[" * 9999},
        {"json": "{}"},
    ],
)
def test_a_damaged_tokenizer_of_a_checkpoint_is_a_value_error(bert, changed):
    with pytest.raises(ValueError, match=f"tokenizer|^{next(iter(changed))} "):
        build(bert.config() | changed)
    for characters in (5, None, "a\ud800", ["a"]):
        with pytest.raises(
            ValueError, match=r"tokenizer\.characters .* must be a string of characters"
        ):
            CharTokenizer(characters)


def test_lines_of_a_vocabulary_end_only_at_line_breaks(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("[UNK]\r\na\r\n\u2028\r\nb\r\n".encode())
    assert Pretrained(str(tmp_path)).load().encode("a b").tolist() == [1, 3]


@pytest.mark.parametrize(
    "files", [["vocab.txt"], ["vocab.json", "merges.txt"], ["tokenizer.json", "vocab.txt"]]
)
def test_repositories_of_the_hub(monkeypatch, tmp_path, files, bert, byte_pairs):
    """Also without a tokenizer.json; names may contain dots."""
    import huggingface_hub

    contents = {"tokenizer.json": bert.config()["json"], "vocab.txt": "\n".join(WORDS)}
    contents |= {
        "vocab.json": (byte_pairs / "encoder.json").read_text(),
        "merges.txt": (byte_pairs / "vocab.bpe").read_text(),
    }
    for name in files:
        (tmp_path / name).write_text(contents[name])
    asked = []

    def download(repository, name, revision, local_files_only):
        asked.append((repository, revision, local_files_only))
        if not (tmp_path / name).exists():
            raise huggingface_hub.utils.EntryNotFoundError(name)
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # which would resolve the name
    found = Pretrained("owner/model-1.4b", "abc").load()
    assert found.encode("the").tolist() == ([97] if "merges.txt" in files else [12]) and set(
        asked
    ) == {("owner/model-1.4b", "abc", False)}
    (tmp_path / files[0]).unlink()
    if len(files) == 1:
        with pytest.raises(
            ValueError, match=r"owner/model-1\.4b could not be fetched .*EntryNotFoundError"
        ):
            Pretrained("owner/model-1.4b", "abc").load()


def test_bos_and_eos_may_be_the_same_token(bert, tmp_path):
    (tmp_path / "tokenizer.json").write_text(bert.config()["json"])
    published = Pretrained(str(tmp_path), eos="[CLS]").load()
    assert published.bos_id == published.eos_id == 2


def test_characters_must_be_a_string():
    with pytest.raises(ValueError, match="characters 5 must be a string"):
        Characters(5)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("nothing/here.json", {}, "nothing/here.json does not exist"),
        ("{folder}", {}, "contains no tokenizer: expected tokenizer.json, vocab.txt"),
        ("{folder}/empty.json", {}, "not the content of a tokenizer.json"),
        ("{folder}/vocab.txt", {"mask": "[M]"}, r"has no token '\[M\]' \(tokenizer\.mask\)"),
        ("{folder}/vocab.txt", {"mask": "b", "eos": "b"}, "mask and eos are both 'b'"),
        (
            "{folder}/vocab.txt",
            {"pad": "a", "bos": "a"},
            "pad and bos are both 'a'; set tokenizer.pad=null for a new token",
        ),
        ("", {}, "source '' must be a string"),
    ],
)
def test_invalid_tokenizers_are_reported(tmp_path, source, options, message):
    if "/" in source.format(folder=""):
        (tmp_path / "vocab.txt").write_text("[UNK]\na\nb\n")
        (tmp_path / "empty.json").write_text("{}")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Pretrained(source.format(folder=tmp_path), **options).load()


def test_without_a_network_the_error_says_which_file_is_needed(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ValueError, match=r"google-bert/none could not be fetched .* set tokenizer\.source=FOLDER"
    ):
        Pretrained("google-bert/none").load()
