"""Real sequences that generated ones are compared with: windows of a FASTA file, or of a held-out
part of the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dnadiff.data.base import SequenceDataModule
from dnadiff.data.windows import Window
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.held_out import bases_of
from dnadiff.genomics.kmers import UNKNOWN
from dnadiff.genomics.metrics.composition import as_bases

MAX_UNKNOWN = 0.1  # fraction of unknown bases in a real window, as in training


def read_bases(path: str | Path) -> list[np.ndarray]:
    """The records of a FASTA file as bases."""
    return [as_bases(record.sequence) for record in read_sequences(path)]


def held_out_windows(data: SequenceDataModule, part: str, length: int) -> list[np.ndarray]:
    """The windows of a held-out part as bases, without overlap; raises ValueError if the part is
    not held out, or too short."""
    if part not in ("test", "valid"):
        raise ValueError(f"part {part!r} is not held out; choose test or valid")
    longest = max((i.end - i.start for i in data.intervals[part]), default=0)
    windows: list[np.ndarray] = []
    if longest >= length:
        tiles, to_bases = data.test_windows(part, length), bases_of(data)
        # Complete sequences are padded to a length of their own, whatever length is asked for.
        records = [
            to_bases(content(tiles[i])) for i, tile in enumerate(tiles.tiles) if tile.skip == 0
        ]
        windows = [
            bases[at : at + length]
            for bases in records
            for at in range(0, len(bases) - length + 1, length)
        ]
    if not windows:
        problem = (
            f"has no interval of {length:,} bases (the longest has {longest:,})"
            if longest
            else "is empty"
        )
        raise ValueError(
            f"the {part} part of {data.name} {problem}; give real=y.fa, or shorter samples"
        )
    return windows


def content(window: Window) -> np.ndarray:
    """The token ids of a window, without padding."""
    ids = window["ids"].numpy()
    return ids[window["valid"].numpy()] if "valid" in window else ids


def cut(
    records: Sequence[np.ndarray], length: int, max_unknown: float = MAX_UNKNOWN
) -> list[np.ndarray]:
    """Consecutive windows of the records, without those that have many unknown bases; raises
    ValueError if there is none."""
    found = [
        bases[at : at + length]
        for bases in records
        for at in range(0, len(bases) - length + 1, length)
    ]
    found = [bases for bases in found if (bases == UNKNOWN).mean() <= max_unknown]
    if not found:
        raise ValueError(
            f"real has no window of {length:,} bases with at most {100 * max_unknown:g} % unknown "
            "bases; give longer records"
        )
    return found
