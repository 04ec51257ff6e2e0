"""The weights of a classifier in a safetensors file, identified by its SHA-256: the format has no
checksums of its own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from dnadiff.store.disk import atomic_write


class WeightsFile(NamedTuple):
    """A file of weights and the SHA-256 of its bytes."""

    path: Path
    sha256: str

    def is_intact(self) -> bool:
        """Whether the file exists with these bytes."""
        return self.path.is_file() and _sha256(self.path) == self.sha256

    def read(self) -> dict[str, Tensor]:
        """The tensors by name.

        Raises:
            FileNotFoundError: if the file is missing.
            ValueError: if its bytes differ.
        """
        from dnadiff.weights import tensors

        if not self.path.is_file():
            raise FileNotFoundError(
                f"{self.path} is missing; copy the complete folder, or fine-tune again"
            )
        if not self.is_intact():
            raise ValueError(
                f"{self.path} is damaged (its SHA-256 differs); use another copy of it, or "
                "fine-tune again"
            )
        return tensors.read(self.path)

    def copy_to(self, target: Path) -> WeightsFile:
        """Copy the file atomically; nothing is written if `target` is the same already.

        Raises:
            FileNotFoundError: if the file is missing.
            ValueError: if its bytes differ.
        """
        copy = WeightsFile(target, self.sha256)
        if not copy.is_intact():
            content = self.path.read_bytes()
            if (
                hashlib.sha256(content).hexdigest() != self.sha256
            ):  # of the bytes that are written, not of those of a second reading
                raise ValueError(
                    f"{self.path} is damaged (its SHA-256 differs); fine-tune again: it is then "
                    "trained again"
                )
            with atomic_write(target, overwrite=True, size=len(content)) as file:
                file.write(content)
        return copy


def write_weights(path: Path, network: nn.Module) -> WeightsFile:
    """Write every parameter and buffer of a network atomically; a tied parameter is written under
    each of its names."""
    from safetensors.torch import save

    state = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in network.state_dict().items()
    }
    content = save(state, metadata={"format": "pt"})
    with atomic_write(path, overwrite=True, size=len(content)) as file:
        file.write(content)
    return WeightsFile(path, hashlib.sha256(content).hexdigest())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
