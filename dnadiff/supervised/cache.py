"""Encoded sequences of tasks in the cache folder: token ids as one uint8 array, with lengths,
classes and parts.

The key covers the reader's settings and the files. If a file changes in any way, or the cache is
damaged, the task is read again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dnadiff.config import Json
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.store.cache import cache_dir
from dnadiff.store.disk import atomic_write, json_object, read_npz

log = logging.getLogger("dnadiff")

FORMAT = 3
# seconds: a file changed more recently might change again within the resolution of its time stamp
_MIN_AGE = 2.0


class Entry(NamedTuple):
    """Token ids (L_i,) uint8, class name and part of each sequence of a task, and further plain
    values."""

    sequences: list[np.ndarray]
    labels: list[str]
    parts: list[str]
    more: dict[str, Json]


def compute_key(
    settings: Mapping[str, object], tokenizer: DNATokenizer, files: Sequence[Path]
) -> str | None:
    """32 hexadecimal digits for a reader with these settings on these files; None if one of the
    files has just changed."""
    about = [
        (
            str(file.resolve()),
            (stat := file.stat()).st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            stat.st_ino,
        )
        for file in files
    ]
    if (
        time.time() - max((max(mtime, ctime) for _, _, mtime, ctime, _ in about), default=0) / 1e9
        < _MIN_AGE
    ):
        return None
    description = json.dumps(
        [FORMAT, settings, tokenizer.config(), about], sort_keys=True, default=str
    )
    return hashlib.sha256(description.encode()).hexdigest()[:32]


def load(key: str) -> Entry | None:
    """The stored entry, or None."""
    path = cache_dir("tasks") / f"{key}.npz"
    if not path.is_file():
        return None
    with suppress(OSError, ValueError, LookupError, TypeError):
        stored = read_npz(path)
        about = json_object(str(stored["about"]), path)
        sequences = np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])
        labels, parts = (
            [about[f"{name}_names"][number] for number in stored[name]]
            for name in ("labels", "parts")
        )
        if stored["lengths"].sum() == len(stored["ids"]) and len(sequences) == len(labels) == len(
            parts
        ):
            return Entry(sequences, labels, parts, about["more"])
    log.info(f"{path} is damaged; the task is read again")
    return None


def save(key: str, entry: Entry) -> None:
    """Store an entry atomically; if the disk is full, nothing is stored and no error is raised."""
    names = {"labels": sorted(set(entry.labels)), "parts": sorted(set(entry.parts))}
    numbers = {kind: {name: number for number, name in enumerate(of)} for kind, of in names.items()}
    about = json.dumps({"more": entry.more, **{f"{kind}_names": of for kind, of in names.items()}})
    with suppress(OSError), atomic_write(cache_dir("tasks") / f"{key}.npz", overwrite=True) as file:
        np.savez(
            file,
            ids=np.concatenate(entry.sequences),
            lengths=np.array([len(ids) for ids in entry.sequences], np.int64),
            labels=np.array([numbers["labels"][name] for name in entry.labels], np.int32),
            parts=np.array([numbers["parts"][name] for name in entry.parts], np.int32),
            about=about,
        )
