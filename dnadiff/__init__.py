"""dnadiff: masked diffusion language models for DNA and text.

    import dnadiff
    model = dnadiff.load("RUN")
    model.sample(10, length=512); model.nll(sequences); model.embed(sequences)

Not MUMmer's `dnadiff`, a tool for comparing two genomes.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # `load` pulls in torch; a command's --help and the version should not wait for that.
    if name == "load":
        from dnadiff.model import load

        return load
    raise AttributeError(f"module 'dnadiff' has no attribute {name!r}")
