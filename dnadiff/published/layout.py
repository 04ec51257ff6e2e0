"""How a network's tensors are called in published checkpoints: one list serves reading and writing.

`published_layout` gives it for a network; each family registers its own (`caduceus`, `mdlm`, `gpt2`). Folders and the Hub belong
to `dnadiff.published.model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class PublishedLayout:
    """The published form of one network.

    Attributes:
        config: what its `config.json` says.
        weights: the network's own tensors, as views of the published shape, each with the names that files have for it.
            A tied tensor has several; a file needs one of them.
        constants: tensors that files may hold beside the weights, and that the configuration determines.
    """

    config: dict[str, Any]
    weights: Sequence[tuple[Tensor, tuple[str, ...]]]
    constants: Mapping[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """Everything under every name, detached copies: what a file holds."""
        named = {name: tensor for tensor, names in self.weights for name in names} | dict(self.constants)
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in named.items()}

    @torch.no_grad()
    def fill(self, given: Mapping[str, Tensor], source: object) -> None:
        """Copy the tensors of a file into the network.

        Raises:
            ValueError: listing what is missing, surplus, misshapen, or differs where the network has one tensor or a constant.
        """
        self.check(given, source)
        _refuse(list(self._differences(given)), source)
        for tensor, names in self.weights:
            tensor.copy_(next(given[name] for name in names if name in given))

    def check(self, given: Mapping[str, Tensor], source: object) -> None:
        """Compare names, shapes and types alone, so that a network without memory (on the meta device) will do.

        Raises:
            ValueError: listing what is missing, surplus or misshapen.
        """
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
                    yield f"{name} holds {given[name].dtype}, expected real numbers"
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
                yield f"{name} differs from what the configuration means"


@singledispatch
def published_layout(network: nn.Module) -> PublishedLayout:
    """How published checkpoints store this network.

    Raises:
        ValueError: if there is no published format for it.
    """
    raise ValueError(f"{type(network).__name__} has no published format; caduceus, caduceus_ps and dit have one")


def _refuse(faults: Sequence[str], source: object) -> None:
    if faults:
        raise ValueError(f"the weights in {source} do not fit its configuration: {listing(faults)}")


def listing(faults: Sequence[str]) -> str:
    """All faults in one line, counted where there are many."""
    return (f"{len(faults)} faults: " if len(faults) > 30 else "") + "; ".join(faults)
