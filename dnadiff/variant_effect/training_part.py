"""Whether a genome is the one that a model was trained on, and which variants are in the training
part."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dnadiff.data.run_data import run_data
from dnadiff.variant_effect.variant import Edit, Reference, record_of

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome
    from dnadiff.weights.loaded import Loaded

_COMPARED, _LENGTH = 64, 64  # stretches of a record that are compared, and their bases
log = logging.getLogger("dnadiff")


class TrainingPart(NamedTuple):
    """The training intervals on the records of a genome.

    Attributes:
        starts, ends: of the intervals of each record that is the model's own, sorted.
        note: what is known of the genome, for reports.
    """

    starts: dict[str, list[int]]
    ends: dict[str, list[int]]
    note: str

    def contains(self, edit: Edit) -> bool:
        """Whether a variant touches a training interval."""
        starts = self.starts.get(edit.record, [])
        place = bisect_right(starts, max(edit.end - 1, edit.start)) - 1
        return place >= 0 and edit.start < self.ends[edit.record][place]

    @property
    def known(self) -> bool:
        """Whether any record is the model's own."""
        return bool(self.starts)


def training_part(loaded: Loaded, reference: Reference, trust: Sequence[str] = ()) -> TrainingPart:
    """The training part of a model on a genome, with a warning if both have records of equal names
    that are not the same.

    Nothing is downloaded. Without the data of the run, or with another genome, no interval is
    known.
    """
    try:
        data = run_data(loaded.config.get("data"), loaded.tokenizer, trust)
        if not data.opens_genome:
            raise ValueError("the model was not trained on a genome")
        data.prepare()
        own = data.open()
    except (ValueError, OSError) as error:
        return TrainingPart({}, {}, f"not known ({' '.join(str(error).split())[:120]})")
    same, other = _compared(own, reference)
    if other:
        log.warning(
            f"{', '.join(sorted(other)[:4])}: the genome has different bases from the model's "
            f"training data ({data.name}): a different assembly? "
            "Variants in the training part cannot be counted there"
        )
    starts: dict[str, list[int]] = {name: [] for name in same.values()}
    ends: dict[str, list[int]] = {name: [] for name in same.values()}
    for interval in sorted(data.intervals["train"]):
        name = same.get(data.names[interval.record])
        if name is not None:
            starts[name].append(interval.start)
            ends[name].append(interval.end)
    note = (
        f"split {data.split.describe()}"
        if same
        else f"not known (the model was trained on {data.name})"
    )
    return TrainingPart(starts, ends, note)


def _compared(own: Genome, reference: Reference) -> tuple[dict[str, str], set[str]]:
    """Records of the training data that the genome has too, with their names there; and those that
    differ."""
    same: dict[str, str] = {}
    other: set[str] = set()
    lengths = reference.lengths
    for name, length in own.lengths.items():
        here = record_of(name, lengths)
        if here is None:
            continue
        if lengths[here] == length and _same_bases(own, name, reference, here, length):
            same[name] = here
        else:
            other.add(here)
    return same, other


def _same_bases(own: Genome, name: str, reference: Reference, here: str, length: int) -> bool:
    size = min(_LENGTH, length)
    starts = np.unique(np.linspace(0, length - size, _COMPARED).astype(int)).tolist()
    return all(
        np.array_equal(own.window(name, s, s + size), reference.window(here, s, s + size))
        for s in starts
    )
