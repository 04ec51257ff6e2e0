"""Reading a published `config.json`: which keys a network has, of what type and size, and what an absent one stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WIDEST, DEEPEST, LARGEST = 2**16, 2**12, 2**24  # widths, layers, vocabularies: above them a file is damaged or hostile
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", dict: "a table", list: "a list of whole numbers"}


@dataclass(frozen=True)
class Key:
    """What one key may hold.

    Attributes:
        kind: bool, int, float, str, dict or list, as JSON has them; a whole number is a number, true is not.
        default: what an absent key stands for; without one it must be there.
        least: smallest number.
        most: largest number.
        null: null stands for the default, too.
        word: a word that is allowed beside numbers.
        only: the one value that these networks have.
    """

    kind: type
    default: Any = ...
    least: float = 1
    most: float = WIDEST
    null: bool = False
    word: str | None = None
    only: Any = ...

    def read(self, name: str, config: Mapping[str, Any]) -> Any:
        """The value of key `name`.

        Raises:
            KeyError: if it is absent and has no default.
            ValueError: if it is of another type, too small or too large, or what these networks are not.
        """
        if name not in config and self.default is ...:
            raise KeyError(name)
        value = config.get(name, self.default)
        if name not in config or (value is None and self.null) or (self.word is not None and value == self.word):
            return self.default if value is None else value
        kinds = (int, float) if self.kind is float else self.kind
        number = self.kind in (int, float)
        fits = isinstance(value, kinds) and isinstance(value, bool) == (self.kind is bool)
        fits = fits and (self.kind is not list or all(type(item) is int for item in value))
        if not fits or (number and not (math.isfinite(value) and self.least <= value <= self.most)):
            between = f" from {self.least:g} to {self.most:g}" if number else ""
            raise ValueError(f"{name} is {str(value)[:40]!r}, expected {_WORDS[self.kind]}{between}")
        if self.only is not ... and value != self.only:
            raise ValueError(f"{name} is {value}, and these networks have {name} {self.only}")
        return value


def settings(config: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    """The values of all keys of a table; others are not looked at. Raises as `Key.read`."""
    return {name: key.read(name, config) for name, key in keys.items()}
