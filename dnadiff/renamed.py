"""The version, and names of earlier versions that still work: classes in configurations, choices
and keys of the command line."""

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = "0.1.0"
# Renamed choices of the command line. The old names work with a warning until version 0.3.
RENAMED_CHOICES = {
    "objective/masking=coins": "objective/masking=bernoulli",
    "objective/masking=steps": "objective/masking=discrete_time",
    "experiment=human_chr20": "experiment=chr20_hnf4a",
    "sampler=drawn_token": "sampler=low_confidence",
}
# Renamed keys of the command line; the old names work with a warning until version 0.3, too.
RENAMED_KEYS = {
    "task.cluster_word": "task.cluster_kmer",
    "neighbours": "neighbors",
    "stack": "combine",
    "words": "ngram_size",
}
DECLARED = (
    "trainer.strategy",
    "trainer.num_nodes",
)  # keys of earlier versions that had to be added with a plus


@functools.cache
def moved() -> dict[str, dict[str, str]]:
    """Old and new paths of `modules` and of `packages`; renamed.yaml says how they are read."""
    import yaml  # which `--help` does not need

    return yaml.safe_load(Path(__file__).with_name("renamed.yaml").read_text(encoding="utf-8"))


def current_name(target: str) -> str:
    """The current dotted path of a class, given its path in this or an earlier version."""
    module, _, name = target.rpartition(".")
    paths = moved()["modules"]
    if target in paths or module in paths:
        return paths.get(target) or f"{paths[module]}.{name}"
    for old, new in moved()["packages"].items():
        if target.startswith(f"{old}."):
            return current_name(new + target.removeprefix(old))
    return target


def with_current_choices(overrides: Sequence[str]) -> list[str]:
    """The overrides with renamed choices and keys under their current names, with one warning for
    each."""
    current = []
    for override in overrides:
        choice = override.lstrip("+")
        group, _, name = choice.partition("=")
        override = choice if group in DECLARED else override
        if key := RENAMED_KEYS.get(group):
            logging.getLogger("dnadiff").warning(
                f"{group} is now called {key}; the old name will stop working in version 0.3"
            )
            override = override.replace(group, key, 1)
        if new := RENAMED_CHOICES.get(f"{group.partition('@')[0]}={name}"):
            logging.getLogger("dnadiff").warning(
                f"{choice} is now called {new}; the old name will stop working in version 0.3"
            )
            override = override.removesuffix(name) + new.partition("=")[2]
        current.append(override)
    return current


def with_current_names(config: Any) -> Any:
    """A nested configuration in which every `_target_` is a current name."""
    if isinstance(config, Mapping):
        found = {key: with_current_names(value) for key, value in config.items()}
        target = config.get("_target_")
        return found | ({"_target_": current_name(target)} if isinstance(target, str) else {})
    if isinstance(config, (list, tuple)):
        return [with_current_names(value) for value in config]
    return config
