"""The settings of a sampler for a model: defaults that depend on it, and the choices with which a
file of samples was started."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.fields import Config, PositiveInt, check_value
from dnadiff.jobs.journal import json_path, read_journal, sha256
from dnadiff.renamed import with_current_names
from dnadiff.store.disk import read_json
from dnadiff.store.objects import build
from dnadiff.weights.loaded import Loaded

# Settings of a sampler that `resolved_sampler` can choose.
_CHOSEN = ("window", "num_groups", "sizes")
log = logging.getLogger("dnadiff")


class SamplingModel(Protocol):
    """What is read of a model."""

    loaded: Loaded
    denoiser: BaseDenoiser

    @property
    def path(self) -> Path:
        """The file of its weights."""

    @property
    def stored_curve(self) -> StoredCurve:
        """Its measured h(n)."""


def continued_sampler(
    settings: Config, model: SamplingModel, lengths: tuple[int, int], output: Path, overwrite: bool
) -> Config:
    """The settings of the sampler of a file that is resumed: the choices that it was started with,
    also if `evaluate.json` has changed since, if model and options are the same. Otherwise
    `resolved_sampler`.

    Args:
        lengths: tokens in the shortest and in the longest sequence.
        overwrite: a complete file may be replaced, and is not continued.
    """
    options, earlier = _started_with(output, overwrite)
    low, high = lengths
    is_same = (
        options is not None
        and options == json.loads(json.dumps(settings))
        and earlier.get("lengths") == [low, high]
    )
    if is_same and earlier.get("model") == sha256(model.path):
        return _with_choices(settings, earlier.get("sampler", {}))
    return resolved_sampler(settings, model, high, low)


def _started_with(output: Path, overwrite: bool) -> tuple[Config | None, Config]:
    """The options of the sampler that a file was started with, None if they are not known, and its
    settings.

    A complete file that may be overwritten is not one that is continued.
    """

    found: Config = {}
    with suppress(OSError, ValueError):  # of a complete file
        found = {} if overwrite else read_json(json_path(output), ("settings", "sampler_options"))
    with suppress(
        OSError, ValueError
    ):  # of an unfinished one; `ResumableOutput` refuses a damaged journal
        journal = read_journal(output)
        found = journal["notes"] | {"settings": journal["settings"]}
    settings = found.get("settings")
    return found.get("sampler_options"), with_current_names(settings) if isinstance(
        settings, dict
    ) else {}


def _with_choices(settings: Config, chosen: Config) -> Config:
    """The settings of a sampler with what `resolved_sampler` chose; all others stay, and are
    compared later."""
    return {
        key: _with_choices(value, chosen.get(key, {}))
        if isinstance(value, dict)
        else chosen.get(key, value)
        if key in _CHOSEN
        else value
        for key, value in settings.items()
    }


def resolved_sampler(
    settings: Config,
    model: SamplingModel,
    length: int,
    shortest: int | None = None,
    has_curve: bool = True,
) -> Config:
    """The settings of a sampler with defaults that depend on the model: the window, the block, and
    groups from its h(n).

    Groups are chosen for `length` tokens, and at most as many as the shortest sequence has tokens.
    Without `has_curve`, as inside the blocks of a model that was trained without them, the h(n) is
    not used. A model that does not define a default is a ValueError.
    """
    settings = dict(settings)
    if "window" in settings:
        key, window = "sampler.window", settings["window"]
        window = (
            model.loaded.training_length(key)
            if window is None
            else check_value(key, window, PositiveInt)
        )
        within = None if shortest is None else min(window, shortest)
        inner = resolved_sampler(settings["sampler"], model, min(window, length), within, has_curve)
        settings |= {"window": window, "sampler": inner}
    if "block_size" in settings:
        own, trained = settings["block_size"], model.denoiser.block_size
        size = min(
            (trained if own is None else check_value("sampler.block_size", own, PositiveInt))
            or length,
            length,
        )
        within = None if shortest is None else min(size, shortest)
        settings |= {
            "sampler": resolved_sampler(
                settings["sampler"], model, size, within, has_curve and trained is not None
            )
        }
    if "sizes" in settings and has_curve:
        settings |= _groups(settings, model, length, shortest)
    elif isinstance(settings.get("sizes"), str):
        raise ValueError(
            f"sizes {settings['sizes']!r} needs the h(n) of a block, and this model was trained "
            "without blocks; expected numbers such as "
            "[8,8,16], or null: leave sizes out for equal groups"
        )
    return settings


def _groups(settings: Config, model: SamplingModel, length: int, shortest: int | None) -> Config:
    """`num_groups` and `sizes` of the settings of a sampler, from the h(n) of the model where they
    are automatic."""
    chosen = model.stored_curve.groups(length, settings["num_groups"], settings["sizes"])
    num_groups, sizes = chosen["num_groups"], chosen["sizes"]
    is_automatic = settings["num_groups"] is None and (
        settings["sizes"] is None or isinstance(settings["sizes"], str)
    )
    if is_automatic and (num_groups is not None or sizes is not None):
        kind = "groups of optimal sizes" if sizes else "equal groups"
        measured = model.stored_curve.measured_length()
        assumed = (
            ""
            if measured == length
            else f" of {measured} tokens, if h(n) depends on the visible fraction only"
        )
        number = num_groups or len(sizes or ())
        log.info(
            f"{number} {kind} lose at most 2 % of the structure, by evaluate.json in the "
            f"run{assumed}"
        )
    if settings["num_groups"] is None and num_groups is not None and shortest is not None:
        num_groups = min(num_groups, shortest)
    return {"num_groups": num_groups, "sizes": sizes}


def check_settings(settings: Config) -> None:
    """Check the settings of a sampler before a model is loaded; raises ValueError naming the
    setting."""
    if _leaves_masks(settings):
        raise ValueError(
            "noise_removal=none leaves masks in the samples, which a file cannot represent; choose "
            "sample or argmax"
        )
    build(without_sizes(settings), trust=None)


def _leaves_masks(settings: Config) -> bool:
    nested = (value for value in settings.values() if isinstance(value, dict))
    return settings.get("noise_removal") == "none" or any(map(_leaves_masks, nested))


def without_sizes(settings: Config) -> Config:
    """The settings of a sampler without the sizes of groups, which may depend on the h(n) of the
    model."""
    return {
        key: without_sizes(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if key != "sizes"
    }
