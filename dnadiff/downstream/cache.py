"""Tasks that were read once, encoded, in the cache folder: token ids as one uint8 array, with lengths, classes and parts.

Reading is known by the reader's settings and the files it read. A file that changes in any way is read again; a damaged cache too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dnadiff.data.cache import cache_dir
from dnadiff.data.files import atomic_write

log = logging.getLogger("dnadiff")

FORMAT = 1
_SETTLED = 2.0  # seconds: a file changed more recently might change again within the resolution of its time stamp


def key_of(settings: Mapping[str, Any], tokenizer: Any, files: Sequence[Path]) -> str | None:
    """32 hexadecimal digits for what a reader with these settings makes of these files; None while one of them has just changed."""
    about = [(str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino) for file in files]
    if time.time() - max((max(mtime, ctime) for _, _, mtime, ctime, _ in about), default=0) / 1e9 < _SETTLED:
        return None
    whole = json.dumps([FORMAT, settings, tokenizer.config(), about], sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def load(key: str) -> dict[str, Any] | None:
    """What `save` kept, or None: `sequences`, `labels`, `parts` and the other entries."""
    path = cache_dir("tasks") / f"{key}.npz"
    if not path.is_file():
        return None
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile), np.load(path) as kept:  # zip files check themselves
        about = json.loads(str(kept["about"]))
        ends = np.cumsum(kept["lengths"])
        sequences = np.split(kept["ids"], ends[:-1])
        labels, parts = ([about[f"{name}_names"][number] for number in kept[name]] for name in ("labels", "parts"))
        return {**about["more"], "sequences": sequences, "labels": labels, "parts": parts}
    log.info(f"{path} is damaged; the task is read again")
    return None


def save(key: str, sequences: Sequence[np.ndarray], labels: Sequence[str], parts: Sequence[str], more: Mapping[str, Any]) -> None:
    """Keep it, wholly or not at all; without a word if the disk is full.

    Args:
        key: from `key_of`.
        sequences: token ids (L_i,) uint8.
        labels: of each.
        parts: of each.
        more: plain values.
    """
    names = {"labels": sorted(set(labels)), "parts": sorted(set(parts))}
    numbers = {kind: {name: number for number, name in enumerate(of)} for kind, of in names.items()}
    about = json.dumps({"more": dict(more), **{f"{kind}_names": of for kind, of in names.items()}})
    with suppress(OSError), atomic_write(cache_dir("tasks") / f"{key}.npz", overwrite=True) as file:
        np.savez(
            file,
            ids=np.concatenate(sequences),
            lengths=np.array([len(ids) for ids in sequences], np.int64),
            labels=np.array([numbers["labels"][name] for name in labels], np.int32),
            parts=np.array([numbers["parts"][name] for name in parts], np.int32),
            about=about,
        )
