"""Documents tokenized once into the cache: all token ids concatenated in a memory-mapped file, and
the end of each document.

The name of the cache folder is a hash of everything that determines the ids (see `cache_key`). How
ids become windows (length, wrapping, tokens at the ends of a block) is decided when they are read.
Detokenizers undo the word tokenization of old corpora. Their rules are those of MDLM's experiments
(arXiv 2406.07524 and its published loader), in the same order, as tables of replacements.
Perplexities depend on them: any change requires a new `RULES_VERSION`, so that cached corpora are
tokenized again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.intervals import Interval
from dnadiff.data.splits import PARTS
from dnadiff.data.text.corpus import Corpus, DocumentRange
from dnadiff.store.cache import Checksum, cache_dir, ensure_folder, read_index

if TYPE_CHECKING:
    from dnadiff.data.splits import Split
    from dnadiff.data.text.corpus import Documents
    from dnadiff.data.tokenizer import TextTokenizer
    from dnadiff.fields import Json

RULES_VERSION = 1
Rule = tuple[str | re.Pattern[str], str]


def _before(marks: str) -> list[Rule]:
    """Remove the space before a punctuation mark that is surrounded by spaces."""
    return [(f" {mark} ", f"{mark} ") for mark in marks]


def _inside(opening: str, closing: str, content: str) -> Rule:
    """Remove the spaces just inside a pair of brackets or quotes."""
    return re.compile(
        f"{re.escape(opening)}{content}{re.escape(closing)}"
    ), f"{opening}\\1{closing}"


def _pairs(content: Callable[[str], str]) -> dict[str, Rule]:
    """`_inside` for all pairs; `content(stop)` is the pattern of the text between them."""
    return {
        pair: _inside(pair[0], pair[1], content(re.escape(pair[1])))
        for pair in ("()", "[]", "{}", '""', "''")
    }


# Any number of spaces, including none; the content is as short as possible.
_WIKI = _pairs(lambda stop: rf"\s*([^{stop}]*?)\s*")
# The published loader also searches for "/' 5/" literally (apparently meant as a pattern). It
# matches no text and is left out here.
WIKITEXT: list[Rule] = [
    ("s '", "s'"),
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *_before(":;.!?,"),
    *(_WIKI[pair] for pair in ("()", "[]", "{}", '""', "''")),
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


def _apply(rules: list[Rule]) -> Callable[[str], str]:
    def detokenize(text: str) -> str:
        for pattern, replacement in rules:
            text = (
                text.replace(pattern, replacement)
                if isinstance(pattern, str)
                else pattern.sub(replacement, text)
            )
        return text

    return detokenize


def lambada(text: str) -> str:
    """Straight quotes and a leading line break, as in the evaluation of GPT-2."""
    return "\n" + _apply(QUOTES)(text).strip()


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "wikitext": _apply(WIKITEXT),
    "ptb": _apply(PTB),
    "lm1b": _apply(LM1B),
    "lambada": lambada,
    "scientific_papers": _apply([*WIKITEXT, *LM1B]),
}


Detokenizer: TypeAlias = Literal["wikitext", "ptb", "lm1b", "lambada", "scientific_papers"]


class Ends(NamedTuple):
    """Ids inserted at the two ends of every window; None: none is inserted."""

    bos: int | None
    eos: int | None

    @property
    def size(self) -> int:
        """Number of positions of a window that they take."""
        return (self.bos is not None) + (self.eos is not None)

    def around(self, text: np.ndarray, length: int) -> np.ndarray:
        """`text (B, length - size)` with the tokens at the ends of each row: `(B, length)`; `text`
        itself if there are none."""
        if not self.size:
            return text
        ids = np.empty((len(text), length), text.dtype)
        first = int(self.bos is not None)
        ids[:, first : first + text.shape[1]] = text
        if self.bos is not None:
            ids[:, 0] = self.bos
        if self.eos is not None:
            ids[:, -1] = self.eos
        return ids


class SpecialTokens(NamedTuple):
    """The tokens after documents and at the ends of windows.

    Args:
        wrap: documents are concatenated; only then does a token follow each of them.
        insert_eos: insert the end-of-text token after each document; None: if the tokenizer has
            one.
        insert_valid_eos: the same for validation and test; None: as `insert_eos`.
        insert_special_tokens: begin and end every window with the tokens for that; None: if the
            tokenizer has both.
    """

    wrap: bool
    insert_eos: bool | None
    insert_valid_eos: bool | None
    insert_special_tokens: bool | None

    def check(self, tokenizer: TextTokenizer) -> None:
        """Raise ValueError if the tokenizer does not have the requested special tokens."""
        has = f"the tokenizer {tokenizer.name} has no token that"
        if (self.insert_eos or self.insert_valid_eos) and self.wrap and tokenizer.eos_id is None:
            key = "insert_eos" if self.insert_eos else "insert_valid_eos"
            raise ValueError(
                f"{has} ends a text; set data.{key}=false, or name one by tokenizer.eos"
            )
        if self.insert_special_tokens and None in (tokenizer.bos_id, tokenizer.eos_id):
            missing = "begins" if tokenizer.bos_id is None else "ends"
            raise ValueError(
                f"{has} {missing} a text; set data.insert_special_tokens=false, or name one by "
                "tokenizer.bos and tokenizer.eos"
            )

    def after(self, tokenizer: TextTokenizer, part: str) -> int | None:
        """The id after each document of a part; None: no token is inserted."""
        held_out = part != PARTS[0] and self.insert_valid_eos is not None
        insert = self.insert_valid_eos if held_out else self.insert_eos
        return tokenizer.eos_id if insert is not False and self.wrap else None

    def ends(self, tokenizer: TextTokenizer) -> Ends:
        """The tokens at the ends of every window."""
        begin, end = tokenizer.bos_id, tokenizer.eos_id
        return (
            Ends(None, None)
            if self.insert_special_tokens is False or None in (begin, end)
            else Ends(begin, end)
        )

    def layout(self, tokenizer: TextTokenizer, length: int, parts: Sequence[str]) -> str:
        """Describe how documents become windows. Likelihoods under different layouts are not
        comparable."""
        begin, end = self.ends(tokenizer)
        around = (
            ""
            if begin is None or end is None
            else f", {tokenizer.decode([begin])} and {tokenizer.decode([end])} at the ends"
        )
        if not self.wrap:
            return f"padded: each document a window of {length} tokens, padded or cut{around}"
        without = [part for part in parts if self.after(tokenizer, part) is None]
        between = ""
        if tokenizer.eos_id is not None and len(without) < len(parts):
            exception = f" (not in {' and '.join(without)})" if without else ""
            between = f", {tokenizer.decode([tokenizer.eos_id])} after each document{exception}"
        return (
            f"wrapped: documents one after the other in windows of {length} tokens{around}{between}"
        )


FORMAT = 1
_CHUNK = 1 << 20  # characters per work item
_FEW = 4  # work items for which starting processes is not worthwhile
_MAX_PROCESSES = 32
_POLL = 1.0  # seconds between checks that the parent process is alive
log = logging.getLogger("dnadiff")
Chunk = tuple[np.ndarray, NDArray[np.int64]]
Item = TypeVar("Item")
Result = TypeVar("Result")
_work: Callable[[Any], Any]  # of a worker process


class TokenizedDocuments:
    """Tokenized documents in the cache. Pickles as its path.

    Attributes:
        tokens: all ids, `(num_tokens,)`, memory-mapped and read-only.
        ends: end of each document in `tokens`, `(num_documents,)` int64.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        index = read_index(self.folder, FORMAT)
        dtype = np.dtype(index["dtype"])
        self.digest = f"{index['files']['tokens']['crc']:08x}{index['files']['ends']['crc']:08x}"
        self.tokens, self.ends = (
            _mapped(self.folder / "tokens", dtype),
            _mapped(self.folder / "ends", np.dtype(np.int64)),
        )

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ends)

    def starts_at(self, document: int) -> int:
        """The position in `tokens` where a document begins; for `len(self)`, where the last one
        ends."""
        return int(self.ends[document - 1]) if document else 0

    def __getitem__(self, document: int) -> np.ndarray:
        return self.tokens[self.starts_at(document) : int(self.ends[document])]

    def __reduce__(self) -> tuple[type[TokenizedDocuments], tuple[Path]]:
        return TokenizedDocuments, (self.folder,)


def tokenize(
    documents: Documents,
    tokenizer: TextTokenizer,
    detokenizer: str | None,
    eos_id: int | None,
    name: str,
    num_proc: int | None = None,
) -> TokenizedDocuments:
    """The token ids of documents, computed if they are not in the cache.

    Args:
        detokenizer: name of the rules applied first, or None.
        eos_id: written after each document; None: nothing is written.
        num_proc: number of processes, which does not change the result; None: the number of
            processor cores.
    """
    folder = cache_dir("texts") / cache_key(documents, tokenizer, detokenizer, eos_id)

    def fill(part: Path) -> tuple[dict[str, Json], dict[str, Checksum]]:
        filled = _fill(
            documents,
            partial(_joined, tokenizer, detokenizer, eos_id),
            tokenizer.dtype,
            name,
            num_proc,
            part,
        )
        if cache_key(documents, tokenizer, detokenizer, eos_id) != folder.name:
            raise ValueError(
                f"{name}: a file changed while it was read; start again when it is complete"
            )
        return filled

    ensure_folder(
        folder,
        FORMAT,
        fill,
        name,
        f"{name} needs {tokenizer.dtype.itemsize} bytes per token",
        "tokenizing",
        "tokenized",
    )
    return TokenizedDocuments(folder)


def cache_key(
    documents: Documents, tokenizer: TextTokenizer, detokenizer: str | None, eos_id: int | None
) -> str:
    """The name of the cache folder: a hash of everything that determines the ids."""
    settings = {
        "format": FORMAT,
        "tokenizer": tokenizer.fingerprint,
        "dtype": str(tokenizer.dtype),
        "eos": eos_id,
    }
    settings |= {
        "documents": documents.key(),
        "detokenizer": detokenizer,
        "rules": RULES_VERSION if detokenizer else None,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    return (
        np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
        if path.stat().st_size
        else np.empty(0, dtype)
    )


def _fill(
    documents: Iterable[str],
    encode: Callable[[list[str]], Chunk],
    dtype: np.dtype,
    name: str,
    num_proc: int | None,
    part: Path,
) -> tuple[dict[str, Json], dict[str, Checksum]]:
    started, logged, total, number, sums = (
        time.monotonic(),
        time.monotonic(),
        0,
        0,
        {"tokens": Checksum(), "ends": Checksum()},
    )
    with (part / "tokens").open("wb") as tokens, (part / "ends").open("wb") as ends:
        for ids, lengths in map_in_order(encode, chunks(documents), num_proc):
            for file, key, values in (
                (tokens, "tokens", ids.astype(dtype, copy=False)),
                (ends, "ends", total + np.cumsum(lengths)),
            ):
                data = np.ascontiguousarray(values).tobytes()
                sums[key].update(data)
                file.write(data)
            total, number = total + len(ids), number + len(lengths)
            if time.monotonic() - logged > 30:
                logged = time.monotonic()
                log.info(f"{name}: {number:,} documents tokenized, {total:,} tokens")
        for file in (tokens, ends):
            file.flush()
            os.fsync(file.fileno())
    if not total:
        raise ValueError(f"{name} contains no text; give data with at least one window of tokens")
    if time.monotonic() - started > 2:
        log.info(
            f"{name}: {number:,} documents tokenized, {total:,} tokens, in "
            f"{time.monotonic() - started:.0f} s"
        )
    return {"name": name, "dtype": str(dtype), "documents": number, "total": total}, dict(sums)


def chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Documents in lists of about a million characters."""
    chunk: list[str] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document) + 1
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def encode_documents(
    tokenizer: TextTokenizer, detokenizer: str | None, eos_id: int | None, texts: list[str]
) -> list[np.ndarray]:
    """Ids of each document, followed by `eos_id` if it is not None."""
    if detokenizer is not None:
        texts = list(map(DETOKENIZERS[detokenizer], texts))
    ids = tokenizer.encode_batch(texts)
    if eos_id is None:
        return ids
    end = np.array([eos_id], dtype=tokenizer.dtype)
    return [np.concatenate([each, end]) for each in ids]


def _joined(
    tokenizer: TextTokenizer, detokenizer: str | None, eos_id: int | None, texts: list[str]
) -> Chunk:
    """Concatenated ids of documents, and the number of ids of each."""
    ids = encode_documents(tokenizer, detokenizer, eos_id, texts)
    return np.concatenate(ids), np.array([len(each) for each in ids], dtype=np.int64)


def map_in_order(
    work: Callable[[Item], Result], items: Iterable[Item], num_proc: int | None = None
) -> Iterator[Result]:
    """`map(work, items)` in several processes, results in the order of the items; a few items are
    processed in this process."""
    if num_proc is None:
        num_cores = (
            len(os.sched_getaffinity(0))
            if sys.platform.startswith("linux")
            else os.cpu_count() or 1
        )
        num_proc = min(num_cores, _MAX_PROCESSES)
    items = iter(items)
    first = list(itertools.islice(items, _FEW + 1)) if num_proc > 1 else []
    items = itertools.chain(first, items)
    if len(first) <= _FEW:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(num_proc, initializer=_start_worker, initargs=(work,)) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(waiting) == num_proc:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(_run_item, item))
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise OSError(
                "a tokenizing process ended early (out of memory?); set data.num_proc to less"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(work: Callable[[Item], Result]) -> None:
    global _work
    _work = work  # set once: to pickle a tokenizer with each item would be slow
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # one core per process; threads do not survive a fork
    )
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _run_item(item: Any) -> Any:
    try:
        return _work(item)
    except (ValueError, OSError):
        raise
    except Exception as error:  # exceptions of other libraries may not pickle
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _exit_with_parent() -> None:
    # The queues do not reveal that the parent process was killed: a forked process inherits both
    # ends of each and would wait forever, holding the inherited lock of the cache. Nor does the
    # sentinel while a forked sibling has inherited its other end; the id of the process above
    # changes then. Under `forkserver` that process is the server, and the sentinel is not
    # inherited.
    parent, above = multiprocessing.parent_process(), os.getppid()
    while parent is not None and os.getppid() == above and not wait([parent.sentinel], _POLL):
        pass
    os._exit(1)


TRAIN, VALID, TEST = PARTS
_MANY = 100  # from this number of documents on, a split divides documents, not tokens


@dataclass
class TokenizedParts:
    """Token ids of each part of a corpus. For the arguments see `TextDataModule`."""

    corpus: Corpus
    split: Split
    tokenizer: TextTokenizer
    special_tokens: SpecialTokens
    detokenizer: str | None
    num_proc: int | None
    opened: dict[tuple[str, str | None, int | None], TokenizedDocuments] = field(
        default_factory=dict
    )

    def eos_of(self, part: str) -> int | None:
        """The id after each document of a part, or None."""
        return self.special_tokens.after(self.tokenizer, part)

    def documents(self, part: str) -> tuple[str, str | None, Documents]:
        """The source that contains a part, the part itself if only its documents are read (None:
        all of the source), and the documents."""
        source = self.corpus.source_of(part)
        documents = self._documents_in(source)
        if not self.corpus.streaming or source != TRAIN or not self.corpus.splits_off_validation:
            return source, None, documents
        number = self.corpus.num_documents
        assert number is not None  # checked by Corpus
        edge = self.corpus.first_valid_document(number)
        return (
            source,
            part,
            DocumentRange(documents, edge, number)
            if part == VALID
            else DocumentRange(documents, 0, edge),
        )

    def _documents_in(self, source: str) -> Documents:
        return self.corpus.documents_in(source, keep_line_ends=self.tokenizer.eos_id is None)

    def tokens(self, part: str) -> TokenizedDocuments:
        """The tokenized documents that contain a part."""
        source, only, documents = self.documents(part)
        key = (source, only, self.eos_of(part))
        if key not in self.opened:
            name = (
                self.corpus.name
                if self.corpus.is_divided
                else f"{self.corpus.name} ({only or source})"
            )
            try:
                self.opened[key] = tokenize(
                    documents, self.tokenizer, self.detokenizer, key[-1], name, self.num_proc
                )
            except ValueError as error:
                raise named(error, self.corpus.name) from None
        return self.opened[key]

    def is_opened(self, part: str) -> bool:
        """Whether `tokens` of a part have been read."""
        source, only, _ = self.documents(part)
        return (source, only, self.eos_of(part)) in self.opened

    def counted_once(self) -> list[TokenizedDocuments]:
        """What has been read, without the same documents with other end-of-text tokens."""
        return list({key[:2]: tokens for key, tokens in self.opened.items()}.values())

    def documents_of(self, part: str) -> Sequence[Interval] | None:
        """The intervals of documents in `tokens(part)` that belong to a part; None if the split
        divides tokens, not documents."""
        tokens = self.tokens(part)
        number = len(tokens)
        if self.corpus.is_divided:
            if not self.special_tokens.wrap or number >= _MANY:
                return self.split([self.corpus.name], [number])[part]
            if self.eos_of(part) != self.eos_of(
                TRAIN
            ):  # equal fractions of two different streams are not the same text
                raise ValueError(
                    f"insert_valid_eos={str(self.special_tokens.insert_valid_eos).lower()} differs "
                    "from training, and the split divides "
                    f"{number} documents by position; give separate parts, data.path={{train: "
                    f"FILE, valid: FILE, test: FILE}}, or {_MANY} documents"
                )
            return None
        if not self.corpus.splits_off_validation or self.documents(part)[:2] != (TRAIN, None):
            return [Interval(0, 0, number)]
        edge = self.corpus.first_valid_document(number)
        return [Interval(0, edge, number)] if part == VALID else [Interval(0, 0, edge)]

    def intervals(self, part: str) -> Sequence[Interval]:
        """The intervals of tokens in `tokens(part)` that belong to a part."""
        tokens, documents = self.tokens(part), self.documents_of(part)
        if documents is None:
            return self.split([self.corpus.name], [len(tokens.tokens)])[part]
        return [Interval(0, tokens.starts_at(i.start), tokens.starts_at(i.end)) for i in documents]

    def digest(self) -> str:
        """SHA-256 of the CRC-32s of the tokenized files of training (unless it is streamed) and
        validation, and of the split."""
        read = [
            part
            for part in (TRAIN, VALID)
            if part in self.corpus.parts and not (self.corpus.streaming and part == TRAIN)
        ]
        digests = [self.tokens(part).digest for part in read]
        return hashlib.sha256(json.dumps([*digests, self.split_hash()]).encode()).hexdigest()

    def describe_split(self) -> str:
        """How the documents are divided into parts, for reports."""
        if self.corpus.is_divided:
            return self.split.describe()
        cut = (
            f"; the last {self.corpus.valid_documents:,} documents of train are valid"
            if self.corpus.splits_off_validation
            else ""
        )
        return f"parts of their own ({', '.join(self.corpus.sources)}){cut}"

    def split_hash(self) -> str:
        """A hash of everything that determines which tokens are in which part."""
        hashed = {}
        for source in self.corpus.sources:
            documents = self._documents_in(source)
            ends = {self.eos_of(TRAIN if self.corpus.is_divided else source): None}
            if sum(self.corpus.source_of(part) == source for part in self.corpus.parts) > 1:
                ends[self.eos_of(VALID)] = None
            hashed[source] = "".join(
                cache_key(documents, self.tokenizer, self.detokenizer, end) for end in ends
            )
        ends_of_windows = list(self.special_tokens.ends(self.tokenizer))
        how = [
            self.describe_split(),
            self.special_tokens.wrap,
            ends_of_windows,
            sorted(hashed.items()),
        ]
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:16]


def named(error: ValueError, name: str) -> ValueError:
    """The error with the name of the data in front, unless it begins with it."""
    return ValueError(str(error) if str(error).startswith(name) else f"{name}: {error}")
