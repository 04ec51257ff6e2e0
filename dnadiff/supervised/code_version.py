"""Which code computes a prediction: stored predictions are reused only by the same code and the
same libraries."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.resources
import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable

import torch

from dnadiff.config import Json
from dnadiff.renamed import VERSION

# Given items, division and weights, which have digests of their own, predictions depend on nothing
# else in the package.
SOURCES = (
    *(
        "backbone",
        "supervised",
        "kernels",
        "training/optim.py",
        "training/collector.py",
        "data/tokenizer.py",
        "formats/nucleotides.py",
    ),
    *("draws.py", "kmers.py", "vocab.py"),
)
_SUFFIXES = (".py", ".cpp", ".h")


def code_version(network: type | None = None, config: Json = None) -> dict[str, str]:
    """What the code that computes predictions is identified by: a digest of its sources, and the
    versions of the libraries.

    The digest covers `SOURCES`, also of a package in a zip file, and your own modules of `network`
    and of each `_target_` in `config`, such as a head. Other modules that yours import are not
    covered.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        for path, content in _files(importlib.resources.files("dnadiff").joinpath(name), name):
            digest.update(f"{path}:{len(content)}:".encode() + content)
    own = {network.__module__} if network is not None else set()
    for module in sorted(own | set(_modules(config))):
        if not module.startswith("dnadiff."):
            with contextlib.suppress(OSError, TypeError):  # of a compiled module
                digest.update(inspect.getsource(sys.modules[module]).encode())
    return {
        "dnadiff": VERSION,
        "code": digest.hexdigest()[:12],
        "torch": torch.__version__,
        **{
            name: importlib.metadata.version(name)
            for name in ("lightning", "scikit-learn", "numpy", "scipy")
        },
    }


def _modules(config: Json) -> Iterator[str]:
    """The modules of the `_target_`s of a configuration."""
    if isinstance(config, Mapping):
        parts = str(config.get("_target_", "")).split(".")
        names = (
            ".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)
        )  # a target can be a method of a class
        yield from [name for name in names if name in sys.modules][:1]
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _modules(value)


def _files(entry: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of each source file, in the order of their names."""
    if entry.is_dir():
        for child in sorted(entry.iterdir(), key=lambda child: child.name):
            yield from _files(child, f"{name}/{child.name}")
    elif name.endswith(_SUFFIXES):
        yield name, entry.read_bytes()
