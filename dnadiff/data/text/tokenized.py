"""Documents tokenised once into the cache: all token ids one after the other, mapped into memory, and where each document ends.

The folder is named by everything that decides the ids: the documents (contents of files, or a dataset with revision and split), the
tokenizer, the detokenizer, whether a document ends with a token of its own, and the versions of both rules. How ids are laid out
in windows (length, wrapping, tokens at the ends of a block) is decided when they are read, and does not matter here.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.atomic_folder import ensure_folder, read_index
from dnadiff.data.cache import cache_dir
from dnadiff.data.text import detokenizer as rules

FORMAT = 1
_CHUNK = 1 << 20  # characters handled at once
_FEW = 4  # chunks that are not worth starting processes for
_MOST = 32  # processes
_LOOK = 1.0  # seconds between looks whether the parent is alive
log = logging.getLogger("dnadiff")
Chunk = tuple[NDArray[Any], NDArray[np.int64]]


class Tokens:
    """Tokenised documents, opened. Pickles as its path.

    Attributes:
        folder: where it lies.
        tokens: all ids, `(total,)`, mapped and read-only.
        ends: where each document ends in `tokens`, `(number of documents,)` int64.
        digest: checksum of the contents.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        index = read_index(self.folder, FORMAT)
        dtype = np.dtype(index["dtype"])
        self.digest = f"{index['files']['tokens']['crc']:08x}{index['files']['ends']['crc']:08x}"
        self.tokens, self.ends = _mapped(self.folder / "tokens", dtype), _mapped(self.folder / "ends", np.dtype(np.int64))

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.ends)

    def starts_at(self, document: int) -> int:
        """Where a document begins in `tokens`; for the number of documents, where the last one ends."""
        return int(self.ends[document - 1]) if document else 0

    def __getitem__(self, document: int) -> NDArray[Any]:
        return self.tokens[self.starts_at(document) : int(self.ends[document])]

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokens, (self.folder,)


def tokenised(
    documents: Any, tokenizer: Any, detokenizer: str | None, eos_id: int | None, name: str, num_proc: int | None = None
) -> Tokens:
    """The token ids of documents, made now if the cache does not hold them.

    Args:
        documents: an iterable of strings with `key()`, plain values that say which they are.
        tokenizer: text to ids.
        detokenizer: name of the rules applied before, or None.
        eos_id: written after each document; None: nothing is.
        name: of the data, for messages.
        num_proc: processes that tokenise; None: as many as there are processor cores. The result does not depend on it.

    Raises:
        ValueError, OSError: from reading and tokenising.
    """
    folder = cache_dir("texts") / name_of(documents, tokenizer, detokenizer, eos_id)

    def fill(part: Path) -> tuple[dict[str, Any], dict[str, int]]:
        filled = _fill(documents, partial(_joined, tokenizer, detokenizer, eos_id), tokenizer.dtype, name, num_proc, part)
        if name_of(documents, tokenizer, detokenizer, eos_id) != folder.name:
            raise ValueError(f"{name}: a file was changed while it was read; start again when it is complete")
        return filled

    ensure_folder(folder, FORMAT, fill, name, f"{name} needs {tokenizer.dtype.itemsize} bytes a token", "tokenising", "tokenised")
    return Tokens(folder)


def name_of(documents: Any, tokenizer: Any, detokenizer: str | None, eos_id: int | None) -> str:
    """The folder's name: a hash of everything that decides the ids."""
    settings = {"format": FORMAT, "tokenizer": tokenizer.fingerprint, "dtype": str(tokenizer.dtype), "eos": eos_id}
    settings |= {"documents": documents.key(), "detokenizer": detokenizer, "rules": rules.VERSION if detokenizer else None}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


def _mapped(path: Path, dtype: np.dtype) -> NDArray[Any]:
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray) if path.stat().st_size else np.empty(0, dtype)


def _fill(
    documents: Iterable[str], encode: Callable[[list[str]], Chunk], dtype: np.dtype, name: str, num_proc: int | None, part: Path
) -> tuple[dict[str, Any], dict[str, int]]:
    began, said, total, number, crc = time.monotonic(), time.monotonic(), 0, 0, {"tokens": 0, "ends": 0}
    with (part / "tokens").open("wb") as tokens, (part / "ends").open("wb") as ends:
        for ids, lengths in in_order(encode, chunks(documents), num_proc):
            for file, key, values in ((tokens, "tokens", ids.astype(dtype, copy=False)), (ends, "ends", total + np.cumsum(lengths))):
                data = np.ascontiguousarray(values).tobytes()
                crc[key] = zlib.crc32(data, crc[key])
                file.write(data)
            total, number = total + len(ids), number + len(lengths)
            if time.monotonic() - said > 30:
                said = time.monotonic()
                log.info(f"{name}: {number:,} documents tokenised, {total:,} tokens")
        for file in (tokens, ends):
            file.flush()
            os.fsync(file.fileno())
    if not total:
        raise ValueError(f"{name} holds no text; give data with at least one window of tokens")
    if time.monotonic() - began > 2:
        log.info(f"{name}: {number:,} documents tokenised, {total:,} tokens, in {time.monotonic() - began:.0f} s")
    return {"name": name, "dtype": str(dtype), "documents": number, "total": total}, crc


def chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Documents in lists of about a million characters."""
    some, size = [], 0
    for document in documents:
        some.append(document)
        size += len(document) + 1
        if size >= _CHUNK:
            yield some
            some, size = [], 0
    if some:
        yield some


def encoded(tokenizer: Any, detokenizer: str | None, eos_id: int | None, texts: list[str]) -> list[NDArray[Any]]:
    """Ids of each document, `eos_id` after it included."""
    detokenize = rules.detokenizer(detokenizer)
    ids = tokenizer.encode_batch(texts if detokenize is None else [detokenize(text) for text in texts])
    if eos_id is None:
        return ids
    end = np.array([eos_id], dtype=tokenizer.dtype)
    return [np.concatenate([each, end]) for each in ids]


def _joined(tokenizer: Any, detokenizer: str | None, eos_id: int | None, texts: list[str]) -> Chunk:
    """Ids of documents joined, and how many each has."""
    ids = encoded(tokenizer, detokenizer, eos_id, texts)
    return np.concatenate(ids), np.array([len(each) for each in ids], dtype=np.int64)


def in_order(work: Callable[[Any], Any], items: Iterable[Any], num_proc: int | None = None) -> Iterator[Any]:
    """`map(work, items)` by several processes, results in the order of the items; a few items are worked on here."""
    num_proc = (
        min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MOST)
        if num_proc is None
        else num_proc
    )
    items = iter(items)
    first = list(itertools.islice(items, _FEW + 1)) if num_proc > 1 else []
    items = itertools.chain(first, items)
    if len(first) <= _FEW:
        yield from map(work, items)
        return
    workers = [_Worker(work) for _ in range(num_proc)]
    try:
        waiting: list[_Worker] = []  # each has one item
        for number, item in enumerate(items):
            worker = workers[number % num_proc]
            if number >= num_proc:
                waiting.pop(0)
                yield worker.receive()
            worker.send(item)
            waiting.append(worker)
        for worker in waiting:
            yield worker.receive()
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that works on one item at a time, and ends with its parent."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=_serve, args=(other, work, os.getpid()), daemon=True)
        self.process.start()
        other.close()

    def send(self, item: Any) -> None:
        """Hand over an item."""
        self.pipe.send(item)

    def receive(self) -> Any:
        """The result of the item before."""
        while not self.pipe.poll(1.0):
            if not self.process.is_alive() and not self.pipe.poll():
                raise OSError("a process that tokenised ended early (out of memory?); set data.num_proc to less")
        result, error = self.pipe.recv()
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any, work: Callable[[Any], Any], parent: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each process; threads do not survive the fork
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        while True:
            item = pipe.recv()
            try:
                pipe.send((work(item), None))
            except (ValueError, OSError) as error:
                pipe.send((None, error))
            except Exception as error:  # what another library raises may not pickle
                pipe.send((None, RuntimeError(f"{type(error).__name__}: {error}")))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return


def _end_with(parent: int) -> None:
    """End this process once its parent has been killed.

    Pipes do not tell: a forked process holds both ends of its own, and would wait in them for ever, with the lock of the cache, which it
    has from its parent too.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
