"""Reading files of tensors without running what is in them."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch


def read(path: Path) -> Any:
    """The contents of a `.safetensors` file or of one that torch wrote; on the CPU, and no code in it runs.

    Raises:
        ValueError: if the file is truncated or holds pickled code.
    """
    if path.suffix != ".safetensors" and path.stat().st_size and not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            first = file.read(4)
        if first[:1] != b"\x80" and first[:2] != b"PK":  # neither a pickle nor the start of a zip file, which torch writes
            raise ValueError(f"{path} is not a file of tensors; name a run folder or a .ckpt file")
    try:
        if path.suffix == ".safetensors":
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                return load_file(path)
            except SafetensorError as error:
                raise OSError(str(error)) from error
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors and plain values, and was not loaded: it could run code on this machine"
        ) from error
    except (RuntimeError, EOFError, OSError, zipfile.BadZipFile, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is damaged or truncated ({reason}); use another copy of it") from error
