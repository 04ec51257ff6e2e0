"""Subword tokenizers, defined by a `tokenizer.json` as of BERT and GPT-2, and sources of
tokenizers.

Nothing is read before `load`: evaluating a checkpoint, which contains the complete
`tokenizer.json`, needs no files. The package `tokenizers` is imported when first needed. It ends in
a panic, which is no `Exception`, on some invalid rules, and allocates memory for every id up to the
highest: rules are checked before it acts on them.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from dnadiff.data.tokenizer import (
    BPE_FILES,
    FILE_SETS,
    TOKENIZER_JSON,
    VOCAB_TXT,
    CharTokenizer,
    TextTokenizer,
    one_sequence,
)
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Json, as_list, checked, checked_dataclass
from dnadiff.store.address import expand_user
from dnadiff.store.disk import json_hash, json_object
from dnadiff.store.files import read_text
from dnadiff.store.remote import hub_is_reachable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ENTRY = 6  # bytes of the shortest entry of a vocabulary, `"a":1,`


def parse(content: str, name: str) -> Tokenizer:
    """The `tokenizers.Tokenizer` defined by the content of a `tokenizer.json`, with a token for
    every id below the highest.

    The package numbers new tokens by how many tokens there are. With gaps in the ids (a duplicate
    in a `vocab.txt`, a reduced vocabulary), the mask would get the id of an ordinary token. Unused
    ids therefore get placeholder tokens that never occur in text. Ids are limited to the number of
    entries that a vocabulary of the content's length can have, 6 bytes for each.

    Raises:
        ValueError: if the content is not a tokenizer.
    """
    from tokenizers import Tokenizer

    table = json_object(content, f"tokenizer {name}: the content of its tokenizer.json")
    model = table.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    # In a Unigram model the vocabulary is a list, whose places are the ids.
    if isinstance(model, dict) and isinstance(vocab, dict):
        check_ids(vocab, len(content), name)
        if (merges := model.get("merges")) is not None:
            check_merges(vocab, merges, name, model.get("continuing_subword_prefix"))
        taken = set(vocab.values())
        if gaps := sorted(set(range(max(taken, default=-1))) - taken):
            model["vocab"] = vocab | {f"[no token {number}]": number for number in gaps}
            content = json.dumps(table, ensure_ascii=False)
    with refused(f"tokenizer {name}: not the content of a tokenizer.json"):
        return Tokenizer.from_str(content)


def check_ids(vocab: Mapping[str, Json], size: int, name: str) -> None:
    """Raise ValueError unless the ids of a vocabulary are different integers from 0, below what
    fits into `size` bytes."""
    limit = size // _ENTRY
    token_of: dict[int, str] = {}
    for token, number in vocab.items():
        if type(number) is not int or number < 0:
            raise ValueError(
                f"tokenizer {name}: the id of {token!r} is {number!r}; expected an integer of at "
                "least 0"
            )
        if number >= limit:
            raise ValueError(
                f"tokenizer {name} has the id {number:,}, but its {size:,} bytes have room for "
                f"{limit:,} tokens; number the tokens from 0"
            )
        if (other := token_of.setdefault(number, token)) != token:
            raise ValueError(
                f"tokenizer {name}: {other!r} and {token!r} have the same id {number}; use another "
                "copy of the vocabulary"
            )


def check_merges(vocab: Mapping[str, int], merges: Json, name: str, prefix: Json = None) -> None:
    """Raise ValueError unless every merge is of two symbols, as a list or with a space between
    them, which are in the vocabulary, and so is what they are merged to."""
    inside = prefix if isinstance(prefix, str) else ""  # how a symbol inside a word starts
    for merge in merges if isinstance(merges, list) else [merges]:
        symbols = merge.split(" ") if isinstance(merge, str) else merge
        is_list = isinstance(symbols, (list, tuple)) and len(symbols) == 2
        if not is_list or not all(isinstance(symbol, str) for symbol in symbols):
            raise ValueError(
                f"tokenizer {name}: a merge is {merge!r}; expected two symbols; use another copy"
            )
        first, second = symbols
        if not second.startswith(inside):
            raise ValueError(
                f"tokenizer {name}: the merge of {first!r} and {second!r} lacks the prefix "
                f"{inside!r} of symbols inside a word; use another copy of it"
            )
        for token in (first, second, first + second.removeprefix(inside)):
            if token not in vocab:
                raise ValueError(
                    f"tokenizer {name}: the merge of {first!r} and {second!r} needs the token "
                    f"{token!r}, which is not in the vocabulary; "
                    "use vocabulary and merges that belong together"
                )


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise ValueError for any error of the package `tokenizers`, whose exceptions are bare and
    whose panics are no `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = "half of a surrogate pair" if isinstance(error, UnicodeError) else str(error)
        reason = reason.replace("out of range", "too large")  # as it says of numbers
        raise ValueError(f"{what} ({shorten(reason, 200)}); use another copy of it") from error


class SubwordTokenizer:
    """A tokenizer of text defined by a `tokenizer.json`.

    Mask and padding are the tokenizer's own tokens, or else new tokens with the next free ids, so
    that neither coincides with a token of ordinary text. (Published MDLM uses one id for padding
    and mask with GPT-2's tokenizer.) Only these two are never emitted: tokens that begin or end a
    text are predicted and counted like any other token. Special tokens written out in a text, such
    as `[MASK]`, are read as ordinary characters.

    Args:
        json: the content of a `tokenizer.json`.
        name: name of the tokenizer in reports.
        mask, pad: these tokens; None: new tokens `[MASK]` and `[PAD]`.
        bos, eos, unk: tokens that begin and end a text, and the unknown token; None: there is none.

    Raises:
        ValueError: if the content is not a tokenizer, or does not contain one of the tokens.
    """

    buildable = True  # a checkpoint's configuration may name it

    def __init__(
        self,
        json: str,
        name: str,
        mask: str | None = None,
        pad: str | None = None,
        bos: str | None = None,
        eos: str | None = None,
        unk: str | None = None,
    ) -> None:
        self.name = name
        self.bos = bos
        self.eos = eos
        self.unk = unk
        rules = self._rules = parse(json, name)
        roles = {"mask": mask, "pad": pad, "bos": bos, "eos": eos, "unk": unk}
        for role, token in roles.items():
            if token is not None and rules.token_to_id(token) is None:
                raise ValueError(
                    f"tokenizer {name} has no token {token!r} (tokenizer.{role}); name one of its "
                    "tokens, or null for none"
                )
        # the mask is also how decoded text shows a masked position
        roles["mask"] = self.mask = self.mask_letter = mask or _unused(rules, "[MASK]")
        roles["pad"] = self.pad = pad or _unused(rules, "[PAD]")
        for role, other in itertools.combinations(("mask", "pad", "bos", "eos"), 2):
            if role in ("mask", "pad") and roles[role] == roles[other]:
                raise ValueError(
                    f"tokenizer {name}: {role} and {other} are both {roles[role]!r}; set "
                    f"tokenizer.{role}=null for a new token"
                )
        rules.add_special_tokens([token for token in roles.values() if token is not None])
        rules.encode_special_tokens = True
        rules.no_padding()
        rules.no_truncation()
        ids: dict[str | None, int] = dict(rules.get_vocab(with_added_tokens=True).items())
        mask_id, pad_id, self.bos_id, self.eos_id, unk_id = map(ids.get, roles.values())
        assert mask_id is not None and pad_id is not None  # both have just been added
        self.vocab = Vocab(1 + max(ids.values()), mask_id, pad_id, never_emitted=(mask_id, pad_id))
        special = {i for i, token in rules.get_added_tokens_decoder().items() if token.special}
        special |= {i for i in (self.bos_id, self.eos_id) if i is not None}
        self.special_ids: tuple[int, ...] = tuple(sorted(special - {mask_id, pad_id, unk_id}))
        self.dtype = np.dtype(np.uint16 if self.vocab.size <= 1 << 16 else np.int32)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the ids of a text."""
        return json_hash(self.config() | {"name": ""})

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text, without special tokens: `(L,)` uint16, or int32 for vocabularies of
        more than 65,536 tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, on all processor cores."""
        with refused(f"tokenizer {self.name} cannot encode the text with its rules"):
            encoded = self._rules.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=self.dtype) for each in encoded]

    def decode(self, ids: ArrayLike | Tensor) -> str:
        """Text of `ids (L,)`; special tokens, including the mask, are written out.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        array = one_sequence(ids)
        if len(wrong := np.flatnonzero((array < 0) | (array >= self.vocab.size))):
            raise ValueError(
                f"id {array[wrong[0]]} at position {wrong[0] + 1} is outside the vocabulary "
                f"0..{self.vocab.size - 1}"
            )
        with refused(f"tokenizer {self.name} cannot decode ids with its rules"):
            return self._rules.decode(array.tolist(), skip_special_tokens=False)

    def config(self) -> dict[str, Json]:
        """A configuration from which the tokenizer can be built again, without its file."""
        named = {key: getattr(self, key) for key in ("name", "mask", "pad", "bos", "eos", "unk")}
        target = "dnadiff.data.text.pretrained.SubwordTokenizer"
        return {"_target_": target, "json": self._rules.to_str(), **named}

    def __reduce__(self) -> tuple[type[SubwordTokenizer], tuple[Json, ...]]:
        _, *arguments = self.config().values()
        return SubwordTokenizer, tuple(arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubwordTokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"SubwordTokenizer({self.name}, {self.vocab.size:,} tokens)"


def _unused(rules: Tokenizer, token: str) -> str:
    while rules.token_to_id(token) is not None:
        token = f"[{token}]"
    return token


AUTO = "auto"
# Usual special tokens, most common first.
USUAL_TOKENS = {
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>"),
    "bos": (
        "[BOS]",
        "<s>",
        "<bos>",
        "<|begin_of_text|>",
        "<|startoftext|>",
        "[CLS]",
        "<|endoftext|>",
    ),
    "eos": ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "[SEP]", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
}
CONFIGURATIONS = ("tokenizer_config.json", "special_tokens_map.json")
ROLES_OF_KEYS = {  # keys of tokenizer_config.json and special_tokens_map.json, preferred first
    "mask_token": "mask",
    "pad_token": "pad",
    "bos_token": "bos",
    "cls_token": "bos",
    "eos_token": "eos",
    "sep_token": "eos",
    "unk_token": "unk",
}
Texts = Callable[[], Iterable[str]]


class TokenizerSource(ABC):
    """Base class of objects that load a tokenizer on demand."""

    @abstractmethod
    def load(self, texts: Texts) -> TextTokenizer:
        """The tokenizer. `texts` returns all documents and is called only if the vocabulary depends
        on them."""


@checked
class Characters(TokenizerSource):
    """The characters of a text as tokens.

    Args:
        characters: the alphabet; None: the characters that occur in the data.
    """

    buildable = True  # a checkpoint's configuration may name it

    def __init__(self, characters: str | None = None) -> None:
        self.characters = characters

    def load(self, texts: Texts) -> CharTokenizer:
        if self.characters is not None:
            return CharTokenizer(self.characters)
        found = set()
        for text in texts():
            found |= set(text)
        return CharTokenizer("".join(found))


@checked_dataclass
class Pretrained(TokenizerSource):
    """A subword tokenizer from a file, a folder or the Hugging Face Hub.

    Args:
        source: a `tokenizer.json`; a `vocab.txt` (WordPiece); two files `vocab.json` and
            `merges.txt` (or GPT-2's `encoder.json` and `vocab.bpe`) in a list; a folder with any of
            these; or the id of a repository of the Hub. Files may be gzip-compressed.
        name: name of the tokenizer in reports; None: the source.
        mask, pad, bos, eos, unk: special tokens. `auto`: as in the tokenizer's own configuration,
            or else the first usual token in its vocabulary; null: it has none, and mask and padding
            become new tokens.
    """

    buildable = True  # a checkpoint's configuration may name it

    source: str | Path | Sequence[str | Path]
    revision: str | None = None
    name: str = None  # type: ignore[assignment]  # replaced in `__post_init__`
    mask: str | None = AUTO
    pad: str | None = AUTO
    bos: str | None = AUTO
    eos: str | None = AUTO
    unk: str | None = AUTO

    def __post_init__(self) -> None:
        is_one = isinstance(self.source, (str, Path))
        files = [Path(each).name for each in as_list(self.source)]
        self.name = self.name or (str(self.source) if is_one else ", ".join(files))

    def load(self, texts: Texts | None = None) -> SubwordTokenizer:
        files, folder = self._files()
        content = from_files(files)
        configured = {} if folder is None else configured_special_tokens(folder)
        rules = parse(content, self.name)
        chosen: dict[str, str | None] = {}
        for role in ("bos", "eos", "unk", "mask", "pad"):
            chosen[role] = getattr(self, role)
            if chosen[role] != AUTO:
                continue
            # Many tokenizers pad with their end-of-text token; here mask and padding are tokens of
            # their own.
            taken = set(chosen.values()) if role in ("mask", "pad") else set()
            usual = (configured.get(role), *USUAL_TOKENS[role])
            known = (t for t in usual if t is not None and rules.token_to_id(t) is not None)
            chosen[role] = next((token for token in known if token not in taken), None)
        return SubwordTokenizer(content, self.name, **chosen)

    def _files(self) -> tuple[list[Path], Path | None]:
        """The files of the tokenizer, and the folder that may have their configuration."""
        if not isinstance(self.source, (str, Path)):
            return [expand_user(source) for source in self.source], None
        path = expand_user(self.source)
        text = str(self.source)
        if path.is_dir():
            return found_in(path), path
        if path.is_file():
            return [path], path.parent if path.name.startswith(TOKENIZER_JSON) else None
        # Ids of the Hub may contain dots too, as in `pythia-1.4b`.
        is_file = path.suffix in (".json", ".txt", ".bpe", ".model", ".gz")
        if is_file or text.startswith((".", "/", "~")) or text.count("/") > 1:
            raise FileNotFoundError(
                f"tokenizer.source {self.source} does not exist; give a tokenizer.json, a "
                "vocab.txt, or a folder with one"
            )
        files = self._from_hub(text)
        return files, files[0].parent

    def _from_hub(self, repository: str) -> list[Path]:
        files: list[Path] = []
        try:
            import huggingface_hub

            how = {"revision": self.revision, "local_files_only": not hub_is_reachable()}
            fetch = partial(huggingface_hub.hf_hub_download, repository, **how)
            for names in FILE_SETS:  # old repositories have no tokenizer.json
                try:
                    files = files or [Path(fetch(name)) for name in names]
                except huggingface_hub.utils.EntryNotFoundError:
                    if names == FILE_SETS[-1]:
                        raise
        except Exception as error:  # several libraries raise, depending on what fails
            raise ValueError(
                f"tokenizer {self.source} could not be fetched from the Hugging Face Hub "
                f"({type(error).__name__}), nor is it in the Hub's cache; "
                f"put its {TOKENIZER_JSON} (or vocab.txt, or encoder.json and vocab.bpe) into a "
                "folder and set tokenizer.source=FOLDER"
            ) from error
        for name in CONFIGURATIONS:
            with suppress(Exception):  # optional: without it, the usual tokens are used
                fetch(name)
        return files


def found_in(folder: Path) -> list[Path]:
    """The files of the tokenizer in a folder; raises FileNotFoundError if there is none."""
    for names in FILE_SETS:
        found = [
            next(
                (path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), folder
            )
            for name in names
        ]
        if folder not in found:
            return found
    raise FileNotFoundError(
        f"tokenizer.source {folder} contains no tokenizer: expected {TOKENIZER_JSON}, {VOCAB_TXT}, "
        f"or {' or '.join(map(' and '.join, BPE_FILES))}"
    )


def from_files(paths: Sequence[Path]) -> str:
    """The tokenizer in one file or two, as the content of a tokenizer.json.

    Raises:
        ValueError, FileNotFoundError: if they are missing or do not define a tokenizer.
    """
    texts = [read_text(path) for path in paths]
    suffix = Path(paths[0].name.removesuffix(".gz")).suffix if paths else ""
    source = f"tokenizer.source {' and '.join(map(str, paths))}"
    match len(paths), suffix:
        case 1, ".json":
            return texts[0]
        case 1, ".txt":
            return word_piece(lines_of(texts[0]), source)
        case 2, ".json":
            vocab = json_object(texts[0], f"tokenizer.source {paths[0]}")
            check_ids(vocab, len(texts[0]), str(paths[0]))
            return byte_pairs(vocab, lines_of(texts[1]), source)
    raise ValueError(
        f"tokenizer.source {', '.join(map(str, paths))}: expected {TOKENIZER_JSON}, {VOCAB_TXT}, "
        "or a list of two files, [vocab.json,merges.txt] or [encoder.json,vocab.bpe]"
    )


def lines_of(text: str) -> list[str]:
    """The lines of a vocabulary file, split at any line ends: tokens may contain other characters
    at which `splitlines` splits."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def word_piece(words: Sequence[str], source: str = "tokenizer.source") -> str:
    """BERT's tokenizer from its `vocab.txt`, one token per line. Text is lowercased unless the
    vocabulary has upper case.

    Errors call the file `source`.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {word: number for number, word in enumerate(words)}
    if "[UNK]" not in vocab:
        raise ValueError(f"{source} lacks [UNK], expected in a vocab.txt; use another copy of it")
    specials = [token for usual in USUAL_TOKENS.values() for token in usual if token in vocab]
    cased = any(
        word != word.lower() for word in words if word not in specials and not word.startswith("[")
    )
    with refused(f"{source} is not a vocabulary of word pieces"):
        rules = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    rules.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.decoder = decoders.WordPiece()
    rules.add_special_tokens(list(dict.fromkeys(specials)))
    return rules.to_str()


def byte_pairs(
    vocab: dict[str, int], merges: Sequence[str], source: str = "tokenizer.source"
) -> str:
    """GPT-2's tokenizer from its vocabulary and its merges, two symbols per line. Errors call the
    files `source`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    lines = [line for line in merges if line and not line.startswith("#version")]
    if wrong := [line for line in lines if line.count(" ") != 1]:
        raise ValueError(
            f"{source}: a line of the merges is {wrong[0][:80]!r}; expected two symbols; correct it"
        )
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    check_merges(vocab, pairs, source)
    with refused(f"{source} is not a vocabulary with merges"):
        rules = Tokenizer(models.BPE(vocab, pairs))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    rules.add_special_tokens([s for s in ("<|endoftext|>",) if s in vocab])
    return rules.to_str()


def configured_special_tokens(folder: Path) -> dict[str, str]:
    """Special tokens in `tokenizer_config.json` and `special_tokens_map.json` of a folder, by
    role."""
    found: dict[str, str] = {}
    for path in (folder / name for name in CONFIGURATIONS):
        content = json_object(read_text(path), f"tokenizer.source {path}") if path.is_file() else {}
        for key, role in ROLES_OF_KEYS.items():
            value = content.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                if any("\ud800" <= letter <= "\udfff" for letter in value):
                    raise ValueError(
                        f"tokenizer.source {path} is damaged: {key} has half of a surrogate pair; "
                        "use another copy of it"
                    )
                found.setdefault(role, value)
    return found
