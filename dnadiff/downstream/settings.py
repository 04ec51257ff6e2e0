"""Checks of what `task.KEY=VALUE` gives: the right kind of value, or one line that names the key."""

from __future__ import annotations

import math
from typing import Any


def whole(key: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number of at least `least` and at most `most`.

    Raises:
        ValueError: naming the key.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value != int(value) or value < least or (most is not None and value > most):
        upper = " or more" if most is None else f"..{most}"
        raise ValueError(f"{key} is {value!r}; set task.{key} to a whole number, {least}{upper}")
    return int(value)


def whole_or_none(key: str, value: Any, least: int, most: int | None = None) -> int | None:
    """As `whole`; None stays None."""
    return None if value is None else whole(key, value, least, most)


def share(key: str, value: Any) -> float:
    """A number above 0 and below 1.

    Raises:
        ValueError: naming the key.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ValueError(f"{key} is {value!r}; set task.{key} to a share between 0 and 1")
    return float(value)


def flag(key: str, value: Any) -> bool:
    """True or False; a word would count as True without a sign.

    Raises:
        ValueError: naming the key.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}; set task.{key} to true or false")
    return value


def word(key: str, value: Any) -> str:
    """A name; a number is one too, as YAML reads `task.label_column=1`.

    Raises:
        ValueError: naming the key.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        raise ValueError(f"{key} is {value!r}; set task.{key} to a name")
    return str(value)
