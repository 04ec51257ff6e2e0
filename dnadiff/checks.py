"""Checks of single values from users. Each returns the value, or raises a ValueError that names the
key, the value and what is expected.

New code has the types of `dnadiff.fields` in its signature and `@checked` instead.
"""

from __future__ import annotations

import math
from typing import TypeGuard

from annotated_types import Interval

from dnadiff.fields import (
    LARGEST,
    Built,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    PositiveInt,
    check_arguments,
    check_value,
    is_built,
    is_number,
)

__all__ = [
    "LARGEST",
    "Built",
    "Fraction",
    "Natural",
    "NonNegative",
    "Positive",
    "PositiveInt",
    "Range",
    "check_arguments",
    "check_value",
    "is_built",
    "is_number",
]


def Range(
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Interval:
    """The limits of a number in a type hint."""
    return Interval(ge=minimum, le=maximum, gt=above, lt=below)


def is_integer(value: object, minimum: float = -math.inf) -> TypeGuard[float]:
    """Whether the value is an integer of at least `minimum`, in any notation: 1e1 is one."""
    return is_number(value) and value == int(value) and value >= minimum


def integer(key: str, value: object, minimum: int = 1, maximum: int | None = None) -> int:
    """The value as an integer from `minimum` to `maximum` (None is `LARGEST`); 1e3 is one."""
    if not is_integer(value, minimum) or value > (LARGEST if maximum is None else maximum):
        limit = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        if maximum is None and is_integer(value, minimum):
            limit = f"from {minimum} to {LARGEST}"
        raise ValueError(f"{key} {value!r} must be an integer {limit}")
    return int(value)


def optional_integer(
    key: str, value: object, minimum: int = 1, maximum: int | None = None
) -> int | None:
    """As `integer`; None stays None."""
    return None if value is None else integer(key, value, minimum, maximum)


def number(key: str, value: object) -> float:
    """The value unchanged, if it is a finite number."""
    if not is_number(value):
        raise ValueError(f"{key} {value!r} must be a finite number")
    return value  # an int stays one, so that a configuration is written back as it was read


def fraction(key: str, value: object, inclusive: bool = True) -> float:
    """A number from 0 to 1; with `inclusive=False` neither 0 nor 1."""
    if not is_number(value) or not (0 <= value <= 1 if inclusive else 0 < value < 1):
        raise ValueError(
            f"{key} {value!r} must be a number {'from 0 to 1' if inclusive else 'between 0 and 1'}"
        )
    return float(value)


def below_one(key: str, value: object) -> float:
    """A number of at least 0 and below 1, such as a probability of dropout."""
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{key} {value!r} must be a number of at least 0 and below 1")
    return float(value)


def boolean(key: str, value: object) -> bool:
    """True or False. Strings are refused, because any non-empty string counts as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{key} {value!r} must be true or false")
    return value


def name(key: str, value: object) -> str:
    """A non-empty string; a number is converted to one, because YAML reads `task.label_column=1` as
    a number."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        raise ValueError(f"{key} {value!r} must be a name")
    return str(value)
