"""Checks of single values from users. Each returns the value, or raises a ValueError that names the
key, the value and what is expected.

A key is written as the user sets it, as in `sampler.num_steps`. `check_value` compares a value with
a type hint, so that the signature of a class is all that the keys of its configuration need.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Annotated, Literal, TypeGuard, Union, get_args, get_origin

LARGEST = 2**63 - 1  # of 64 bits: what tensors and files can hold


@dataclasses.dataclass(frozen=True)
class Range:
    """The limits of a number in a type hint, as in `Annotated[int, Range(1)]`; `above` and `below`
    are limits that it must not reach."""

    minimum: float = -math.inf
    maximum: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether a number is inside."""
        return self.minimum <= value <= self.maximum and self.above < value < self.below

    def __str__(self) -> str:
        if math.isfinite(self.minimum) and math.isfinite(self.maximum):
            return f"from {self.minimum:g} to {self.maximum:g}"
        limits = {
            "of at least": self.minimum,
            "above": self.above,
            "at most": self.maximum,
            "below": self.below,
        }
        return " and ".join(
            f"{words} {limit:g}" for words, limit in limits.items() if math.isfinite(limit)
        )


class Built:
    """In a type hint: an object that a configuration describes by its `_target_`, whatever its
    class."""


Natural = Annotated[int, Range(0)]
PositiveInt = Annotated[int, Range(1)]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(above=0)]
Fraction = Annotated[float, Range(0, 1)]


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite number; booleans are not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


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


def expand_user(path: str | Path) -> Path:
    """The path with `~` and `~name` replaced by home folders; a ValueError if there is no such
    user, or no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{path}: this machine knows no such home folder; write out the complete path, or ./~ "
            "for a file of that name"
        ) from error


def check_value(key: str, value: object, hint: object) -> None:
    """ValueError unless the value has the type of a hint, naming the key of the part that has not.

    Integers may be written as 1e3, and a mapping with a `_target_` stands for any object. Hints
    that say nothing about plain values accept everything.
    """
    if is_built(value) or _accepts(value, hint):
        return
    kinds = [kind for kind in _alternatives(hint) if kind is not None]
    inner = [
        kind
        for kind in kinds
        if isinstance(value, (list, tuple, Mapping)) and _is_collection(value, _container(kind))
    ]
    for kind in inner[:1]:  # the right kind of collection: name the part that is wrong
        for name, part, of_part in _parts(key, value, kind):
            check_value(name, part, of_part)
    if all(get_origin(kind) is Literal for kind in kinds):
        raise ValueError(f"{key} {value!r} is not known; choose {_described(hint)}")
    if kinds == [bool] and isinstance(value, str):
        raise ValueError(f"{key}={value} is neither true nor false; set {key}=true or {key}=false")
    quoted = (
        f"; put it into quotes, as in '{key}=\"{value}\"'"
        if str in kinds and isinstance(value, Real)
        else ""
    )
    limit = f", and at most {LARGEST}" if is_number(value) and abs(value) > LARGEST else ""
    raise ValueError(f"{key} {value!r} must be {_described(hint)}{limit}{quoted}")


def check_arguments(
    target: Callable[..., object], arguments: Mapping[str, object], prefix: str = ""
) -> None:
    """`check_value` for each argument of a class or function, whose key is `prefix` and its name;
    its default is always valid."""
    hints, defaults = _signature(target)
    for name in hints.keys() & arguments.keys():
        if name not in defaults or arguments[name] is not defaults[name]:
            check_value(prefix + name, arguments[name], hints[name])


def is_built(value: object) -> bool:
    """Whether a value of a configuration describes an object that a class makes."""
    return isinstance(value, Mapping) and "_target_" in value


@functools.cache
def _signature(target: Callable[..., object]) -> tuple[dict[str, object], dict[str, object]]:
    """The type hints and defaults of the arguments; no hints where they cannot be read."""
    bases: tuple[type, ...] = target.__mro__ if inspect.isclass(target) else ()
    owner = next((base for base in bases if "__init__" in vars(base)), None)
    is_record = owner is not None and "__dataclass_fields__" in vars(
        owner
    )  # the constructor that dataclass writes has no hints of its own
    holder: Callable[..., object] = (
        target if owner is None else owner if is_record else vars(owner)["__init__"]
    )
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # of a class that is not written in Python
        return {}, {}
    try:
        hints = typing.get_type_hints(holder, include_extras=True)
    except (NameError, TypeError):  # a hint that only type checkers can read: leave it out
        holders = reversed(bases) if is_record else [inspect.unwrap(holder)]
        hints = {name: hint for one in holders for name, hint in _readable_hints(one).items()}
    found = {
        p.name: hints[p.name]
        for p in parameters
        if p.name in hints and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    for p in parameters:
        if p.kind is p.VAR_KEYWORD and p.name in hints:
            found |= {
                name: hint
                for kind in get_args(hints[p.name])
                for name, hint in _fields(kind).items()
            }
    return found, {p.name: p.default for p in parameters if p.default is not p.empty}


def _readable_hints(holder: Callable[..., object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, hint in inspect.get_annotations(holder).items():
        with contextlib.suppress(NameError, TypeError):
            found |= typing.get_type_hints(
                types.SimpleNamespace(__annotations__={name: hint}),
                vars(sys.modules[holder.__module__]),
                include_extras=True,
            )
    return found


def _fields(kind: object) -> dict[str, object]:
    return typing.get_type_hints(kind, include_extras=True) if typing.is_typeddict(kind) else {}


def _alternatives(hint: object) -> Iterator[object]:
    """The members of a union, with None for `NoneType`."""
    if get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _alternatives(member)
    else:
        yield None if hint is type(None) else hint


def _container(kind: object) -> object:
    return get_origin(kind) or (dict if typing.is_typeddict(kind) else kind)


def _accepts(value: object, hint: object) -> bool:
    """Whether a value has the type of a hint."""
    return any(_is(value, kind) for kind in _alternatives(hint))


def _is(value: object, kind: object) -> bool:
    origin = _container(kind)
    if kind is None:
        return value is None
    if origin is Annotated:
        inner, *more = get_args(kind)
        if any(isinstance(one, type) and _is(value, one) for one in more):
            return True  # a word that a command replaces
        ranges = [limit for limit in more if isinstance(limit, Range)]
        return _accepts(value, inner) and all(
            is_number(value) and limit.holds(value) for limit in ranges
        )
    if origin is Literal:
        return any(type(value) is type(known) and value == known for known in get_args(kind))
    if not isinstance(origin, type) or origin in (object, typing.Any):
        return True  # Any, a type variable: nothing is known
    if "_is_protocol" in vars(origin):
        return not isinstance(value, (str, Real, list, Mapping))  # objects, which YAML cannot write
    if origin is int:
        return is_integer(value) and abs(value) <= LARGEST
    if origin is float:
        return is_number(value) and abs(value) <= LARGEST
    if origin is str:
        return isinstance(value, str) and value.strip() != ""
    if issubclass(origin, os.PathLike):
        return isinstance(value, (str, origin)) and str(value).strip() != ""
    if issubclass(origin, collections.abc.Callable):  # type: ignore[arg-type]
        return callable(value) or is_built(value)
    return _is_collection(value, origin) and all(
        is_built(part) or _accepts(part, of_part) for _, part, of_part in _parts("", value, kind)
    )


def _is_collection(value: object, origin: object) -> bool:
    """Whether a value is one of a class; a list may stand for any kind of sequence."""
    if not isinstance(origin, type) or origin is Annotated or "_is_protocol" in vars(origin):
        return False
    if isinstance(value, (list, tuple)):
        return any(issubclass(kind, origin) for kind in (list, tuple))
    return isinstance(value, origin) and not (
        isinstance(value, (str, bytes)) and issubclass(origin, collections.abc.Iterable)
    )


def _parts(key: str, value: object, kind: object) -> Iterator[tuple[str, object, object]]:
    """Key, value and hint of each part of a collection."""
    arguments = get_args(kind)
    if isinstance(value, Mapping):
        fields = _fields(kind)
        hint = arguments[1] if len(arguments) == 2 else object
        yield from (
            (f"{key}.{name}", part, fields.get(str(name), hint)) for name, part in value.items()
        )
    elif isinstance(value, (list, tuple)) and arguments:
        fixed = get_origin(kind) is tuple and arguments[-1] is not Ellipsis
        hints = arguments if fixed and len(arguments) == len(value) else [arguments[0]] * len(value)
        yield from ((f"{key}[{i}]", part, hint) for i, (part, hint) in enumerate(zip(value, hints)))


def _described(hint: object) -> str:
    """A hint in words, as in `an integer of at least 1 or null`."""
    *first, last = dict.fromkeys(
        map(_name, sorted(_alternatives(hint), key=lambda kind: kind is None))
    )
    return f"{', '.join(first)} or {last}" if first else last


def _name(kind: object) -> str:
    origin = _container(kind)
    if origin is Annotated:
        return " ".join(
            [
                _described(get_args(kind)[0]).replace("finite ", ""),
                *(str(one) for one in get_args(kind)[1:] if isinstance(one, Range)),
            ]
        )
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    known = {
        Built: "an object with a _target_",
        None: "null",
        bool: "true or false",
        int: "an integer",
        float: "a finite number",
        str: "a string",
        dict: "a mapping",
    }
    if origin in known:
        return known[origin]
    words = {Mapping: "a mapping", os.PathLike: "a string", Sequence: "a list"}
    found = [
        word
        for base, word in words.items()
        if isinstance(origin, type) and issubclass(origin, base)
    ]
    return (
        found[0] if found else f"a {re.sub(r'.*[.]', '', str(getattr(origin, '__name__', origin)))}"
    )
