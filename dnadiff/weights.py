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
