"""The names of a network's tensors in published checkpoints: one list for reading and writing.

`published_layout` returns it for a network; each family registers its own (`caduceus`, `mdlm`,
`gpt2`). Folders and the Hub are in `dnadiff.published.model`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from dnadiff.backbone.base import Backbone
from dnadiff.config import Config
from dnadiff.vocab import Vocab


@dataclass(frozen=True)
class PublishedLayout:
    """The published form of one network.

    Attributes:
        config: the contents of its `config.json`.
        weights: the network's own tensors, as views of the published shape, each with its names in
            files. A tied tensor has several names; a file needs one of them.
        constants: further tensors that files may hold and that follow from the configuration.
    """

    config: Config
    weights: Sequence[tuple[Tensor, tuple[str, ...]]]
    constants: Mapping[str, Tensor]

    def tensors(
        self, duplicate_tied: bool = True, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """The contents of a file: detached copies of all tensors, tied ones under all their names
        or under the first; weights as `dtype`."""
        weights = {
            name: tensor.to(dtype or tensor.dtype)
            for tensor, names in self.weights
            for name in (names if duplicate_tied else names[:1])
        }
        return {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in (weights | dict(self.constants)).items()
        }

    @torch.no_grad()
    def fill(self, given: Mapping[str, Tensor], source: Path | str) -> None:
        """Copy the tensors of a file into the network.

        Raises:
            ValueError: listing tensors that are missing, surplus, of the wrong shape, or different
                from the tensor to which they are tied or from a constant.
        """
        self.check(given, source)
        _refuse(list(self._differences(given)), source)
        for tensor, names in self.weights:
            tensor.copy_(next(given[name] for name in names if name in given))

    def check(self, given: Mapping[str, Tensor], source: Path | str) -> None:
        """Check names, shapes and types only, as `fill` does first; also works for a network on the
        meta device."""
        _refuse(list(self._misfits(given)), source)

    def _misfits(self, given: Mapping[str, Tensor]) -> Iterator[str]:
        known = set(self.constants)
        for tensor, names in self.weights:
            known.update(names)
            found = [name for name in names if name in given]
            if not found:
                yield f"missing {names[0]}"
            for name in found:
                if given[name].shape != tensor.shape:
                    yield f"{name} is {tuple(given[name].shape)}, expected {tuple(tensor.shape)}"
                elif not given[name].is_floating_point():
                    yield f"{name} holds {given[name].dtype}, expected floating point"
        yield from (f"surplus {name}" for name in given if name not in known)
        for name, constant in self.constants.items():
            if name in given and given[name].shape != constant.shape:
                yield f"{name} is {tuple(given[name].shape)}, expected {tuple(constant.shape)}"

    def _differences(self, given: Mapping[str, Tensor]) -> Iterator[str]:
        for tensor, names in self.weights:
            first, *others = (name for name in names if name in given)
            for name in others:
                if not torch.equal(given[name].to(tensor), given[first].to(tensor)):
                    yield f"{name} differs from {first}, to which it is tied"
        for name, constant in self.constants.items():
            if name in given and not torch.allclose(given[name].float(), constant.cpu().float()):
                yield f"{name} differs from the value that follows from the configuration"


class Family(ABC):
    """One family of published models that unmask tokens: how its `config.json` is read.

    Attributes:
        records_time: the file records whether the network is conditioned on time.
        objective: of the published training, as in a training configuration.
    """

    records_time: bool = False
    objective: ClassVar[Config]

    @abstractmethod
    def implied_vocab(self, config: Config) -> Vocab:
        """The vocabulary of a model whose file does not describe one."""

    @abstractmethod
    def backbone(self, config: Config, vocab: Vocab) -> Config:
        """The network that a published `config.json` describes, as a `_target_` and its arguments.

        Raises:
            KeyError: if a size is missing.
            ValueError: if a value has the wrong type or size, or is not supported.
        """


@singledispatch
def published_layout(network: Backbone) -> PublishedLayout:
    """The published form of a network, by its class; ValueError if there is none."""
    raise ValueError(
        f"{type(network).__name__} has no published format; caduceus, caduceus_ps and dit have one"
    )


def _refuse(faults: Sequence[str], source: Path | str) -> None:
    if faults:
        raise ValueError(f"the weights in {source} do not fit its configuration: {listing(faults)}")


def listing(faults: Sequence[str]) -> str:
    """All faults in one line, with their number if there are many."""
    return (f"{len(faults)} faults: " if len(faults) > 30 else "") + "; ".join(faults)
