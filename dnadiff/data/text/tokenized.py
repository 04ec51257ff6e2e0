"""Documents tokenized once into the cache: all token ids concatenated in a memory-mapped file, and
the end of each document.

The name of the cache folder is a hash of everything that determines the ids (see `cache_key`). How
ids become windows (length, wrapping, tokens at the ends of a block) is decided when they are read.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.text import detokenizer as rules
from dnadiff.store.atomic_folder import Checksum, ensure_folder, read_index
from dnadiff.store.cache import cache_dir

if TYPE_CHECKING:
    from dnadiff.config import Json
    from dnadiff.data.text.documents import Documents
    from dnadiff.data.tokenizer import TextTokenizer

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
        "rules": rules.VERSION if detokenizer else None,
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
    detokenize = rules.detokenizer(detokenizer)
    ids = tokenizer.encode_batch(
        texts if detokenize is None else [detokenize(text) for text in texts]
    )
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
