"""dnadiff: masked diffusion language models for DNA and text.

    import dnadiff
    model = dnadiff.load("RUN")
    model.sample(10, length=512); model.nll(sequences); model.embed(sequences)

Not to be confused with MUMmer's `dnadiff`, a tool for comparing two genomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dnadiff.renamed import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from dnadiff.model import Model, load
    from dnadiff.supervised.ensemble import ClassifierEnsemble

__version__ = VERSION
__all__ = ["load"]


def __getattr__(name: str) -> Callable[..., Model | ClassifierEnsemble]:
    # `load` imports torch, which `--help` and the version do not need.
    if name not in __all__:
        raise AttributeError(f"module 'dnadiff' has no attribute {name!r}")
    from dnadiff.model import load

    return load
