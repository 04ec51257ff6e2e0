"""dnadiff: masked diffusion language models for DNA and text.

    import dnadiff
    model = dnadiff.load("RUN")
    model.sample(10, length=512); model.nll(sequences); model.embed(sequences)
    dnadiff.Genome("g.fa")["chr1"][100:200]

Not to be confused with MUMmer's `dnadiff`, a tool for comparing two genomes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dnadiff.renamed import VERSION

if TYPE_CHECKING:
    from dnadiff import plot
    from dnadiff.data.genome.genome import Genome
    from dnadiff.model import list_models, load
    from dnadiff.supervised.estimators import Classifier, Regressor

__version__ = VERSION
__all__ = ["Classifier", "Genome", "Regressor", "list_models", "load", "plot"]
_HOMES = {
    "Classifier": "supervised.estimators",
    "Genome": "data.genome.genome",
    "Regressor": "supervised.estimators",
    "list_models": "model",
    "load": "model",
    "plot": "plot",
}


def __getattr__(name: str) -> Any:
    # They import torch, which `--help` and the version do not need.
    if name not in _HOMES:
        raise AttributeError(f"module 'dnadiff' has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(module, name, module)
