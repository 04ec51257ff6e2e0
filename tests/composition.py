"""Hydra composes the same few sets of files hundreds of times in the tests, a tenth of a second
each: compose each set once.

What Hydra does with the values of a command line, and with folders of a user, stays as it is.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dnadiff.store.objects import config_dir

OWN = {
    str(config_dir()),
    "hydra.conf",
    "",
}  # the package's folder, Hydra's and its schemas: their files do not change while the tests run


def remember(patch: pytest.MonkeyPatch) -> None:
    """Parse each override, read each set of files and merge it only the first time."""
    from hydra._internal import config_loader_impl as loader
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.core_plugins.importlib_resources_config_source import (
        ImportlibResourcesConfigSource,
    )
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for source in (FileConfigSource, ImportlibResourcesConfigSource):
        patch.setattr(source, "load_config", load_once(source.load_config))
    patch.setattr(CachingConfigRepository, "__init__", share)
    patch.setattr(OverridesParser, "parse_rule", parse_once(OverridesParser.parse_rule))
    patch.setattr(loader, "create_defaults_list", choose_once(loader.create_defaults_list))
    merge = loader.ConfigLoaderImpl._compose_config_from_defaults_list
    patch.setattr(loader.ConfigLoaderImpl, "_compose_config_from_defaults_list", merge_once(merge))


def share(self: Any, delegate: Any) -> None:
    """`CachingConfigRepository.__init__` without a deep copy: `initialize_sources` replaces the
    list of sources, and changes none of them."""
    self.delegate, self.cache = copy.copy(delegate), {}


def own(repo: Any) -> bool:
    """Whether no folder of a user is searched."""
    return {source.path for source in repo.get_sources()} <= OWN


def load_once(load: Callable[..., Any]) -> Callable[..., Any]:
    """`load_config` of a source: the content of a file, also of those next to a user's own."""
    known: dict[tuple[str, str], bytes] = {}

    def load_config(self: Any, config_path: str) -> Any:
        if self.path not in OWN:
            return load(self, config_path)
        if (key := (self.path, config_path)) not in known:
            known[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(known[key])

    return load_config


def parse_once(parse: Callable[..., Any]) -> Callable[..., Any]:
    """`OverridesParser.parse_rule`."""
    known: dict[tuple[str, str], Any] = {}

    def parse_rule(self: Any, s: str, rule_name: str) -> Any:
        if (s, rule_name) not in known:
            known[s, rule_name] = parse(self, s, rule_name)
        return copy.copy(known[s, rule_name])

    return parse_rule


def choose_once(create: Callable[..., Any]) -> Callable[..., Any]:
    """`create_defaults_list`: the files that a command and the choices of its command line name."""
    known: dict[tuple, Any] = {}

    def create_defaults_list(
        repo: Any, config_name: str, overrides_list: list[Any], **options: bool
    ) -> Any:
        if not own(repo):
            return create(repo, config_name, overrides_list, **options)
        given = [each for each in overrides_list if not each.is_sweep_override()]
        values = [
            each
            for each in given
            if isinstance(each.value(), dict) or not repo.group_exists(each.key_or_group)
        ]
        key = (
            config_name,
            *options.items(),
            *(each.input_line for each in given if each not in values),
        )
        if key not in known:
            known[key] = create(repo, config_name, overrides_list, **options)
        return replace(known[key], config_overrides=values)

    return create_defaults_list


def merge_once(merge: Callable[..., Any]) -> Callable[..., Any]:
    """`ConfigLoaderImpl._compose_config_from_defaults_list`: the contents of those files."""
    known: dict[str, bytes] = {}  # bytes, which the garbage collector need not visit

    def compose(self: Any, defaults: list[Any], repo: Any) -> Any:
        if not own(repo):
            return merge(self, defaults, repo)
        if (key := repr(defaults)) not in known:
            known[key] = pickle.dumps(merge(self, defaults, repo))
        return pickle.loads(known[key])

    return compose
