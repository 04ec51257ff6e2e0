"""The documents of local files and of the Hugging Face Hub, and documents tokenized once into the
cache: all token ids concatenated in a memory-mapped file, and the end of each document.

The package `datasets` is imported on first use and never allowed to run code. The name of the cache
folder is a hash of everything that determines the ids (see `Encoder.key`). How ids become windows
(length, wrapping, tokens at the ends of a block) is decided when they are read. Detokenizers undo
the word tokenization of old corpora. Their rules are those of MDLM's experiments (arXiv 2406.07524
and its published loader), in the same order, as tables of replacements. Perplexities depend on
them: any change requires a new `RULES_VERSION`, so that cached corpora are tokenized again.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from dnadiff.data.records import Integers, StoredArray, padded_groups
from dnadiff.data.splits import PARTS
from dnadiff.data.tokenizer import TextTokenizer
from dnadiff.fields import JsonDict, as_list, checked, checked_dataclass
from dnadiff.formats.documents import DocumentKind, format_of, joined, read_documents
from dnadiff.progress import Progress
from dnadiff.store.disk import cache_dir, content_hash, ensure_folder, json_hash, read_index
from dnadiff.store.files import matches, resolve
from dnadiff.store.processes import map_in_order, num_cores
from dnadiff.store.remote import hub_is_reachable

Paths = str | Path | Sequence[str | Path]


class Documents(ABC):
    """An ordered collection of documents that can be read again and again."""

    @abstractmethod
    def key(self) -> JsonDict:
        """Everything that determines the documents, contents of files included. The cache is named
        by it."""

    @abstractmethod
    def since(self, number: int) -> Iterator[str]:
        """Documents from `number` on, counted from 0, in order."""

    def __iter__(self) -> Iterator[str]:
        return self.since(0)


@checked
class Files(Documents):
    """Documents in local files, and in copies of those at addresses.

    Args:
        paths: files; `*`, `?` and `**` are expanded, sorted by name, also in addresses of object
            stores.
        documents: what a document of a .txt file is. `file`: the whole file. `line`: a line without
            leading and trailing white space.
            `row`: a line with its line break, blank lines empty, as in the Hugging Face Hub's
                WikiText. In tables each row is a document.
        column: of tables: name of the text column. Several columns are joined by a space.
        keep_line_ends: keep white space and line breaks of lines (for tokenizers without an
            end-of-text token).

    Raises:
        FileNotFoundError, ValueError: if a path names no file.
    """

    buildable = True  # a checkpoint's configuration may name it

    def __init__(
        self,
        paths: Paths,
        documents: DocumentKind = "file",
        column: str | Sequence[str] = "text",
        keep_line_ends: bool = False,
    ) -> None:
        self.paths = expanded(paths)
        self.columns = as_list(column)
        self.documents = documents
        self.keep_line_ends = keep_line_ends
        formats = [format_of(path) for path in self.paths]
        self._kinds = [None if each is None else each.name for each in formats]

    def since(self, number: int) -> Iterator[str]:
        how = self.documents, self.columns, self.keep_line_ends
        every = itertools.chain.from_iterable(read_documents(path, *how) for path in self.paths)
        return itertools.islice(every, number, None)

    def key(self) -> JsonDict:
        hashes = [content_hash(resolve(path)) for path in self.paths]
        found: JsonDict = {
            "files": [[digest, kind or "text"] for digest, kind in zip(hashes, self._kinds)]
        }
        found |= {"columns": self.columns} if any(self._kinds) else {}
        plain = {"documents": self.documents, "keep_line_ends": self.keep_line_ends}
        return found if all(self._kinds) else found | plain


def expanded(paths: Paths) -> list[str]:
    """File names with patterns expanded, the matches of each pattern sorted by name.

    Raises:
        FileNotFoundError, ValueError: if there is no such file.
    """
    found: list[str] = []
    for path in [paths] if isinstance(paths, (str, Path)) else list(paths):
        files = matches(str(path))
        found += [str(path)] if files is None else files
    for path in found:
        if resolve(path).stat().st_size == 0:
            raise ValueError(
                f"{path} is empty; give a text file with at least one window of characters"
            )
    return found


_LOCAL = ("parquet", "json", "text", "csv", "arrow")  # readers of files, not repositories


@checked_dataclass
class Hub:
    """A dataset of the Hub, or local files read by `datasets` (`id` parquet, json, text, csv or
    arrow, with `data_files`).

    Args:
        splits: names of the parts in the dataset: `{train: train, valid: validation, test: test}`.
        subset: name of the configuration, for repositories with several.
        column: name of the text column. Several columns are joined by a space.
        data_files: files of the repository (patterns) for each of its splits; None: the
            repository's own choice.
    """

    buildable = True  # a checkpoint's configuration may name it

    id: str
    splits: Mapping[str, str]
    subset: str | None = None
    revision: str | None = None
    column: str | Sequence[str] = "text"
    data_files: Mapping[str, str | Sequence[str]] | None = None

    def __post_init__(self) -> None:
        if wrong := [part for part in self.splits if part not in PARTS]:
            raise ValueError(f"hub.splits names {wrong[0]!r}; expected train, valid and test")
        self.columns = as_list(self.column)
        files = self.data_files
        self.data_files = files and {part: as_list(paths) for part, paths in files.items()}


@dataclass
class HubPart(Documents):
    """The documents of one part, in order; `streaming` reads without storing. `name` is that of the
    data in messages."""

    hub: Hub
    part: str
    name: str
    streaming: bool = False

    def key(self) -> JsonDict:
        hub, files = self.hub, self._local_files()  # repositories are identified by their revision
        content = [[Path(file).name, content_hash(Path(file))] for file in files]
        return {
            "hub": hub.id,
            "subset": hub.subset,
            "revision": hub.revision,
            "split": hub.splits[self.part],
            "columns": hub.columns,
            "data_files": hub.data_files,
            **({"files": content} if content else {}),
        }

    def _local_files(self) -> list[str]:
        hub = self.hub
        if hub.id not in _LOCAL:
            folder = Path(hub.id)
            files = folder.rglob("*") if folder.is_dir() else ()
            return sorted(str(path) for path in files if path.is_file())
        given = (hub.data_files or {}).get(hub.splits[self.part], [])
        return expanded([path for path in given if "://" not in str(path)])

    def since(self, number: int) -> Iterator[str]:
        part = self.hub.splits[self.part]
        source = ", ".join(self._local_files()) or self.hub.id
        rows = iter(self._load(number))
        for place in itertools.count(number + 1):
            try:
                row = next(rows, None)
            except (ValueError, OSError, RuntimeError, MemoryError) as error:
                # of pyarrow and of `datasets`; none names the file
                message = shorten(str(error), 200)
                raise ValueError(
                    f"{self.name}: {source} is damaged or cannot be read ({type(error).__name__}: "
                    f"{message}); fetch it again"
                ) from error
            if row is None:
                return
            where = f"{source}: row {place:,} of {part}"
            yield joined(row, self.hub.columns, where, "data.hub.column")

    def _load(self, skip: int) -> Iterable[JsonDict]:
        if not hub_is_reachable():
            # read when `datasets` is imported; stored datasets are still found
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import datasets

        hub = self.hub
        files = hub.data_files or None
        part = hub.splits[self.part]
        how = {"split": part, "revision": hub.revision, "streaming": self.streaming}
        try:
            rows = datasets.load_dataset(hub.id, hub.subset, data_files=files, **how)
        except Exception as error:  # several libraries raise, depending on what fails
            message = shorten(str(error), 200)
            parts = ", ".join(f"{part}: FILE" for part in hub.splits)
            raise ValueError(
                f"{self.name}: the dataset {hub.id} could not be loaded from the Hugging Face Hub "
                f"({type(error).__name__}: {message}); without a network, give the file of its "
                f"{self.part} part, and of other parts that are needed: 'data.path={{{parts}}}' "
                "(.txt, .jsonl or .parquet with "
                f"{'a column' if len(hub.columns) == 1 else 'columns'} {', '.join(hub.columns)})"
            ) from error
        return rows.skip(skip) if skip else rows


@dataclass
class DocumentRange(Documents):
    """Documents `first` up to but not including `last` of a source.

    Raises:
        ValueError: during iteration, if the source ends before `last`.
    """

    source: Documents
    first: int
    last: int

    def key(self) -> JsonDict:
        return {"stretch": [self.first, self.last], "of": self.source.key()}

    def since(self, number: int) -> Iterator[str]:
        wanted = max(0, self.last - self.first - number)
        found = 0
        for text in itertools.islice(self.source.since(self.first + number), wanted):
            found += 1
            yield text
        if found < wanted:
            raise ValueError(
                f"the training part has fewer than {self.last:,} documents; set data.num_documents "
                "to their number"
            )


RULES_VERSION = 1
Rule = tuple[str | re.Pattern[str], str]


def _before(marks: str) -> list[Rule]:
    """Remove the space before a punctuation mark that is surrounded by spaces."""
    return [(f" {mark} ", f"{mark} ") for mark in marks]


def _inside(opening: str, closing: str, content: str) -> Rule:
    """Remove the spaces just inside a pair of brackets or quotes."""
    pattern = f"{re.escape(opening)}{content}{re.escape(closing)}"
    return re.compile(pattern), f"{opening}\\1{closing}"


# The published loader also searches for "/' 5/" literally (apparently meant as a pattern). It
# matches no text and is left out here.
WIKITEXT: list[Rule] = [
    ("s '", "s'"),
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *_before(":;.!?,"),
    # Any number of spaces, including none; the content is as short as possible.
    *(
        _inside(opening, closing, rf"\s*([^{re.escape(closing)}]*?)\s*")
        for opening, closing in ("()", "[]", "{}", '""', "''")
    ),
    *((" ".join("=" * n), "=" * n) for n in (4, 3, 2)),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
]

PTB: list[Rule] = [
    (" 's", "'s"),
    ("s ' ", "s' "),
    (" n't", "n't"),
    (" \n ", "\n"),
    ("\\/", "/"),
    *[(" N ", " 1 ")] * 10,  # consecutive N share their spaces
    ("$ 1", "$1"),
    ("# 1", "#1"),
    ("<unk>", "?"),
]

LM1B: list[Rule] = [
    *((f"{scheme} : / / ", f"{scheme}://") for scheme in ("http", "https")),
    (re.compile(r" '(\w+)"), r"'\1"),
    (re.compile(r" (\w+) \. "), r" \1. "),
    (re.compile(r" (\w+) \.$"), r" \1."),
    *_before("?"),
    (re.compile(r" \?$"), "?"),
    *_before("!"),
    (re.compile(r" !$"), "!"),
    *_before(",:;"),
    (" / ", "/"),
    _inside('"', '"', ' ([^"]+) '),
    _inside("'", "'", " ([^']+) "),
    _inside("(", ")", r" ([^()]+) "),
    _inside("[", "]", r" ([^\[\]]+) "),
    ("$ ", "$"),
    ("£ ", "£"),
]

QUOTES: list[Rule] = [("“", '"'), ("”", '"')]


Detokenizer = Literal["wikitext", "ptb", "lm1b", "lambada", "scientific_papers"]
RULES: dict[str, list[Rule]] = {
    "wikitext": WIKITEXT,
    "ptb": PTB,
    "lm1b": LM1B,
    "lambada": QUOTES,
    "scientific_papers": [*WIKITEXT, *LM1B],
}


def detokenize(text: str, detokenizer: str | None) -> str:
    """Undo the word tokenization of a corpus; None: the text itself."""
    for pattern, replacement in RULES[detokenizer] if detokenizer else ():
        if isinstance(pattern, str):
            text = text.replace(pattern, replacement)
        else:
            text = pattern.sub(replacement, text)
    # A leading line break, as in the evaluation of GPT-2.
    return "\n" + text.strip() if detokenizer == "lambada" else text


FORMAT = 1
_CHUNK = 1 << 20  # characters per work item
_FEW = 4  # work items for which starting processes is not worthwhile
_MAX_PROCESSES = 32


@dataclass(frozen=True)
class Encoder:
    """What makes token ids of documents.

    Args:
        detokenizer: name of the rules applied first, or None.
        eos_id: follows each document; None: nothing follows.
    """

    tokenizer: TextTokenizer
    detokenizer: str | None
    eos_id: int | None

    def __call__(self, texts: list[str]) -> list[ndarray]:
        """Ids of each document."""
        ids = self.tokenizer.encode_batch([detokenize(text, self.detokenizer) for text in texts])
        if self.eos_id is None:
            return ids
        end = np.array([self.eos_id], dtype=self.tokenizer.dtype)
        return [np.concatenate([each, end]) for each in ids]

    def joined(self, texts: list[str]) -> tuple[ndarray, Integers]:
        """Concatenated ids of documents, and the number of ids of each."""
        ids = self(texts)
        return np.concatenate(ids), np.array([len(each) for each in ids], dtype=np.int64)

    def key(self, documents: Documents) -> str:
        """The name of the cache folder: a hash of everything that determines the ids."""
        settings = {
            "format": FORMAT,
            "tokenizer": self.tokenizer.fingerprint,
            "dtype": str(self.tokenizer.dtype),
            "eos": self.eos_id,
            "documents": documents.key(),
            "detokenizer": self.detokenizer,
            "rules": RULES_VERSION if self.detokenizer else None,
        }
        return json_hash(settings)[:32]


class TokenizedDocuments(Sequence[ndarray]):
    """Tokenized documents in the cache. Pickles as its path."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        index = read_index(self.folder, FORMAT)
        self.digest = "".join(f"{index['files'][each]['crc']:08x}" for each in ("tokens", "ends"))
        self.stored = StoredArray.at(self.folder / "tokens", index["dtype"])
        self._ends = StoredArray.at(self.folder / "ends", np.int64)

    @property
    def tokens(self) -> ndarray:
        """All ids, `(num_tokens,)`, memory-mapped and read-only."""
        return self.stored.mapped

    @property
    def ends(self) -> Integers:
        """End of each document in `tokens`, `(num_documents,)`."""
        return self._ends.mapped

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ends)

    def starts_at(self, document: int) -> int:
        """The position in `tokens` where a document begins; for `len(self)`, where the last one
        ends."""
        return int(self.ends[document - 1]) if document else 0

    def __getitem__(self, document: Any) -> Any:
        return self.tokens[self.starts_at(document) : int(self.ends[document])]

    def __reduce__(self) -> tuple[type[TokenizedDocuments], tuple[Path]]:
        return TokenizedDocuments, (self.folder,)


def tokenize(
    documents: Documents, encoder: Encoder, name: str, num_proc: int | None = None
) -> TokenizedDocuments:
    """The token ids of documents, computed if they are not in the cache.

    Args:
        num_proc: number of processes, which does not change the result; None: the number of
            processor cores.
    """
    folder = cache_dir("texts") / encoder.key(documents)
    dtype = encoder.tokenizer.dtype

    def fill(part: Path) -> JsonDict:
        total = number = 0
        pieces = padded_groups(documents, lambda text: len(text) + 1, math.inf, _CHUNK, False)
        work = encoder.joined, pieces, num_proc or min(num_cores(), _MAX_PROCESSES)
        with (
            (part / "tokens").open("wb") as tokens,
            (part / "ends").open("wb") as ends,
            closing(Progress(None, f"tokenizing {name}", unit="documents")) as bar,
        ):
            for ids, lengths in map_in_order(*work, few=_FEW):
                tokens.write(ids.astype(dtype, copy=False).tobytes())
                ends.write((total + np.cumsum(lengths)).tobytes())
                total += len(ids)
                number += len(lengths)
                bar.update(len(lengths), len(ids))
        if not total:
            raise ValueError(
                f"{name} contains no text; give data with at least one window of tokens"
            )
        if encoder.key(documents) != folder.name:
            raise ValueError(
                f"{name}: a file changed while it was read; start again when it is complete"
            )
        return {"name": name, "dtype": str(dtype), "documents": number, "total": total}

    need = f"{name} needs {dtype.itemsize} bytes per token"
    try:
        ensure_folder(folder, FORMAT, fill, name, need, "tokenizing", "tokenized")
    except BrokenProcessPool as error:
        raise OSError(
            "a tokenizing process ended early (out of memory?); set data.num_proc to less"
        ) from error
    return TokenizedDocuments(folder)
