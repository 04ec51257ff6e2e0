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


class Composition:
    """The arguments of the command line of a command.

    Args:
        folder: the user's own folder of YAML files.

    Attributes:
        chosen: the arguments that choose a file of a group, as in `data=fasta`.
    """

    def __init__(
        self,
        name: str,
        options: type[Options],
        overrides: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        self.name, self.options, self.folder = name, options, folder
        self.roots = [config_dir(), *([] if folder is None else [folder])]
        given = [o for o in overrides if not o.startswith(f"{PLUGINS}=")]
        self.arguments = with_current_choices(given)
        groups = [o.lstrip("+").partition("=")[0].partition("@")[0] for o in self.arguments]
        pairs = zip(self.arguments, groups)
        self.chosen = [o for o, name in pairs if any((r / name).is_dir() for r in self.roots)]

    def config(self) -> Any:
        """The composed configuration as an OmegaConf object, with Hydra's own part.

        Raises:
            ValueError: if the arguments cannot be composed, in one line.
        """
        from hydra import compose, initialize_config_dir
        from hydra.core.config_store import ConfigStore
        from hydra.core.global_hydra import GlobalHydra
        from hydra.errors import ConfigCompositionException, HydraException
        from omegaconf.errors import OmegaConfBaseException

        ConfigStore.instance().store(name=self.name, node=self.options.node(self.name))
        search: list[str] = []
        if self.folder is not None:
            if not self.folder.is_dir():
                raise ValueError(
                    f"the folder of --config-dir, '{self.folder}' not found; check its name"
                )
            search = [f"hydra.searchpath=[{quoted(f'file://{self.folder.absolute()}')}]"]
        outer = GlobalHydra.instance().hydra  # of a program that uses Hydra itself
        GlobalHydra.instance().clear()
        arguments = [*self.arguments, *search]
        try:
            with initialize_config_dir(str(config_dir()), job_name=self.name, version_base="1.3"):
                try:
                    config = compose(self.name, arguments, return_hydra_config=True)
                except ConfigCompositionException:
                    found = compose(self.name, [*self.chosen, *search])
                    added = of_constructors(found, arguments)
                    if added == arguments:
                        raise
                    config = compose(self.name, added, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ValueError(self._explain(error)) from error
        finally:
            GlobalHydra.instance().hydra = outer
        self._refuse_contradictions(config)
        return config

    def plain(self, config: Any, resolve: bool = True, required: bool = True) -> Config:
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
            named = r"(?:Missing mandatory value|MissingMandatoryValue while .*?interpolation.*?)"
            found = re.search(r"full_key: ([\w.]+)", str(error)) or re.search(
                named + r"[: ]+([\w.]+)", str(error)
            )
            missing = found[1] if found else "a value"
            raise ValueError(
                f"{missing} is missing: give {missing}=... on the command line (python -m "
                f"dnadiff.{self.name} --help shows how)"
            ) from error
        assert isinstance(content, dict)
        return {str(key): value for key, value in content.items()}

    def choices(self) -> dict[str, list[str]]:
        """The config groups that the command reads and the names in each, as in
        `{"noise": ["cosine", ...]}`, with the groups inside them, such as `objective/masking`."""
        found: dict[str, set[str]] = {}
        for root in self.roots:
            for group in self.options.groups():
                for path in (root / group).rglob("*.yaml"):
                    name = path.parent.relative_to(root).as_posix()
                    found.setdefault(name, set()).add(path.stem)
        return {name: sorted(names) for name, names in sorted(found.items())}

    def _refuse_contradictions(self, config: Any) -> None:
        """ValueError if an experiment replaces values of another choice of the command line, which
        would have no effect."""
        from omegaconf import OmegaConf

        chosen = dict(o.partition("=")[::2] for o in self.chosen)
        experiment = chosen.pop("experiment", None)
        if experiment in (None, "null"):
            return
        named = {o.partition("=")[0] for o in self.arguments}
        own = self._file_of("experiment", str(experiment))[1].get("defaults", ())
        own = {k: v for entry in own if isinstance(entry, dict) for k, v in entry.items()}
        for name, choice in chosen.items():
            if own.get(f"override /{name}") == choice:
                continue
            package, content = self._file_of(name, choice)
            content.pop("defaults", None)
            for key, value in leaves(content, package):
                now = OmegaConf.select(config, key)
                is_open = isinstance(value, str) and ("${" in value or value == "???")
                if now != value and not (key in named or is_open):
                    raise ValueError(
                        f"{name}={choice} and experiment={experiment} disagree: {key} is {value} "
                        f"in the first and {now} in the second; add {key}={value} or {key}={now}"
                    )

    def _file_of(self, name: str, choice: str) -> tuple[str, Config]:
        """The package of a file of a group, as a prefix of its keys, and its content."""
        paths = [root / name / f"{choice}.yaml" for root in self.roots]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:  # a list of choices, or null
            return "", {}
        text = path.read_text(encoding="utf-8")
        package = re.match(r"# @package (\S+)", text)
        prefix = package[1] if package else name.replace("/", ".")
        return "" if prefix == "_global_" else f"{prefix}.", yaml.safe_load(text) or {}

    def _explain(self, error: Exception) -> str:
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
        chosen = dict(o.partition("=")[::2] for o in self.chosen)
        if (at := re.search(r"override '((\w+)/(\w+))", text)) and at[1] in chosen:
            return f"{at[2]}={chosen.get(at[2], '...')} has no {at[3]} to choose; leave {at[1]} out"
        key = re.search(r"Could not override '([^']+)'|Key '([^']+)'", text)
        if key:
            return self.unknown_key((key[1] or key[2]).partition("@")[0])
        return " ".join(text.split())

    def unknown_key(self, key: str) -> str:
        """The message for a key or group that the command does not have, given the groups that were
        chosen."""
        alone = Composition(self.name, self.options, self.chosen, self.folder)
        return unknown_in(key, alone.plain(alone.config(), resolve=False, required=False))


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


def unknown_in(key: str, config: Config) -> str:
    """The message for a key that a configuration does not have."""
    if key.startswith("data.") and not config.get("data"):
        return (
            f"{key}: the data come from the checkpoint's run; to evaluate on others replace "
            "the whole group, as in data=fasta data.path=my.fa"
        )
    known, parent = set(_all_keys(config)), key.rpartition(".")[0]
    inside = {k for k in known if parent and k.rpartition(".")[0] == parent}
    siblings = inside or {k.partition(".")[0] for k in known}
    listed = ", ".join(sorted(k.rpartition(".")[2] for k in siblings))
    place = f" in {parent}" if parent else ""
    return f"unknown key {key}{closest(key, sorted(known))}; known{place}: {listed}"


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
