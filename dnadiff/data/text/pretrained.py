"""Where a tokenizer comes from: a `tokenizer.json`, vocabulary files, a folder, the Hugging Face Hub, or the characters of a text.

A source is a promise: nothing is read until `load`, so that evaluating a checkpoint, which holds its tokenizer, needs no file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from dnadiff.data.text.reach import reachable
from dnadiff.data.text.subword import SubwordTokenizer, parse
from dnadiff.data.tokenizer import CharTokenizer

WHOLE = "tokenizer.json"
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
WORDS = "vocab.txt"
SETS = ((WHOLE,), *PAIRS, (WORDS,))  # files that are a tokenizer, best first
# Spellings in use, likeliest first; a text may not contain them by itself.
KNOWN = {
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>"),
    "bos": ("[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]", "<|endoftext|>"),
    "eos": ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "[SEP]", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
}
Texts = Callable[[], Iterable[str]]


class Characters:
    """The characters of a text as tokens.

    Args:
        characters: the alphabet; None: the characters that occur in the data.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, characters: str | None = None) -> None:
        if characters is not None and not isinstance(characters, str):
            raise ValueError(f"tokenizer.characters is {characters!r}; give a text in quotes, such as '\"0123456789\"', or null")
        self.characters = characters

    def load(self, texts: Texts) -> CharTokenizer:
        """The tokenizer; `texts` is read if the alphabet was left open."""
        if self.characters is not None:
            return CharTokenizer(self.characters)
        found: set[str] = set()
        for text in texts():
            found |= set(text)
        return CharTokenizer("".join(found))


class Pretrained:
    """A subword tokenizer from a file, a folder or the Hugging Face Hub.

    Args:
        source: a `tokenizer.json`; a `vocab.txt` (WordPiece); two files `vocab.json` and `merges.txt` (or GPT-2's `encoder.json` and
            `vocab.bpe`) in a list; a folder that holds any of these; or the id of a repository of the Hub. Files may be gzip-compressed.
        revision: commit of the repository.
        name: what reports call it; None: the source.
        mask, pad, bos, eos, unk: spellings of special tokens; `auto`: as the tokenizer's own configuration says, or else the usual
            spelling that it has; null: it has none, and mask and padding become new tokens.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(
        self,
        source: str | Sequence[str],
        revision: str | None = None,
        name: str | None = None,
        mask: str | None = "auto",
        pad: str | None = "auto",
        bos: str | None = "auto",
        eos: str | None = "auto",
        unk: str | None = "auto",
    ) -> None:
        if not source or not isinstance(source, (str, Path, list, tuple)):
            raise ValueError(f"tokenizer.source is {source!r}; give a tokenizer.json, a folder, or the id of a repository of the Hub")
        self.source, self.revision = source, revision
        self.name = name or (str(source) if isinstance(source, (str, Path)) else ", ".join(Path(s).name for s in source))
        self.spellings = {"mask": mask, "pad": pad, "bos": bos, "eos": eos, "unk": unk}

    def load(self, texts: Texts | None = None) -> SubwordTokenizer:
        """The tokenizer.

        Raises:
            ValueError, FileNotFoundError: if there is none, saying which file is missing and where it goes.
        """
        content, said = self._read()
        rules = parse(content, self.name)
        spellings: dict[str, str | None] = {}
        for role in ("bos", "eos", "unk", "mask", "pad"):  # many tokenizers name their end as padding: here it gets a token of its own
            given, taken = self.spellings[role], [] if role in ("bos", "eos", "unk") else [s for s in spellings.values() if s]
            usual = (s for s in (said.get(role), *KNOWN[role]) if s is not None and s not in taken and rules.token_to_id(s) is not None)
            spellings[role] = next(usual, None) if given == "auto" else given
        return SubwordTokenizer(content, self.name, **spellings)

    def _read(self) -> tuple[str, dict[str, str]]:
        """The content of a tokenizer.json, and the spellings that stand beside it."""
        if not isinstance(self.source, (str, Path)):
            return from_files([Path(s).expanduser() for s in self.source]), {}
        path = Path(self.source).expanduser()
        if path.is_dir():
            return from_folder(path), spellings_beside(path)
        if path.is_file():
            return from_files([path]), spellings_beside(path.parent) if path.name.startswith(WHOLE) else {}
        if _looks_like_a_file(path) or str(self.source).startswith((".", "/", "~")) or str(self.source).count("/") > 1:
            raise FileNotFoundError(
                f"tokenizer.source {self.source} does not exist; give a tokenizer.json, a vocab.txt, or a folder with one"
            )
        return self._from_hub()

    def _from_hub(self) -> tuple[str, dict[str, str]]:
        try:
            from huggingface_hub import hf_hub_download

            offline = not reachable()
            fetch = partial(hf_hub_download, str(self.source), revision=self.revision, local_files_only=offline)
            found = _fetched(fetch)
        except Exception as error:  # of several libraries below, depending on what fails
            raise ValueError(
                f"tokenizer {self.source} could not be fetched from the Hugging Face Hub ({type(error).__name__}), nor is it in the Hub's cache; "
                f"put its {WHOLE} (or vocab.txt, or encoder.json and vocab.bpe) into a folder and set tokenizer.source=FOLDER"
            ) from error
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            try:
                fetch(name)
            except Exception:  # optional: the usual spellings do without
                continue
        return from_files(found), spellings_beside(found[0].parent)


def _fetched(fetch: Callable[[str], str]) -> list[Path]:
    """The first of `SETS` that a repository has whole; older ones have no tokenizer.json."""
    from huggingface_hub.errors import EntryNotFoundError

    missing: Exception | None = None
    for names in SETS:
        try:
            return [Path(fetch(name)) for name in names]
        except EntryNotFoundError as error:
            missing = missing or error
    raise missing


def from_folder(folder: Path) -> str:
    """The tokenizer in a folder, as the content of a tokenizer.json.

    Raises:
        FileNotFoundError: naming the files that were looked for.
    """
    for names in SETS:
        found = [next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None) for name in names]
        if all(found):
            return from_files(found)
    raise FileNotFoundError(
        f"tokenizer.source {folder} holds no tokenizer: expected {WHOLE}, {WORDS}, or {' or '.join(' and '.join(pair) for pair in PAIRS)}"
    )


def from_files(paths: Sequence[Path]) -> str:
    """The tokenizer in one file or two, as the content of a tokenizer.json.

    Raises:
        ValueError, FileNotFoundError: if they are missing or hold none.
    """
    texts = [_text(path) for path in paths]
    if len(paths) == 1 and _plain(paths[0]).endswith(".json"):
        return texts[0]
    if len(paths) == 1 and _plain(paths[0]).endswith(".txt"):
        return word_piece(lines_of(texts[0]))
    if len(paths) == 2 and _plain(paths[0]).endswith(".json"):
        return byte_pairs(_table(texts[0], paths[0]), lines_of(texts[1]))
    raise ValueError(
        f"tokenizer.source {', '.join(map(str, paths))}: expected {WHOLE}, {WORDS}, or a list of two files, [vocab.json,merges.txt] or [encoder.json,vocab.bpe]"
    )


def lines_of(text: str) -> list[str]:
    """The lines of a file of tokens. Only a line break ends one: a vocabulary may hold the other characters at which `splitlines` cuts."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def word_piece(words: Sequence[str]) -> str:
    """BERT's tokenizer from its `vocab.txt`: one token a line. Text is put into lower case unless the vocabulary has upper case."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {word: number for number, word in enumerate(words)}
    if "[UNK]" not in vocab:
        raise ValueError("tokenizer.source: a vocab.txt must hold [UNK], one token a line")
    specials = [s for spellings in KNOWN.values() for s in spellings if s in vocab]
    cased = any(word != word.lower() for word in words if word not in specials and not word.startswith("["))
    rules = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    rules.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.decoder = decoders.WordPiece()
    rules.add_special_tokens(list(dict.fromkeys(specials)))
    return rules.to_str()


def byte_pairs(vocab: dict[str, int], merges: Sequence[str]) -> str:
    """GPT-2's tokenizer from its vocabulary and its merges, two symbols a line."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pairs = [tuple(line.split(" ")) for line in merges if line and not line.startswith("#version")]
    if wrong := next((pair for pair in pairs if len(pair) != 2), None):
        raise ValueError(f"tokenizer.source: a line of the merges holds {' '.join(wrong)!r}; expected two symbols")
    rules = Tokenizer(models.BPE(vocab, pairs))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    rules.add_special_tokens([s for s in ("<|endoftext|>",) if s in vocab])
    return rules.to_str()


def spellings_beside(folder: Path) -> dict[str, str]:
    """Special tokens as `tokenizer_config.json` and `special_tokens_map.json` of a folder name them, by role."""
    said: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if not (folder / name).is_file():
            continue
        content = _table(_text(folder / name), folder / name)
        begins, ends = ("bos_token", "cls_token"), ("eos_token", "sep_token")
        for role, keys in {"mask": ("mask_token",), "pad": ("pad_token",), "bos": begins, "eos": ends, "unk": ("unk_token",)}.items():
            for key in keys:
                value = content.get(key)
                value = value.get("content") if isinstance(value, dict) else value
                if isinstance(value, str):
                    said.setdefault(role, value)
    return said


def _looks_like_a_file(path: Path) -> bool:
    """Whether a name ends as files of tokenizers do; ids of the Hub have dots in them too, as in `pythia-1.4b`."""
    return path.suffix in (".json", ".txt", ".bpe", ".model", ".gz")


def _plain(path: Path) -> str:
    return path.name.removesuffix(".gz")


def _text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"tokenizer.source {path} does not exist; check the path")
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"tokenizer.source {path} is damaged, or no text ({error})") from error


def _table(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"tokenizer.source {path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"tokenizer.source {path} holds a {type(content).__name__}; expected an object")
    return content
