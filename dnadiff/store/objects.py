"""Configuration: the folder of YAML files, and building objects from a composed configuration.

Objects are built here, so that loading a checkpoint and running a command follow the same rules.
Loading does not run code: the configuration of a checkpoint may name classes of this package (and
of packages that the user trusts) and nothing else.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dnadiff.fields import Config, Json, check_arguments, check_value
from dnadiff.renamed import current_name
from dnadiff.store.address import CACHED, is_remote

PACKAGE = __name__.partition(".")[0]
Trust = Sequence[str] | None  # packages whose classes a configuration may name; None is any


def config_dir() -> Path:
    """The folder of YAML files: inside the installed package, or next to it in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "configs", here.parent / "configs"):
        if (folder / "experiment").is_dir():
            return folder
    raise FileNotFoundError(
        f"found no configuration folder in {here} or next to it; reinstall dnadiff"
    )


def leaves(config: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Dotted keys and values of everything in a nested configuration that is not itself a
    mapping."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value


def without_key(settings: Json, key: str) -> Json:
    """Settings, and those inside them, without a key."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: without_key(value, key) for name, value in settings.items() if name != key}


def imported(module: str) -> ModuleType:
    """A module that the user, or a configuration, names.

    Raises:
        ValueError: if it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{error}") from error


def optional_package(module: str, user: str, extra: str, otherwise: str = "") -> ModuleType:
    """A module of a package of one of the extras.

    Args:
        user: what needs it, for the message.
        otherwise: what to do without it, in the message.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{user} needs the package {module.partition('.')[0]}: pip install -e '.[{extra}]' in "
            f"the checkout{otherwise}"
        ) from error


def locate(target: Json, trust: Trust) -> Any:
    """The class or function that a `_target_` names.

    A configuration that comes with a checkpoint (`trust` not None) may name only classes, and of
    this package only those with `buildable = True`: constructing one has no effect outside itself.
    A function could do anything with the arguments given.

    Args:
        trust: packages whose classes may be built; None is any (the user's own command line).

    Raises:
        ValueError: if it does not exist or may not be built.
    """
    if not isinstance(target, str) or "." not in target:
        raise ValueError(f"_target_ {target!r} is not a dotted path to a class")
    target = current_name(target)
    root = target.partition(".")[0]
    if trust is not None and root not in trust:
        raise ValueError(
            f"refused to build {target!r}: this configuration may only name classes of "
            f"{', '.join(trust)}; if you trust its source, load it with trust=({root!r},) in "
            f"Python, or trust=[{root}] on the command line"
        )
    module, _, name = target.rpartition(".")
    try:
        found = getattr(imported(module), name)
    except (AttributeError, ValueError) as error:
        raise ValueError(
            f"_target_ {target!r} does not exist ({error}); check its spelling"
        ) from error
    if trust is not None and not _may_build(found, trust):
        raise ValueError(f"refused to build {target!r}: not a class that a configuration may build")
    if not callable(found):
        raise ValueError(f"_target_ {target!r} is not a class or a function")
    return found


def _may_build(found: Any, trust: Sequence[str]) -> bool:
    if not inspect.isclass(found):
        return False
    # A module of this package may have imported a class from elsewhere: what counts is where the
    # class was defined.
    home = found.__module__.partition(".")[0]
    return home in trust and (home != PACKAGE or getattr(found, "buildable", False) is True)


def check(config: Json, trust: Trust = (PACKAGE,), key: str = "") -> None:
    """Look up every `_target_` in a nested configuration without calling any, and compare the
    values with its type hints.

    Nothing runs unless all are allowed. `key` is the place of the configuration in that of a
    command, for messages.

    Raises:
        ValueError: for a `_target_` that may not be built, or a value of the wrong type, naming its
            key.
    """
    if isinstance(config, Mapping):
        if "_target_" in config:
            check_arguments(locate(config["_target_"], trust), config, key)
            check_value(f"{key}_partial_", config.get("_partial_", False), bool)
        for name, value in config.items():
            check(value, trust, f"{key}{name}.")
    elif isinstance(config, (list, tuple)):
        for value in config:
            check(value, trust, key)


def build(config: Config, *args: Any, trust: Trust = (PACKAGE,), **extra: Any) -> Any:
    """The object that a configuration describes.

    `_target_` names the callable. `_partial_: true` returns a `functools.partial` for arguments
    known later. Nested configurations are built first. `args` and `extra` go to the outermost call.

    Raises:
        ValueError: for a `_target_` that is missing, not trusted, or given arguments it does not
            take.
    """
    check(config, trust)
    return _build(config, args, extra, trust)


def _build(config: Json, args: tuple[Any, ...], extra: Config, trust: Trust) -> Any:
    if isinstance(config, (list, tuple)):
        return [_build(value, (), {}, trust) for value in config]
    if not isinstance(config, Mapping):
        return (
            CACHED + config
            if isinstance(config, str) and trust is not None and is_remote(config)
            else config
        )
    values = {
        key: _build(value, (), {}, trust)
        for key, value in config.items()
        if key not in ("_target_", "_partial_")
    }
    if "_target_" not in config:
        return values
    target = locate(config["_target_"], trust)
    if config.get("_partial_", False):
        return functools.partial(target, *args, **values, **extra)
    try:
        return target(*args, **(values | extra))
    except Exception as error:
        of_package = current_name(config["_target_"]).startswith(f"{PACKAGE}.")
        if not of_package or (isinstance(error, TypeError) and "argument" in str(error)):
            reason = str(error).rpartition("__init__() ")[2]
            reason = re.sub(r"missing \d+ required [\w-]+ arguments?:", "it lacks", reason)
            raise ValueError(f"{config['_target_']}: {reason}") from error
        raise
