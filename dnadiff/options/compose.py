"""Composing the configuration of a command with Hydra, and its errors in one line.

This is the only module that knows Hydra.
"""

import difflib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml

from dnadiff.fields import Config, signature_of
from dnadiff.options.base import MISSING, Options
from dnadiff.progress import closest, quoted
from dnadiff.renamed import RENAMED_CHOICES, with_current_choices
from dnadiff.store.address import shortened, shown
from dnadiff.store.objects import config_dir, imported, leaves, locate

PLUGINS = "plugins"  # a key of every command, and the group of entry points
# What MDLM, LLaDA and language models call the keys of a sampler.
_SYNONYMS = {"steps": "num_groups", "num_steps": "num_groups", "top_p": "nucleus"}


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


def yaml_file(path: Path) -> Config:
    """The content of a YAML file of a group.

    Raises:
        ValueError: if it has none that can be read, or takes long to read.
    """
    from dnadiff.store.disk import read_yaml  # NumPy, which `--help` does without

    content = read_yaml(path, remedy="correct it")
    text = path.read_text(encoding="utf-8-sig")
    if found := re.match(r"(?:\s*#.*\n)*\s*#[ \t]*@(?!\S+[ \t]+\S+[ \t]*(?:\n|$))(.*)", text):
        raise ValueError(f"{path}: the header is @{found[1]}; expected '# @package NAME'")
    return content


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
        chosen: the arguments that choose a file of a group, as in `data=fasta`, each with the name
            of the group and that of the file.
    """

    def __init__(
        self,
        name: str,
        options: type[Options],
        overrides: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.options = options
        self.folder = folder
        self.roots = [config_dir(), *([] if folder is None else [folder])]
        given = shortened([o for o in overrides if not o.startswith(f"{PLUGINS}=")])
        check_form(given)
        self.arguments = with_current_choices(given)
        self.chosen: dict[str, tuple[str, str]] = {}
        for argument in self.arguments:
            name, _, choice = argument.lstrip("+").partition("=")
            name = name.partition("@")[0]
            is_choice = not choice.startswith("{")
            if is_choice and any((root / name).is_dir() for root in self.roots):
                self.chosen[argument] = name, choice.strip("'\"")

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
                    f"the folder of --config-dir, '{shown(self.folder)}' not found; check its name"
                )
            search = [f"hydra.searchpath=[{quoted(f'file://{self.folder.absolute()}')}]"]
            # Before Hydra reads them, which takes long for some and is not always named.
            said = " ".join(self.arguments)
            unread = set(self.folder.rglob("*.yaml"))
            while read := {p for p in unread if re.search(rf"\b{re.escape(p.stem)}\b", said)}:
                said = " ".join(str(yaml_file(path).get("defaults")) for path in read)
                unread -= read
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
        except (HydraException, OmegaConfBaseException, RecursionError, TypeError) as error:
            raise ValueError(self._explain(error)) from error
        finally:
            GlobalHydra.instance().hydra = outer
        self._refuse_contradictions(config)
        self._refuse_no_class(config)
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
        return {str(key): shortened(value) for key, value in content.items()}

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

        chosen = dict(self.chosen.values())
        experiment = chosen.pop("experiment", "null")
        if experiment == "null":
            return
        named = tuple(
            o.lstrip("+").partition("=")[0] for o in self.arguments if o not in self.chosen
        )
        own = self._file_of("experiment", experiment)[1].get("defaults", ())
        own = {k: v for entry in own if isinstance(entry, dict) for k, v in entry.items()}
        now = dict(leaves(OmegaConf.to_container(config)))  # type: ignore[arg-type]
        for name, choice in chosen.items():
            if own.get(f"override /{name}") == choice:
                continue
            package, content = self._file_of(name, choice)
            content.pop("defaults", None)
            different = {
                key: value
                for key, value in leaves(content, package)
                if now.get(key) != value
                and not f"{key}.".startswith(tuple(f"{each}." for each in named))
                and not (isinstance(value, str) and ("${" in value or value == MISSING))
            }
            if different:
                said = (
                    f"{key} is {_written(value)} in the first and {_written(now.get(key))} in the "
                    "second"
                    for key, value in different.items()
                )
                kept = shlex.join(override(*pair) for pair in different.items())
                raise ValueError(
                    f"{name}={choice} and experiment={experiment} disagree: {', '.join(said)}; "
                    f"leave {name} out, or add {kept}"
                )

    def _refuse_no_class(self, config: Any) -> None:
        """ValueError if a file of the user's folder leaves a group without a class, in which the
        files of the package name one."""
        from omegaconf import OmegaConf

        for name, choice in config.hydra.runtime.choices.items() if self.folder else ():
            own = self.folder / name / f"{choice}.yaml"
            target = f"{name.replace('/', '.')}._target_"
            if own.is_file() and OmegaConf.select(config, target) is None:
                ours = (path.read_text() for path in (config_dir() / name).glob("*.yaml"))
                if any("_target_:" in text for text in ours):
                    raise ValueError(
                        f"{own} has no _target_ and no defaults with one; add the class that it "
                        "describes"
                    )

    def _file_of(self, name: str, choice: str) -> tuple[str, Config]:
        """The package of a file of a group, as a prefix of its keys, and its content."""
        paths = [root / name / f"{choice}.yaml" for root in self.roots]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:  # a list of choices, or null
            return "", {}
        content = yaml_file(path)
        package = re.match(r"# @package (\S+)", path.read_text(encoding="utf-8"))
        prefix = package[1] if package else name.replace("/", ".")
        return "" if prefix == "_global_" else f"{prefix}.", content

    def _explain(self, error: Exception) -> str:
        """Why arguments could not be composed, in one line."""
        from hydra.errors import OverrideParseException

        text = str(error)
        if isinstance(error, (RecursionError, TypeError)):
            return f"the defaults of a YAML file are no list, or the file is among them ({text})"
        if choice := re.search(
            r"Could not find '([^']+)'.*Available options in '([^']+)':\s*(.*)", text, re.DOTALL
        ):
            listed = choice[3].partition("\n\n")[0].partition("\nConfig search path")[0]
            group = choice[2]
            known = re.findall(r"[\w.\-]+", listed)
            wanted = choice[1].removeprefix(group + "/")
            new = RENAMED_CHOICES.get(f"{group}={wanted}")
            hint = f" any more; it is now {new}" if new else closest(wanted, known)
            return f"{group}={wanted} does not exist{hint}; known: {', '.join(sorted(known))}"
        if isinstance(error, OverrideParseException):
            return (
                f"cannot read the command line: {shorten(text, 200)} ; quote values with "
                "special characters, as in 'path=\"a b.fa\"'"
            )
        if merged := re.match(r"Error merging override (.*)", text):
            return (
                f"{merged[1]}: this key takes a value of another kind (a list, a mapping or a "
                "single value)"
            )
        chosen = dict(self.chosen.values())
        if (at := re.search(r"override '((\w+)/(\w+))", text)) and {at[1], at[2]} & {*chosen}:
            where = at[1] if at[1] in chosen else f"{at[2]}, or experiment,"
            return f"{at[2]}={chosen.get(at[2], '...')} has no {at[3]} to choose; leave {where} out"
        key = re.search(r"Could not override '([^']+)'|Key '([^']+)'", text)
        if key:
            return self.unknown_key((key[1] or key[2]).partition("@")[0])
        return " ".join(text.split())

    def unknown_key(self, key: str) -> str:
        """The message for a key or group that the command does not have, given the groups that were
        chosen."""
        others = [argument for argument, (name, _) in self.chosen.items() if name != key]
        alone = Composition(self.name, self.options, others, self.folder)
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


def check_form(overrides: Sequence[str]) -> None:
    """Raise ValueError for an argument that is not `key=value`, such as `--key value`."""
    for argument, after in zip(overrides, [*overrides[1:], "="]):
        key, equal, value = argument.lstrip("-").partition("=")
        if argument.startswith("-"):
            value = value or ("VALUE" if "=" in after else after)
            raise ValueError(f"cannot read {argument}: write {key.replace('-', '_')}={value}")
        if not equal and not argument.startswith("~"):
            raise ValueError(f"cannot read {argument}: expected KEY=VALUE, as in seed=1")


def unknown_in(key: str, config: Config) -> str:
    """The message for a key that a configuration does not have."""
    if key.startswith("data.") and not config.get("data"):
        return (
            f"{key}: the data come from the checkpoint's run; to evaluate on others replace "
            "the whole group, as in data=fasta data.path=my.fa"
        )
    (parent, _, name), known = key.rpartition("."), list(_all_keys(config))
    if target := dict(leaves(config)).get(f"{parent}._target_"):
        known += [f"{parent}.{each}" for each in signature_of(locate(target, None))[0]]
    inside = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == parent}
    named = {each.rpartition(".")[2]: each for each in sorted(known, key=len, reverse=True)}
    likely = [named[word] for word in (name, _SYNONYMS.get(name)) if word in named]
    for pool in (inside if parent else dict(zip(known, known)), named):
        likely += [pool[word] for word in difflib.get_close_matches(name, pool, 1, 0.5)]
    hint = f"; did you mean {likely[0]}?" if likely else ""
    place = f" in {parent}" if parent and inside else ""
    listed = inside or {each for each in known if "." not in each}
    return f"unknown key {key}{hint}; known{place}: {', '.join(sorted(listed))}"


def _all_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys, those of mappings included, empty or not."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _all_keys(value, f"{prefix}{key}.")
