"""Which part of the work a process does: `shard=i/n`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

_FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """The shard that the key `shard` names.

        Raises:
            ValueError: unless it is `i/n` with i from 1 to n.
        """
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"shard {text!r} must be i/n, as in shard=3/200: part 3 of 200")
        shard = cls(int(found[1]), int(found[2]))
        if not 1 <= shard.number <= shard.count:
            raise ValueError(
                f"shard {text}: the first number must be from 1 to the second one, which says how "
                "many shards there are"
            )
        return shard

    def units(self, total: int) -> range:
        """The units of this shard, of `total`: sizes differ by at most one."""
        return range(total * (self.number - 1) // self.count, total * self.number // self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def without(overrides: Sequence[str], keys: Collection[str]) -> list[str]:
    """The arguments of a command line that do not set one of these keys, or something in them."""
    return [
        each
        for each in overrides
        if each.lstrip("+~").partition("=")[0].partition(".")[0] not in keys
    ]


def bounds(total: int, count: int) -> list[int]:
    """The first unit of each of `count` shards, and `total`."""
    return [Shard(number, count).units(total).start for number in range(1, count + 1)] + [total]
