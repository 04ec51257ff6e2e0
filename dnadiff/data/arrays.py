"""Reading of `.npz` files that this package wrote and reads back, with all checks that the format
allows."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy


def read_npz(path: str | os.PathLike[str], names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of a file, read completely and compared with their checksums; no code in it runs.

    `numpy.load` compares no checksum of an array whose bytes it counts itself, and allocates what a
    damaged header asks for.

    Args:
        names: arrays that it must have.

    Raises:
        ValueError: if the file is damaged, or lacks one of `names`.
    """
    content = io.BytesIO(Path(path).read_bytes())
    try:
        with zipfile.ZipFile(content) as file:
            arrays = {
                name.removesuffix(".npy"): _array(file.read(name)) for name in file.namelist()
            }
    except (
        Exception
    ) as error:  # zipfile, zlib and the parser of array headers raise errors of many kinds
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(
            f"{path} is damaged or cut short ({reason}); use another copy of it, or remove it"
        ) from None
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(
            f"{path} is damaged: it lacks the array {missing[0]}; use another copy of it, or "
            "remove it"
        )
    return arrays


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    version = npy.read_magic(file)
    shape, fortran_order, dtype = (
        npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    )(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(
            f"an array of shape {shape} and type {dtype} in {len(content) - file.tell():,} bytes"
        )
    return (
        np.frombuffer(content, dtype, offset=file.tell())
        .reshape(shape, order="F" if fortran_order else "C")
        .copy()
    )
