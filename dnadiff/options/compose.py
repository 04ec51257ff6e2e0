"""Composing the configuration of a command with Hydra, and its errors in one line.

This is the only module that knows Hydra.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from dnadiff.fields import signature_of
from dnadiff.options.base import Config, Options
from dnadiff.renamed import RENAMED_CHOICES, with_current_choices
from dnadiff.store.objects import config_dir, imported, leaves, locate, quoted

PLUGINS = "plugins"  # a key of every command, and the group of entry points


def import_plugins(overrides: Sequence[str]) -> None:
    """Import the modules that `plugins=[...]` names, and those that installed packages declare as
    entry points `dnadiff.plugins`.

    Raises:
        ValueError: if there is no such module.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        for name in yaml.safe_load(value) if key == PLUGINS else ():
            imported(name)
    for entry in entry_points(group=f"dnadiff.{PLUGINS}"):
        entry.load()


def override(key: str, value: object) -> str:
    """A keyword argument of Python as an argument of a command line."""
    return f"{key}={_written(value)}"


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        inside = ",".join(f"{quoted(str(k))}:{_written(v)}" for k, v in value.items())
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_written, value))}]"
    plain = value is None or isinstance(value, (bool, int, float))
    return json.dumps(value) if plain else quoted(str(value))


def hydra_config(
    name: str, options: type[Options], overrides: Sequence[str] = (), folder: Path | None = None
) -> Any:
    """The composed configuration of a command as an OmegaConf object, with Hydra's own part.

    Args:
        folder: the user's own folder of YAML files.

    Raises:
        ValueError: if the arguments cannot be composed, in one line.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import ConfigCompositionException, HydraException
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(name=name, node=options.node(name))
    arguments = [o for o in overrides if not o.startswith(f"{PLUGINS}=")]
    search: list[str] = []
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"the folder of --config-dir, '{folder}' not found; check its name")
        search = [f"hydra.searchpath=[{quoted(f'file://{folder.absolute()}')}]"]
    outer = GlobalHydra.instance().hydra  # of a program that uses Hydra itself
    GlobalHydra.instance().clear()
    arguments = with_current_choices(arguments)
    try:
        with initialize_config_dir(str(config_dir()), job_name=name, version_base="1.3"):
            try:
                config = hydra_compose(name, [*arguments, *search], return_hydra_config=True)
            except ConfigCompositionException:
                chosen = [*group_choices(arguments, folder), *search]
                added = of_constructors(hydra_compose(name, chosen), arguments)
                if added == arguments:
                    raise
                config = hydra_compose(name, [*added, *search], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error, name, options, overrides, folder)) from error
    finally:
        GlobalHydra.instance().hydra = outer
    refuse_contradictions(config, arguments, folder)
    return config


def of_constructors(config: Any, overrides: Sequence[str]) -> list[str]:
    """The overrides, with a plus before keys that the YAML file of a class does not name and its
    constructor takes."""
    from omegaconf import OmegaConf

    found = []
    for override in overrides:
        key = override.partition("=")[0]
        parent, _, name = key.rpartition(".")
        target = OmegaConf.select(config, f"{parent}._target_") if parent else None
        missing = target is not None and OmegaConf.select(config, key) is None
        takes = missing and name in signature_of(locate(target, None))[0]
        found.append(f"++{override}" if takes else override)
    return found


def plain(name: str, config: Any, resolve: bool = True, required: bool = True) -> Config:
    """The keys of a composed command, without Hydra's part.

    Args:
        resolve: replace `${...}` by values.

    Raises:
        ValueError: if `required` and a value is missing.
    """
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

    with open_dict(config):
        del config["hydra"]
    try:
        content = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=required)
    except (MissingMandatoryValue, InterpolationToMissingValueError) as error:
        raise ValueError(_explain_missing(str(error), name)) from error
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def choices(options: type[Options], folder: Path | None = None) -> dict[str, list[str]]:
    """The config groups that a command reads and the names in each, as in
    `{"noise": ["cosine", ...]}`, with the groups inside them, such as `objective/masking`."""
    found: dict[str, set[str]] = {}
    for root in _roots(folder):
        for path in (path for name in options.groups() for path in (root / name).rglob("*.yaml")):
            found.setdefault(path.parent.relative_to(root).as_posix(), set()).add(path.stem)
    return {name: sorted(names) for name, names in sorted(found.items())}


def _roots(folder: Path | None) -> list[Path]:
    return [config_dir()] if folder is None else [config_dir(), folder]


def group_choices(overrides: Sequence[str], folder: Path | None = None) -> list[str]:
    """The arguments that choose a file of a group, as in `data=fasta`."""
    groups = [(o, o.lstrip("+").partition("=")[0].partition("@")[0]) for o in overrides]
    return [o for o, name in groups if any((root / name).is_dir() for root in _roots(folder))]


def refuse_contradictions(config: Any, overrides: Sequence[str], folder: Path | None) -> None:
    """ValueError if an experiment replaces values of another choice of the command line, which
    would have no effect."""
    from omegaconf import OmegaConf

    chosen = dict(o.partition("=")[::2] for o in group_choices(overrides, folder))
    named, experiment = {o.partition("=")[0] for o in overrides}, chosen.pop("experiment", None)
    if experiment in (None, "null"):
        return
    own = _file_of("experiment", str(experiment), folder)[1].get("defaults", ())
    own = {k: v for entry in own if isinstance(entry, dict) for k, v in entry.items()}
    for name, choice in chosen.items():
        if own.get(f"override /{name}") == choice:
            continue
        package, content = _file_of(name, choice, folder)
        for key, value in leaves({k: v for k, v in content.items() if k != "defaults"}, package):
            now = OmegaConf.select(config, key)
            given = key in named or (isinstance(value, str) and ("${" in value or value == "???"))
            if now != value and not given:
                raise ValueError(
                    f"{name}={choice} and experiment={experiment} disagree: {key} is {value} in "
                    f"the first and {now} in the second; add {key}={value} or {key}={now}"
                )


def _file_of(name: str, choice: str, folder: Path | None) -> tuple[str, Config]:
    """The package of a file of a group, as a prefix of its keys, and its content."""
    paths = [root / name / f"{choice}.yaml" for root in _roots(folder)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:  # a list of choices, or null
        return "", {}
    text = path.read_text(encoding="utf-8")
    package = re.match(r"# @package (\S+)", text)
    prefix = package[1] if package else name.replace("/", ".")
    content = yaml.safe_load(text)
    return "" if prefix == "_global_" else f"{prefix}.", content if content else {}


def explain(
    error: Exception,
    name: str,
    options: type[Options],
    overrides: Sequence[str],
    folder: Path | None = None,
) -> str:
    """Why arguments could not be composed, in one line."""
    from hydra.errors import OverrideParseException

    text = str(error)
    if choice := re.search(
        r"Could not find '([^']+)'.*Available options in '([^']+)':\s*(.*)", text, re.DOTALL
    ):
        listed = choice[3].partition("\n\n")[0].partition("\nConfig search path")[0]
        group, known = choice[2], re.findall(r"[\w.\-]+", listed)
        wanted = choice[1].removeprefix(group + "/")
        new = RENAMED_CHOICES.get(f"{group}={wanted}")
        hint = f" any more; it is now {new}" if new else closest(wanted, known)
        return f"{group}={wanted} does not exist{hint}; known: {', '.join(sorted(known))}"
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read the command line: {' '.join(text.split())[:160]} ; quote values with "
            "special characters, as in 'path=\"a b.fa\"'"
        )
    if merged := re.match(r"Error merging override (.*)", text):
        return (
            f"{merged[1]}: this key takes a value of another kind (a list, a mapping or a "
            "single value)"
        )
    chosen = dict(o.partition("=")[::2] for o in group_choices(overrides, folder))
    if (at := re.search(r"override '((\w+)/(\w+))", text)) and at[1] in chosen:
        return f"{at[2]}={chosen.get(at[2], '...')} has no {at[3]} to choose; leave {at[1]} out"
    if key := re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)'", text):
        return unknown_key(key[1].partition("@")[0], name, options, overrides, folder)
    return " ".join(text.split())


def _explain_missing(text: str, name: str) -> str:
    named = r"(?:Missing mandatory value|MissingMandatoryValue while resolving.*?interpolation.*?)"
    found = re.search(r"full_key: ([\w.]+)", text) or re.search(named + r"[: ]+([\w.]+)", text)
    missing = found[1] if found else "a value"
    return (
        f"{missing} is missing: give {missing}=... on the command line (python -m "
        f"dnadiff.{name} --help shows how)"
    )


def unknown_key(
    key: str,
    name: str,
    options: type[Options],
    overrides: Sequence[str] = (),
    folder: Path | None = None,
) -> str:
    """The message for a key or group that the command does not have, given the groups that were
    chosen."""
    composed = hydra_config(name, options, group_choices(overrides, folder), folder)
    return unknown_in(key, plain(name, composed, resolve=False, required=False))


def unknown_in(key: str, config: Config) -> str:
    """The message for a key that a configuration does not have."""
    if key.startswith("data.") and not config.get("data"):
        return (
            f"{key}: the data come from the checkpoint's run; to evaluate on others replace "
            "the whole group, as in data=fasta data.path=my.fa"
        )
    known, parent = set(_all_keys(config)), key.rpartition(".")[0]
    siblings = {k for k in known if parent and k.rpartition(".")[0] == parent} or {
        k.partition(".")[0] for k in known
    }
    listed = ", ".join(sorted(k.rpartition(".")[2] for k in siblings))
    inside = f" in {parent}" if parent else ""
    return f"unknown key {key}{closest(key, sorted(known))}; known{inside}: {listed}"


def _all_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys, those of mappings included, empty or not."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _all_keys(value, f"{prefix}{key}.")


def closest(word: str, known: Sequence[str]) -> str:
    """A question for the known word that is most like an unknown one; empty if none is."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return "".join(f"; did you mean {match}?" for match in found)
