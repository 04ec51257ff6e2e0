"""Configuration: the YAML files, composing them with Hydra, and building objects from the resulting
dict.

Objects are built here, so that loading a checkpoint and running a command follow the same rules.
Loading does not run code: the configuration of a checkpoint may name classes of this package (and
of packages that the user trusts) and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from dnadiff.fields import Natural, PositiveInt, check_arguments, check_value
from dnadiff.renamed import current_name, with_current_choices
from dnadiff.store.address import CACHED, is_remote

if TYPE_CHECKING:
    import argparse

    from omegaconf import DictConfig

PACKAGE = __name__.partition(".")[0]
# Of the environment: the number of processes that a launcher started together.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
Config = dict[
    str, Any
]  # a resolved configuration: nested dicts of plain values, as Hydra composes them
Json = Any  # a value that JSON can hold
Trust = Sequence[str] | None  # packages whose classes a configuration may name; None is any
Keys = Mapping[str, object]  # type hints
# Keys that mean the same in every command that has them.
SHARED: Keys = {
    "checkpoint": str,
    "output": str | None,
    "overwrite": bool,
    "resume": bool,
    "trust": list[str],
    "accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps"],
    "seed": Natural,
    "batch_size": PositiveInt,
    "num_samples": PositiveInt,
    "block_size": PositiveInt,
    "window": PositiveInt | None,
    "num_draws": PositiveInt,
    "shard": object,  # `dnadiff.jobs.shards.Shard.parse` checks it
}


def config_dir() -> Path:
    """The folder of YAML files: inside the installed package, or next to it in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "configs", here.parent / "configs"):
        if (folder / "experiment").is_dir():
            return folder
    raise FileNotFoundError(
        f"found no configuration folder in {here} or next to it; reinstall dnadiff"
    )


def compose(
    command: str, overrides: Sequence[str] = (), resolve: bool = True, folder: Path | None = None
) -> Config:
    """The configuration of a command as a plain dict, for scripts, tests and error messages.

    Args:
        resolve: whether to replace `${...}` by its value.
        folder: the user's own folder of YAML files, as in `--config-dir`.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    search = (
        [] if folder is None else [f"hydra.searchpath=[{quoted(f'file://{folder.absolute()}')}]"]
    )
    outer = (
        GlobalHydra.instance().hydra
    )  # set inside a running command; Hydra refuses to compose a second time before it is cleared
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            return as_dict(
                hydra_compose(command, overrides=[*with_current_choices(overrides), *search]),
                resolve,
            )
    finally:
        GlobalHydra.instance().hydra = outer


def call_composed(command: str, function: Callable[[DictConfig, Path, list[str]], None]) -> None:
    """Call a function with the configuration that the arguments of the process give, the run
    folder, which exists, and the overrides.

    `hydra.main` composes the configuration twice, first only to look up `hydra.mode`, and copies it
    four times, for launchers, callbacks and logs. Here that is left to arguments that are options
    or mention Hydra, which include the folders of a user. The files of the package set nothing that
    needs it.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import open_dict

    arguments = sys.argv[1:]
    if any(
        a.startswith("-") or ("hydra" in a and not a.startswith("hydra.run.dir="))
        for a in arguments
    ):
        return _call_by_hydra(command, function)
    with initialize_config_dir(str(config_dir()), job_name=command, version_base="1.3"):
        config = GlobalHydra.instance().hydra.compose_config(command, arguments, RunMode.RUN)  # type: ignore[union-attr]
    run_dir, overrides = (
        Path(os.path.abspath(config.hydra.run.dir)),
        list(config.hydra.overrides.task),
    )
    # The processes of one launch share a folder, and so does everything that is given the same one.
    shared = any(a.startswith("hydra.run.dir=") for a in arguments) or _is_launched()
    run_dir = _made(run_dir) if not shared else run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    with open_dict(config):
        del config["hydra"]
    function(config, run_dir, overrides)


def _is_launched() -> bool:
    """Whether this is one of several processes of one command; a batch script of SLURM with one
    task is not."""
    return "LOCAL_RANK" in os.environ or any(os.environ.get(name, "1") != "1" for name in _SIZES)


def _made(run_dir: Path) -> Path:
    """The folder, or one with a number if it exists: the default names of two commands of one
    second are the same."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        candidate = run_dir if number == 1 else run_dir.with_name(f"{run_dir.name}_{number}")
        with suppress(FileExistsError):
            candidate.mkdir()
            return candidate
    raise AssertionError("unreachable")


def _call_by_hydra(command: str, function: Callable[[DictConfig, Path, list[str]], None]) -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig

    def job(config: DictConfig) -> None:
        function(
            config,
            Path(HydraConfig.get().runtime.output_dir),
            list(HydraConfig.get().overrides.task),
        )

    with _unchecked_lazy_help():
        # Hydra resolves a relative folder against the caller's file, which fails outside a
        # checkout.
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=command)(job)()


@contextmanager
def _unchecked_lazy_help() -> Iterator[None]:
    """Python 3.14 refuses an argument whose help is not a string, and Hydra 1.3 adds one
    (facebookresearch/hydra#3121)."""
    import argparse

    check = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is None:  # an earlier Python
        yield
        return

    def check_strings(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        if isinstance(action.help, str):
            check(parser, action)

    argparse.ArgumentParser._check_help = check_strings  # type: ignore[attr-defined]
    try:
        yield
    finally:
        argparse.ArgumentParser._check_help = check  # type: ignore[attr-defined]


def as_dict(config: DictConfig, resolve: bool = True, throw_on_missing: bool = False) -> Config:
    """A composed configuration as a plain dict; with `throw_on_missing` a value that is still `???`
    is an error."""
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=throw_on_missing)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def quoted(text: str) -> str:
    """A text as a value on a command line of Hydra."""
    return "'" + text.replace("'", "\\'") + "'"


def choices(command: str, folder: Path | None = None) -> dict[str, list[str]]:
    """The config groups that a command reads and the names in each, as in
    `{"noise": ["cosine", ...]}`.

    These are the groups in the command's defaults list and those inside them, such as
    `objective/masking`; `folder`, the user's own folder of YAML files, is searched as well.
    """
    import yaml

    defaults = yaml.safe_load((config_dir() / f"{command}.yaml").read_text(encoding="utf-8"))[
        "defaults"
    ]
    groups = [
        key
        for entry in defaults
        if isinstance(entry, dict)
        for key in entry
        if not key.startswith("override ")
    ]
    found: dict[str, set[str]] = {}
    for root in (config_dir(), *([] if folder is None else [folder])):
        for path in (path for group in groups for path in (root / group).rglob("*.yaml")):
            found.setdefault(path.parent.relative_to(root).as_posix(), set()).add(path.stem)
    return {group: sorted(names) for group, names in sorted(found.items())}


def leaves(config: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Dotted keys and values of everything in a nested configuration that is not itself a
    mapping."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value


def imported(module: str) -> ModuleType:
    """A module that the user, or a configuration, names.

    Raises:
        ValueError: if it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{error}") from error


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
            f"{', '.join(trust)}; "
            f"if you trust its source, load it with trust=({root!r},) in Python, or trust=[{root}] "
            "on the command line"
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
            raise ValueError(f"{config['_target_']}: {error}") from error
        raise
