"""Models that can be used: (denoiser, tokenizer, configuration) from a run, an exported folder,
published weights or the Hub.

`load` takes a name and asks the `sources` which kind it is. Nothing in a file is executed: only
classes of this package are built (`dnadiff.config.build`).
"""

from dnadiff.checkpoint.loaded import (
    ChangedDataError,
    Loaded,
    build_denoiser,
    build_objective,
    check_weights,
    label_names,
    resolved,
)
from dnadiff.checkpoint.origin import Origin
from dnadiff.checkpoint.run import find, read
from dnadiff.checkpoint.sources import load
from dnadiff.published.model import export_published, load_published

__all__ = [
    "ChangedDataError",
    "Loaded",
    "Origin",
    "build_denoiser",
    "build_objective",
    "check_weights",
    "export_published",
    "find",
    "label_names",
    "load",
    "load_published",
    "read",
    "resolved",
]
