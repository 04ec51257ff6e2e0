"""Work that consists of independent units, so that one process or many can do it, all at once or
after an interruption.

The items of a work (windows, samples, rows) are numbered. A unit is a run of items that are
computed together: the results of a unit do not depend on which other units are computed, where, or
in which order. `dnadiff.shards` distributes units over processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

from dnadiff.config import Json

Report: TypeAlias = Callable[
    [int, int], None
]  # items that are finished, and tokens that were read for them


class Result(NamedTuple):
    """What was computed of some consecutive items.

    Attributes:
        items: how many.
        content: bytes of them.
        about: numbers of these items alone, ready for JSON; the command adds up those of all.
    """

    items: int
    content: bytes
    about: Mapping[str, Json] = MappingProxyType({})


def ignore(items: int, tokens: int) -> None:
    """A report that is not shown."""


class Work(ABC):
    """What a command computes.

    Attributes:
        unit: what a unit is, in words, for messages.
        report: called while results are computed.
        prepared: what `prepare` returned, here or in another process; set before `results` is
            called.
    """

    unit: ClassVar[str]
    report: Report = staticmethod(ignore)
    prepared: Json = None

    @abstractmethod
    def starts(self) -> Sequence[int]:
        """The first item of each unit, ascending from 0, and the number of all items: one entry
        more than there are units."""

    def check(self, first: int, last: int) -> None:
        """Check the input of the items `first` to `last` (left out) before any of them is computed;
        ValueError naming what is wrong."""
        return None

    @abstractmethod
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        """Results of the items from `start + skip` to the last one, computed one by one as they are
        asked for.

        Args:
            start: first item of a unit.
            skip: items after it that earlier results contain.
        """

    def prepare(self) -> Json:
        """What must be computed before any item and is the same for all; None if there is
        nothing."""
        return None
