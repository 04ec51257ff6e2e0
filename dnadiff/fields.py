"""Types of the values that users set, and comparing values with type hints.

A constructor or function with `@checked` compares its arguments with its type hints once, so that
its body needs no checks of single values. The same hints check the keys of a configuration before
anything is built (`check_arguments`). Integers may be written as 1e3; true is not a number, and
text is never converted.
"""

import contextlib
import functools
import inspect
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

from annotated_types import Interval
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Strict, TypeAdapter
from pydantic import ValidationError as Invalid
from typing_extensions import TypedDict, is_typeddict

Json = Any  # a value that JSON can hold
JsonDict = dict[str, Json]
JsonMap = Mapping[str, Json]
# A resolved configuration: nested dicts of plain values, as Hydra composes them.
Config = dict[str, Any]

LARGEST = 2**63 - 1  # of 64 bits: what tensors and files can hold
T = TypeVar("T", bound=Callable[..., Any])
C = TypeVar("C")


class Built:
    """In a type hint: an object that a configuration describes by its `_target_`."""


def as_list(value: Json) -> list[Json]:
    """One value, or several, as a list; a string is one."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return list(value) if several else [value]


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite number; booleans are not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def is_built(value: object) -> bool:
    """Whether a value of a configuration describes an object that a class makes."""
    return isinstance(value, Mapping) and "_target_" in value


def _integer(value: object) -> object:
    return int(value) if is_number(value) and value == int(value) else value


def _number(value: Any) -> Any:  # an int stays one, so that it is written back as it was read
    if not is_number(value) or abs(value) > LARGEST:
        raise ValueError("not a number")
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("empty")
    return value


def _named(value: object) -> object:
    return str(value) if is_number(value) else value


def _path(value: object) -> object:
    if not isinstance(value, (str, os.PathLike)) or not str(value).strip():
        raise ValueError("not a path")
    return value


def _object(value: object) -> object:
    """An object, which YAML can only describe by a `_target_`."""
    if isinstance(value, (str, bytes, Real, list, tuple, Mapping)) and not is_built(value):
        raise ValueError("a plain value")
    return value


_Integer = Annotated[int, BeforeValidator(_integer), Strict(), Interval(ge=-LARGEST, le=LARGEST)]
_Path = Annotated[Any, AfterValidator(_path)]
_Object = Annotated[Any, AfterValidator(_object)]
_READ_AS: dict[Any, Any] = {
    int: _Integer,
    float: Annotated[Any, AfterValidator(_number)],
    bool: Annotated[bool, Strict()],
    str: Annotated[str, Strict(), AfterValidator(_text)],
    **dict.fromkeys((Path, os.PathLike), _Path),
    **{kind: kind for kind in (list, tuple, dict, Mapping, Sequence, object, Any, type(None))},
}
# YAML reads `task.label_column=1` as a number.
Name = Annotated[str, BeforeValidator(_named)]
Natural = Annotated[int, Interval(ge=0)]
PositiveInt = Annotated[int, Interval(ge=1)]
NonNegative = Annotated[float, Interval(ge=0)]
Positive = Annotated[float, Interval(gt=0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
InnerFraction = Annotated[float, Interval(gt=0, lt=1)]
PositiveFraction = Annotated[float, Interval(gt=0, le=1)]
Probability = Annotated[float, Interval(ge=0, lt=1)]  # such as a rate of dropout


def checked(function: T) -> T:
    """Compare the arguments of a class's constructor, or of a function, with its type hints at
    every call; integral floats become integers.

    Raises:
        ValueError: from the decorated object, for a value of another type or outside the limits of
            its hint, as in `num_steps 0 must be an integer of at least 1`.
    """
    if inspect.isclass(function):
        checking = _checking(function.__init__, function)
        function.__init__ = checking  # type: ignore[method-assign, misc]
        return function
    return typing.cast(T, _checking(function, function))


@typing.dataclass_transform(eq_default=False, field_specifiers=(field,))
def checked_dataclass(kind: type[C]) -> type[C]:
    """A dataclass with a `checked` constructor. Instances are compared by identity."""
    return checked(dataclass(eq=False)(kind))


def _checking(function: Callable[..., Any], holder: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # the message of Python
        for parameter in signature.parameters.values():
            values = given.arguments
            if parameter.kind is parameter.VAR_KEYWORD and parameter.name in values:
                values[parameter.name] |= check_arguments(holder, values[parameter.name])
        given.arguments.update(check_arguments(holder, given.arguments))
        return function(*given.args, **given.kwargs)

    return call


def check_arguments(
    target: Callable[..., object], arguments: Mapping[str, object], prefix: str = ""
) -> dict[str, Any]:
    """Compare values with the signature of the class or function that they are for; its defaults
    are always valid.

    Args:
        prefix: of the names of the arguments in messages, as in `sampler.`.

    Returns:
        The arguments that have a hint, converted to its type.

    Raises:
        ValueError: naming the key, the value and what is expected.
    """
    hints, defaults = signature_of(target)
    return {
        name: check_value(prefix + name, arguments[name], hints[name])
        for name in hints.keys() & arguments.keys()
        if name not in defaults or arguments[name] is not defaults[name]
    }


def check_value(key: str, value: object, hint: object) -> Any:
    """The value, converted to the type of a hint.

    Raises:
        ValueError: naming the key of the part that has another type, what it is and what is
            expected. A mapping with a `_target_` stands for any object.
    """
    if is_built(value):
        return value
    try:
        return _adapter(hint).validate_python(value)
    except Invalid as error:
        raise ValueError(explained(error, key, value, hint)) from None


def explained(error: Invalid, key: str, value: object, hint: object) -> str:
    """What is wrong with a value, in one line."""
    found = [
        _wrong_part(key, value, hint, problem["loc"])
        for problem in error.errors(include_url=False, include_context=False)
    ]
    return _message(*max(found, key=lambda part: part[0].count(".") + part[0].count("[")))


def _wrong_part(
    key: str, value: Any, hint: object, path: Sequence[int | str]
) -> tuple[str, object, object]:
    """Key, value and hint of the part at `path`, in which pydantic also lists members of unions."""
    for step in path:
        members = list(_alternatives(hint))
        if isinstance(value, Mapping) and step in value:
            key = f"{key}.{step}"
            value = value[step]
            place = -1
        elif isinstance(value, (list, tuple)) and isinstance(step, int) and step < len(value):
            key = f"{key}[{step}]"
            value = value[step]
            place = step
        else:
            continue
        fields = next((_fields(kind) for kind in members if is_typeddict(kind)), {})
        inner = [
            get_args(kind)
            for kind in members
            if get_args(kind) and get_origin(kind) not in (Annotated, Literal)
        ]
        parts = inner[0] if inner else (object,)
        hint = parts[-1] if place < 0 else parts[min(place, len(parts) - 1)]
        hint = fields.get(step, parts[0] if hint is Ellipsis else hint)
    return key, value, hint


def _fields(kind: Any) -> dict[Any, Any]:
    """The hints of the keys of a TypedDict."""
    return typing.get_type_hints(kind, include_extras=True)


def _message(key: str, value: object, hint: object) -> str:
    kinds = [kind for kind in _alternatives(hint) if kind is not None]
    if all(get_origin(kind) is Literal for kind in kinds):
        return f"{key} {value!r} is not known; choose {described(hint)}"
    if kinds == [bool] and isinstance(value, str):
        return f"{key}={value} is neither true nor false; set {key}=true or {key}=false"
    remedy = ""
    if str in kinds and isinstance(value, Real):
        remedy = f"; put it into quotes, as in '{key}=\"{value}\"'"
        if timedelta in kinds:  # Lightning's Timer
            remedy = f"; write days:hours:minutes:seconds, as in {key}=00:00:10:00"
    limit = f", and at most {LARGEST}" if is_number(value) and abs(value) > LARGEST else ""
    return f"{key} {value!r} must be {described(hint)}{limit}{remedy}"


def described(hint: object) -> str:
    """A hint in words, as in `an integer of at least 1 or null`."""
    kinds = sorted(_alternatives(hint), key=lambda kind: kind is None)
    *first, last = dict.fromkeys(map(_name, kinds))
    return f"{', '.join(first)} or {last}" if first else last


def _name(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin is Annotated:
        inner, *limits = get_args(kind)
        words = [described(inner).replace("finite ", ""), *map(_limits, limits)]
        return " ".join(word for word in words if word)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if is_typeddict(origin):
        return "a mapping"
    known = {
        Built: "an object with a _target_",
        None: "null",
        bool: "true or false",
        int: "an integer",
        float: "a finite number",
        str: "a string",
    }
    if origin in known:
        return known[origin]
    bases = {Mapping: "a mapping", os.PathLike: "a string", Sequence: "a list"}
    name = re.sub(r".*[.]", "", str(getattr(origin, "__name__", origin)))
    is_class = isinstance(origin, type)
    found = [text for base, text in bases.items() if is_class and issubclass(origin, base)]
    return found[0] if found else f"a {name}"


def _limits(limits: object) -> str:
    """An interval in words; metadata of other libraries are none."""
    low = getattr(limits, "ge", None)
    high = getattr(limits, "le", None)
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    above = getattr(limits, "gt", None)
    below = getattr(limits, "lt", None)
    words = {"of at least": low, "above": above, "at most": high, "below": below}
    return " and ".join(f"{word} {x:g}" for word, x in words.items() if x is not None)


def _alternatives(hint: object) -> Iterator[object]:
    """The members of a union, with None for `NoneType`."""
    if get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _alternatives(member)
    else:
        yield None if hint is type(None) else hint


def read_as(hint: Any) -> Any:
    """A hint as pydantic reads it: what YAML can write is checked strictly, objects of any class
    pass."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return Annotated[read_as(inner[0]), *(one for one in inner[1:] if one is not inner[0])]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(read_as, inner))]  # noqa: UP007 - built from a list
    if origin in (Literal, None) or not inner:
        return hint if origin is Literal or isinstance(hint, TypeVar) else _read_class(hint)
    if isinstance(origin, type) and issubclass(origin, (Mapping, Sequence, tuple)):
        generic: Any = origin
        return generic[tuple(one if one is Ellipsis else read_as(one) for one in inner)]
    return _read_class(origin)


def _read_class(kind: Any) -> Any:
    if is_typeddict(kind):  # a key may be absent, and others may be there
        fields = {name: read_as(hint) for name, hint in _fields(kind).items()}
        read = TypedDict(kind.__name__, fields, total=False)  # type: ignore[operator, misc]
        read.__pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[attr-defined]
        return read
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    if isinstance(kind, TypeVar) or kind in _READ_AS:
        return _READ_AS.get(kind, Any)
    return _Object if isinstance(kind, type) else Any


@functools.lru_cache(maxsize=None, typed=True)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(read_as(hint))


@functools.cache
def signature_of(target: Callable[..., object]) -> tuple[dict[str, object], dict[str, object]]:
    """The type hints and defaults of the arguments; no hints where they cannot be read."""
    bases = target.__mro__ if inspect.isclass(target) else ()
    owner = next((base for base in bases if "__init__" in vars(base)), None)
    is_record = owner is not None and "__dataclass_fields__" in vars(owner)
    # The constructor that dataclass writes has no hints of its own.
    holder = target if owner is None else owner if is_record else vars(owner)["__init__"]
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # of a class that is not written in Python
        return {}, {}
    hints: dict[str, Any] = {}
    for one in reversed(bases) if is_record else [inspect.unwrap(holder)]:
        for name, hint in inspect.get_annotations(one).items():
            # A hint that only type checkers can read is left out.
            with contextlib.suppress(NameError, TypeError):
                alone = types.SimpleNamespace(__annotations__={name: hint})
                names = vars(sys.modules[one.__module__])
                read = typing.get_type_hints(alone, names, include_extras=True)[name]
                hints[name] = read.type if isinstance(read, InitVar) else read
    found: dict[str, object] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found |= {parameter.name: hints[parameter.name]} if parameter.name in hints else {}
        elif parameter.kind is parameter.VAR_KEYWORD and parameter.name in hints:
            # Of `Unpack[Options]`, or of a class whose arguments they are: `Annotated[Any, Class]`.
            for kind in get_args(hints[parameter.name]):
                found = (_fields(kind) if is_typeddict(kind) else signature_of(kind)[0]) | found
    return found, {p.name: p.default for p in parameters if p.default is not p.empty}


def is_integer(value: object, minimum: float = -math.inf) -> TypeGuard[float]:
    """Whether the value is an integer of at least `minimum`, in any notation: 1e1 is one."""
    return is_number(value) and value == int(value) and value >= minimum
