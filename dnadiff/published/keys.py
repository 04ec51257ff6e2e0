"""Reads a published `config.json`: which keys a network has, their types and limits, and the
defaults of absent keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dnadiff import checks
from dnadiff.config import Config, Json

MAX_WIDTH, MAX_LAYERS, MAX_VOCAB = (
    2**16,
    2**12,
    2**24,
)  # a file with larger values is damaged or hostile
_DESCRIPTIONS = {
    bool: "true or false", int: "an integer", float: "a number", str: "a string", dict: "an object", list: ("a list of "
        "integers")
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """What one key may hold.

    Attributes:
        kind: bool, int, float, str, dict or list, as in JSON; an integer is a number, a boolean is
            not.
        default: the value of an absent key; without one the key is required.
        minimum: smallest number.
        maximum: largest number.
        null: null is allowed and means the default.
        keyword: a string that is allowed instead of a number and means the default.
        only: the single value that these networks support.
        argument: the network's constructor argument that has this value, if there is one.
    """

    kind: type
    default: Json = ...
    minimum: float = 1
    maximum: float = MAX_WIDTH
    null: bool = False
    keyword: str | None = None
    only: Json = ...
    argument: str | None = None

    def read(self, name: str, config: Mapping[str, Json]) -> Json:
        """The value of key `name`.

        Raises:
            KeyError: if it is absent and has no default.
            ValueError: if its type or size is wrong, or these networks do not support the value.
        """
        if name not in config and self.default is ...:
            raise KeyError(name)
        value = config.get(name, self.default)
        if (
            name not in config
            or (value is None and self.null)
            or (self.keyword is not None and value == self.keyword)
        ):
            return self.default
        kinds = (int, float) if self.kind is float else self.kind
        is_number = self.kind in (int, float)
        fits = isinstance(value, kinds) and isinstance(value, bool) == (self.kind is bool)
        fits = fits and (self.kind is not list or all(type(item) is int for item in value))
        if not fits or (
            is_number and not (checks.is_number(value) and self.minimum <= value <= self.maximum)
        ):
            limits = f" from {self.minimum:g} to {self.maximum:g}" if is_number else ""
            raise ValueError(
                f"{name} is {str(value)[:40]!r}, expected {_DESCRIPTIONS[self.kind]}{limits}"
            )
        if self.only is not ... and value != self.only:
            raise ValueError(
                f"{name} is {value}, but these networks support only {name} {self.only}"
            )
        return value


def read_keys(config: Mapping[str, Json], keys: Mapping[str, Key]) -> Config:
    """The values of all `keys` in a config; other keys are ignored. Raises as `Key.read`."""
    return {name: key.read(name, config) for name, key in keys.items()}


def arguments(values: Config, keys: Mapping[str, Key]) -> Config:
    """The constructor arguments of a network among the values that `read_keys` returns."""
    return {key.argument: values[name] for name, key in keys.items() if key.argument}
