"""Configuration: where the yaml files are, how they are composed, and how a plain dict becomes an object.

Hydra composes and is imported late; objects are built here, so that loading a checkpoint and running a command
line obey the same rules. Loading is not running: a config that comes with a checkpoint may name classes of this
package (and of packages that the user trusts) and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGE = __name__.partition(".")[0]
Config = dict[str, Any]  # a resolved configuration: nested dicts of plain values, as Hydra composes them
Json = Any  # a value that JSON can hold


# Where classes that a configuration may name were before: runs and checkpoints of earlier versions keep loading. Keys are modules or classes.
MOVED = {
    "dnadiff.callbacks": "dnadiff.training.callbacks",
    "dnadiff.data.blocks": "dnadiff.data.genome.blocks",
    "dnadiff.data.datamodule": "dnadiff.data.genome.datamodule",
    "dnadiff.data.datamodule.TextDataModule": "dnadiff.data.text.datamodule.TextDataModule",
    "dnadiff.data.hub": "dnadiff.data.text.hub",
    "dnadiff.data.pretrained": "dnadiff.data.text.pretrained",
    "dnadiff.data.short": "dnadiff.data.genome.short_sequences",
    "dnadiff.data.subword": "dnadiff.data.text.subword",
    "dnadiff.data.text": "dnadiff.data.text.datamodule",
    "dnadiff.objective.masking.Coins": "dnadiff.objective.masking.Bernoulli",
    "dnadiff.objective.masking.Steps": "dnadiff.objective.masking.DiscreteTime",
    "dnadiff.objective.masking.WeighedSteps": "dnadiff.objective.masking.ImportanceDiscreteTime",
    "dnadiff.optim": "dnadiff.training.optim",
    "dnadiff.sampler.ar.AR": "dnadiff.sampler.ar.Autoregressive",
    "dnadiff.sampler.drawn_token.DrawnToken": "dnadiff.sampler.low_confidence.LowConfidence",
}
# Choices of the command line that have a new name; the old ones are accepted with a warning until version 0.3.
RENAMED_CHOICES = {
    "objective/masking=coins": "objective/masking=bernoulli",
    "objective/masking=steps": "objective/masking=discrete_time",
    "sampler=drawn_token": "sampler=low_confidence",
}


def current_name(target: str) -> str:
    """The dotted path that a class has now, from one that it had in an earlier version."""
    module, _, name = target.rpartition(".")
    return MOVED.get(target) or f"{MOVED.get(module, module)}.{name}"


def with_current_choices(overrides: Sequence[str]) -> list[str]:
    """The overrides with choices that were renamed under their new names, each with a warning."""
    current = []
    for override in overrides:
        bare = override.lstrip("+")
        if new := RENAMED_CHOICES.get(bare):
            logging.getLogger("dnadiff").warning(f"{bare} is now called {new}; the old name will stop working in version 0.3")
            override = override.removesuffix(bare) + new
        current.append(override)
    return current


def with_current_names(config: Any) -> Any:
    """A nested config in which every `_target_` has the name that it has now."""
    if isinstance(config, Mapping):
        return {
            key: current_name(value) if key == "_target_" and isinstance(value, str) else with_current_names(value)
            for key, value in config.items()
        }
    if isinstance(config, (list, tuple)):
        return [with_current_names(value) for value in config]
    return config


def config_dir() -> Path:
    """The folder of yaml files: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "configs", here.parent / "configs"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"the configuration folder is missing beside {here}; reinstall dnadiff")


def compose(command: str, overrides: Sequence[str] = (), resolve: bool = True) -> dict[str, Any]:
    """The configuration of a command as a plain dict, for scripts and tests.

    Args:
        command: `train`, `evaluate`, `sample` or `finetune`.
        overrides: as on the command line, `["backbone=dit", "seed=3"]`.
        resolve: replace `${...}` by what it refers to.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        config = hydra_compose(command, overrides=with_current_choices(overrides))
        return OmegaConf.to_container(config, resolve=resolve)


def locate(target: Any, trust: Sequence[str] | None) -> Any:
    """The class or function that a `_target_` names.

    A configuration that comes with a checkpoint (`trust` not None) may name classes only, and of this package only those that say
    `buildable = True`: making one has no effect outside itself. Functions could do anything with the arguments given.

    Args:
        target: a dotted path.
        trust: packages whose classes may be built; None is anything (a user's own command line).

    Raises:
        ValueError: if it does not exist or may not be built.
    """
    if not isinstance(target, str) or "." not in target:
        raise ValueError(f"_target_ {target!r} is not a dotted path to a class")
    target = current_name(target)
    root = target.partition(".")[0]
    if trust is not None and root not in trust:
        raise ValueError(
            f"refused to build {target!r}: this configuration may only name classes of {', '.join(trust)}; "
            f"if you trust its source, load it with trust=({root!r},) in Python, or trust=[{root}] on the command line"
        )
    module_name, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"_target_ {target!r} does not exist ({error}); check its spelling") from error
    if trust is not None:
        # A module of ours may have imported something that is not ours: what counts is where it was defined.
        home = str(getattr(found, "__module__", "")).partition(".")[0]
        if not inspect.isclass(found) or home not in trust or (home == PACKAGE and getattr(found, "buildable", False) is not True):
            raise ValueError(f"refused to build {target!r}: not a class that a configuration may build")
    if not callable(found):
        raise ValueError(f"_target_ {target!r} is not a class or a function")
    return found


def check(config: Any, trust: Sequence[str] | None = (PACKAGE,)) -> None:
    """Look up every `_target_` in a nested config and call none, so that nothing runs before all are allowed."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            locate(config["_target_"], trust)
        for value in config.values():
            check(value, trust)
    elif isinstance(config, (list, tuple)):
        for value in config:
            check(value, trust)


def build(config: Mapping[str, Any], *args: Any, trust: Sequence[str] | None = (PACKAGE,), **extra: Any) -> Any:
    """The object that a config describes.

    `_target_` names the callable, `_partial_: true` leaves it waiting for arguments known later; nested configs are
    built first. `args` and `extra` go to the outermost call.

    Args:
        config: a plain dict (resolved).
        *args: positional arguments.
        trust: packages that may be called; None allows all.
        **extra: keyword arguments; they win over the config's.

    Raises:
        ValueError: for a `_target_` that is missing, not trusted, or given arguments it does not take.
    """
    check(config, trust)
    return _build(config, args, extra, trust)


def _build(config: Any, args: tuple, extra: dict[str, Any], trust: Sequence[str] | None) -> Any:
    if isinstance(config, (list, tuple)):
        return [_build(value, (), {}, trust) for value in config]
    if not isinstance(config, Mapping):
        return config
    values = {key: _build(value, (), {}, trust) for key, value in config.items() if key not in ("_target_", "_partial_")}
    if "_target_" not in config:
        return values
    target = locate(config["_target_"], trust)
    if config.get("_partial_", False):
        return functools.partial(target, *args, **values, **extra)
    try:
        return target(*args, **(values | extra))
    except TypeError as error:
        if "argument" in str(error):
            raise ValueError(f"{config['_target_']}: {error}") from error
        raise
