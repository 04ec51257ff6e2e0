"""Reads JSON and YAML that is loaded back. Whatever is wrong with a file, the error is a ValueError
that names it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnadiff.config import Json

_REMEDY = "restore it, or remove it and run the command again that wrote it"


def parse_json(content: str | bytes, source: str | Path) -> Json:
    """The value of a JSON text; `source` is what errors call it.

    Raises:
        ValueError: if it is not UTF-8, not JSON, or nested too deeply.
    """
    try:
        return json.loads(content.decode("utf-8") if isinstance(content, bytes) else content)
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text ({error.reason})") from error
    except RecursionError as error:
        raise ValueError(f"{source} is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{source} is not JSON ({error})") from error


def json_object(
    content: str | bytes, source: str | Path, required: Sequence[str] = ()
) -> dict[str, Json]:
    """As `parse_json`, for an object with at least these keys; a ValueError names what is
    missing."""
    return _mapping(parse_json(content, source), source, required)


def read_json(path: Path, required: Sequence[str] = (), remedy: str = _REMEDY) -> dict[str, Json]:
    """The object in a JSON file, with at least these keys.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, with the remedy.
    """
    content = path.read_bytes()
    try:
        return json_object(content, path, required)
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from error


def read_yaml(path: Path, required: Sequence[str] = (), remedy: str = _REMEDY) -> dict[str, Json]:
    """The mapping in a YAML file, with at least these keys; errors as `read_json`."""
    import yaml

    content = path.read_bytes()
    try:
        return _mapping(yaml.safe_load(content.decode("utf-8")), path, required)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}); {remedy}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply; {remedy}") from error
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # tags on wrong values raise any of these
        why = (
            str(error)
            if str(error).startswith(str(path))
            else f"{path} is not YAML ({' '.join(str(error).split())})"
        )
        raise ValueError(f"{why}; {remedy}") from error


def _mapping(found: Json, source: str | Path, required: Sequence[str]) -> dict[str, Json]:
    if not isinstance(found, dict):
        raise ValueError(f"{source} holds a {type(found).__name__}; expected keys with values")
    if missing := [key for key in required if key not in found]:
        raise ValueError(f"{source} lacks {', '.join(missing)}")
    return found
