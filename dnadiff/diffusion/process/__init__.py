"""Processes: how x0 becomes xt, and what the reverse steps and the bound of a model are (`base`).

`AbsorbingProcess` masks tokens. `MixtureProcess` also replaces them, as `UniformProcess` does.
"""

from dnadiff.diffusion.process.absorbing import AbsorbingProcess, unmask_probability
from dnadiff.diffusion.process.base import Process, require
from dnadiff.diffusion.process.mixture import MixtureProcess, UniformProcess

__all__ = [
    "AbsorbingProcess",
    "MixtureProcess",
    "Process",
    "UniformProcess",
    "require",
    "unmask_probability",
]
