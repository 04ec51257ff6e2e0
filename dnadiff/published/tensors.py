"""Reads files of tensors without running code from them."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from dnadiff.config import Json


def read(path: Path) -> Json:
    """The contents of a `.safetensors` file, or of a file of tensors and plain values written by `torch.save`; no code in it runs.

    Raises:
        ValueError: if the file is truncated or holds pickled code.
    """
    is_safetensors = path.suffix == ".safetensors"
    if not is_safetensors and path.stat().st_size and not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            first = file.read(4)
        if first[:1] != b"\x80" and first[:2] != b"PK":  # neither a pickle nor a zip file, the formats of torch.save
            raise ValueError(f"{path} is not a file of tensors; name a run folder or a .ckpt file")
    try:
        return _read_safetensors(path) if is_safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors and plain values, and was not loaded: it could run code on this machine"
        ) from error
    except (RuntimeError, EOFError, OSError, zipfile.BadZipFile, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is damaged or truncated ({reason}); use another copy of it") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
